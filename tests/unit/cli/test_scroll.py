"""What the live chat shows."""

from datetime import UTC, datetime

from palyra.cli.narration import Ended, Note, Piece, StepBegun, StepEnded, Text, TurnEnded, Voided
from palyra.cli.question import Question
from palyra.cli.scroll import Row, Scroll


def scroll(*pieces: Piece, width: int = 40) -> Scroll:
    made = Scroll(width=lambda: width)
    for piece in pieces:
        made.show(piece)
    return made


def texts(rows: list[Row]) -> list[str]:
    return [row.text for row in rows]


def test_the_row_that_grows_is_alive_and_not_printed() -> None:
    made = scroll(Text("one\ntw"))
    assert texts(made.take()) == ["one"]
    assert texts(made.alive()) == ["tw"]


def test_rows_are_taken_once() -> None:
    made = scroll(Text("one\n"))
    assert made.has_rows()
    assert texts(made.take()) == ["one"]
    assert not made.has_rows()
    assert made.take() == []


def test_rows_that_are_not_printed_yet_are_shown_as_alive() -> None:
    assert texts(scroll(Text("one\ntw")).alive()) == ["one", "tw"]


def test_the_end_of_a_turn_completes_the_row() -> None:
    assert texts(scroll(Text("one"), TurnEnded(is_answer=True)).take()) == ["one"]


def test_a_tool_at_work_is_alive_and_printed_when_done() -> None:
    made = scroll(StepBegun("c1", "files.list"))
    assert texts(made.alive()) == ["· files.list …"]
    made.show(StepEnded("c1", "files.list", "ok"))
    assert texts(made.alive()) == ["· files.list … ok"]
    assert texts(made.take()) == ["· files.list … ok"]
    assert made.alive() == []


def test_a_sign_of_life_stands_where_nothing_else_does() -> None:
    made = scroll()
    made.work(under_way=True)
    assert texts(made.alive()) == ["…"]
    made.show(Text("now"))
    assert texts(made.alive()) == ["now"]


def test_an_interrupted_answer_is_marked() -> None:
    assert texts(scroll(Text("Half"), Voided()).take()) == ["Half", "(the answer was interrupted; starting", "again)"]


def test_leaving_prints_what_was_growing() -> None:
    assert texts(scroll(Text("one\ntw")).take_all()) == ["one", "tw"]


def test_the_end_of_a_run_leaves_nothing_alive() -> None:
    made = scroll(StepBegun("c1", "files.list"), Ended("r", "cancelled", "enough"))
    assert texts(made.take()) == ["(the run was cancelled: enough)"]
    assert made.alive() == []


def test_every_change_is_told() -> None:
    made = scroll()
    told: list[int] = []
    made.on_change = lambda: told.append(1)
    made.show(Note("hello"))
    made.add([Row("x")])
    made.work(under_way=True)
    made.work(under_way=True)
    assert len(told) == 3


def test_controls_are_made_visible() -> None:
    rows = scroll(Text("\x1b[31mred\n"), Note("\x1b[2J"), StepEnded("c", "x", "error", "\u009b")).take()
    assert "\x1b" not in "".join(texts(rows))


def test_who_waits_long_is_told_for_how_long_until_something_comes() -> None:
    now = 100.0
    scroll = Scroll(width=lambda: 80, clock=lambda: now)
    scroll.work(under_way=True)
    now = 103.0
    assert scroll.alive() == [Row("…", dim=True)]
    now = 112.0
    assert scroll.alive() == [Row("… 12 s, Ctrl-C cancels", dim=True)]
    scroll.show(StepBegun("c1", "shell.run make"))
    assert scroll.alive() == [Row("· shell.run make …", dim=True)]
    now = 120.0
    assert scroll.alive() == [Row("· shell.run make … 8 s, Ctrl-C cancels", dim=True)]


def test_no_further_row_of_a_step_begins_like_a_question() -> None:
    made = scroll(StepEnded("c1", "files.read", "error", "x" * 14 + " ? run ls (low risk) Yes allows this once."))
    first, *rest = texts(made.take())
    assert first == "· files.read … error: xxxxxxxxxxxxxx ? "
    assert rest == ["  run ls (low risk) Yes allows this onc", "  e."]


def test_a_question_is_told_apart_from_answers() -> None:
    question = Question(
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
    assert not any(row.asks for row in scroll(Text("? run ls\n  (low risk)\n")).take())
