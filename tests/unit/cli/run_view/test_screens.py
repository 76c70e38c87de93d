"""The story in a pipe and in a terminal."""

import io

import pytest

from palyra.cli.run_view.narration import (
    AnswerText,
    AttemptDiscarded,
    Notice,
    OtherInput,
    Piece,
    RunEnded,
    ToolStepEnded,
    ToolStepStarted,
    TurnEnded,
)
from palyra.cli.run_view.screens import PipeScreen, TerminalScreen


def piped(*pieces: Piece) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    screen = PipeScreen(out, err)
    for piece in pieces:
        screen.show(piece)
    return out.getvalue(), err.getvalue()


def shown(*pieces: Piece) -> str:
    both = io.StringIO()
    screen = TerminalScreen(both, both)
    for piece in pieces:
        screen.show(piece)
    return both.getvalue()


def test_a_pipe_gets_the_answer_only() -> None:
    out, err = piped(
        AnswerText("Let me look."),
        TurnEnded(is_answer=False),
        ToolStepStarted("c1", "files.list"),
        ToolStepEnded("c1", "files.list", "ok"),
        AnswerText("Two "),
        AnswerText("files."),
        TurnEnded(is_answer=True),
        RunEnded("r", "done"),
    )
    assert out == "Two files.\n"
    assert err == "Let me look.\n· files.list … ok\n"


def test_a_pipe_never_gets_what_was_discarded() -> None:
    out, err = piped(AnswerText("Half an ans"), AttemptDiscarded(), AnswerText("Whole."), TurnEnded(is_answer=True))
    assert out == "Whole.\n"
    assert "interrupted" in err


def test_a_pipe_gets_nothing_of_a_run_that_failed() -> None:
    out, err = piped(AnswerText("Half"), RunEnded("r", "failed", "no model", "model_network"))
    assert out == ""
    assert err == "(run failed: no model [model_network])\n"


def test_a_pipe_gets_no_controls() -> None:
    out, err = piped(AnswerText("\x1b[31mred"), TurnEnded(is_answer=True), Notice("\x1b[2J"))
    assert "\x1b" not in out + err


def test_a_terminal_sees_text_at_once() -> None:
    assert shown(AnswerText("He")) == "He"
    assert shown(AnswerText("He"), AnswerText("llo"), TurnEnded(is_answer=True)) == "Hello\n"


def test_a_step_is_one_line() -> None:
    pieces: list[Piece] = [
        ToolStepStarted("c1", "files.read a.md"),
        ToolStepEnded("c1", "files.read a.md", "error", "no such file"),
    ]
    assert shown(*pieces) == "· files.read a.md … error: no such file\n"


def test_steps_at_the_same_time_do_not_mix() -> None:
    assert shown(
        ToolStepStarted("a", "one"),
        ToolStepStarted("b", "two"),
        ToolStepEnded("b", "two", "ok"),
        ToolStepEnded("a", "one", "ok"),
    ) == ("· one …\n· two … ok\n· one … ok\n")


def test_notes_stand_on_lines_of_their_own() -> None:
    assert shown(AnswerText("Half"), AttemptDiscarded(), AnswerText("Whole"), RunEnded("r", "done")) == (
        "Half\n(the answer was interrupted; starting again)\nWhole\n"
    )


@pytest.mark.parametrize(
    "piece", [AnswerText("a\x1b[31m"), Notice("\x1b[31m"), OtherInput("\x1b[31m"), RunEnded("r", "failed", "\x1b[3")]
)
def test_a_terminal_gets_no_controls_of_others(piece: Piece) -> None:
    assert "\x1b" not in shown(piece)


def test_a_line_end_in_two_pieces_is_one() -> None:
    assert shown(AnswerText("one\r"), AnswerText("\ntwo"), TurnEnded(is_answer=True)) == "one\ntwo\n"
