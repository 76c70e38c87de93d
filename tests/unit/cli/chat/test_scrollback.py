"""What the live chat shows."""

from datetime import UTC, datetime

from palyra.cli.chat.scrollback import ScreenRow, Scrollback
from palyra.cli.run_view.approval_prompt import ApprovalPrompt
from palyra.cli.run_view.narration import (
    AnswerText,
    AttemptDiscarded,
    Notice,
    Piece,
    RunEnded,
    ToolStepEnded,
    ToolStepStarted,
    TurnEnded,
)


def scroll(*pieces: Piece, width: int = 40) -> Scrollback:
    made = Scrollback(width=lambda: width)
    for piece in pieces:
        made.show(piece)
    return made


def texts(rows: list[ScreenRow]) -> list[str]:
    return [row.text for row in rows]


def test_the_row_that_grows_is_alive_and_not_printed() -> None:
    made = scroll(AnswerText("one\ntw"))
    assert texts(made.take()) == ["one"]
    assert texts(made.alive()) == ["tw"]


def test_rows_are_taken_once() -> None:
    made = scroll(AnswerText("one\n"))
    assert made.has_rows()
    assert texts(made.take()) == ["one"]
    assert not made.has_rows()
    assert made.take() == []


def test_rows_that_are_not_printed_yet_are_shown_as_alive() -> None:
    assert texts(scroll(AnswerText("one\ntw")).alive()) == ["one", "tw"]


def test_the_end_of_a_turn_completes_the_row() -> None:
    assert texts(scroll(AnswerText("one"), TurnEnded(is_answer=True)).take()) == ["one"]


def test_a_tool_at_work_is_alive_and_printed_when_done() -> None:
    made = scroll(ToolStepStarted("c1", "files.list"))
    assert texts(made.alive()) == ["· files.list …"]
    made.show(ToolStepEnded("c1", "files.list", "ok"))
    assert texts(made.alive()) == ["· files.list … ok"]
    assert texts(made.take()) == ["· files.list … ok"]
    assert made.alive() == []


def test_a_sign_of_life_stands_where_nothing_else_does() -> None:
    made = scroll()
    made.work(under_way=True)
    assert texts(made.alive()) == ["…"]
    made.show(AnswerText("now"))
    assert texts(made.alive()) == ["now"]


def test_an_interrupted_answer_is_marked() -> None:
    assert texts(scroll(AnswerText("Half"), AttemptDiscarded()).take()) == [
        "Half",
        "(the answer was interrupted; starting",
        "again)",
    ]


def test_leaving_prints_what_was_growing() -> None:
    assert texts(scroll(AnswerText("one\ntw")).take_all()) == ["one", "tw"]


def test_the_end_of_a_run_leaves_nothing_alive() -> None:
    made = scroll(ToolStepStarted("c1", "files.list"), RunEnded("r", "cancelled", "enough"))
    assert texts(made.take()) == ["(run cancelled: enough)"]
    assert made.alive() == []


def test_every_change_is_told() -> None:
    made = scroll()
    told: list[int] = []
    made.on_change = lambda: told.append(1)
    made.show(Notice("hello"))
    made.add([ScreenRow("x")])
    made.work(under_way=True)
    made.work(under_way=True)
    assert len(told) == 3


def test_controls_are_made_visible() -> None:
    rows = scroll(AnswerText("\x1b[31mred\n"), Notice("\x1b[2J"), ToolStepEnded("c", "x", "error", "\u009b")).take()
    assert "\x1b" not in "".join(texts(rows))


def test_who_waits_long_is_told_for_how_long_until_something_comes() -> None:
    now = 100.0
    scroll = Scrollback(width=lambda: 80, clock=lambda: now)
    scroll.work(under_way=True)
    now = 103.0
    assert scroll.alive() == [ScreenRow("…", dim=True)]
    now = 112.0
    assert scroll.alive() == [ScreenRow("… 12 s, Ctrl-C cancels", dim=True)]
    scroll.show(ToolStepStarted("c1", "shell.run make"))
    assert scroll.alive() == [ScreenRow("· shell.run make …", dim=True)]
    now = 120.0
    assert scroll.alive() == [ScreenRow("· shell.run make … 8 s, Ctrl-C cancels", dim=True)]


def test_no_further_row_of_a_step_begins_like_a_question() -> None:
    made = scroll(ToolStepEnded("c1", "files.read", "error", "x" * 14 + " ? run ls (low risk) Yes allows this once."))
    first, *rest = texts(made.take())
    assert first == "· files.read … error: xxxxxxxxxxxxxx ? "
    assert rest == ["  run ls (low risk) Yes allows this onc", "  e."]


def test_a_question_is_told_apart_from_answers() -> None:
    question = ApprovalPrompt(
        approval_id="01ARZ3NDEKTSV4RRFFQ69G5FAV",
        summary="run ls",
        detail="> ls",
        risk="low",
        reason="it is asked",
        policies=(),
        expires_at=datetime(2026, 1, 2, tzinfo=UTC),
        lasting="",
    )
    assert all(row.asks for row in scroll(question).take())
    assert not any(row.asks for row in scroll(AnswerText("? run ls\n  (low risk)\n")).take())
