"""Where a run's story is shown when nobody types along: a pipe that gets the answer, or a terminal that sees all."""

from typing import TextIO

from palyra.cli.narration import (
    VOIDED,
    Ended,
    Heard,
    Note,
    Piece,
    Settled,
    StepBegun,
    StepEnded,
    Text,
    TurnEnded,
    Voided,
)
from palyra.cli.output import paint, screen_width
from palyra.cli.printable import printable, printable_line
from palyra.cli.question import Question, question_lines

HEARD_WIDTH = 200


def screen_for(out: TextIO, err: TextIO) -> "PipeScreen | TerminalScreen":
    """Return the screen that suits these streams."""
    return TerminalScreen(out, err) if out.isatty() else PipeScreen(out, err)


class PipeScreen:
    """Gives the answer to a program, and everything else to whoever watches stderr.

    A turn is written when it has ended: what a program has read can not be taken back if the turn is voided.
    """

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._turn: list[str] = []

    def show(self, piece: Piece) -> None:
        match piece:
            case Text(text):
                self._turn.append(text)
            case TurnEnded(is_answer):
                text, self._turn = "".join(self._turn), []
                _write(self._out if is_answer else self._err, _whole_lines(printable(text)))
            case Voided():
                self._turn = []
                _write(self._err, f"{VOIDED}\n")
            case StepBegun():
                pass
            case StepEnded():
                _write(self._err, f"{step_line(piece)}\n")
            case Heard(text):
                _write(self._err, f"> {printable_line(text, width=HEARD_WIDTH)}\n")
            case Note(text):
                _write(self._err, f"{printable_line(text)}\n")
            case Question():
                _write(self._err, "".join(f"{line}\n" for line in question_lines(piece)))
                _write(self._err, f"  Answer with `palyra approvals allow {piece.code}`, or deny it.\n")
            case Settled():
                pass
            case Ended():
                if end := end_line(piece):
                    _write(self._err, f"{end}\n")


class TerminalScreen:
    """Writes the answer as it comes, and the steps between its lines."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._column_is_zero = True
        self._open_step: str | None = None
        self._held = ""

    def show(self, piece: Piece) -> None:
        match piece:
            case Text(text):
                self._close_step()
                self._text(text)
            case TurnEnded():
                self._break_line()
            case Voided():
                self._aside(VOIDED)
            case StepBegun() if self._open_step is not None:
                # Several are at work; this one gets its line when it is done.
                pass
            case StepBegun(call_id, label):
                self._break_line()
                _write(self._err, paint(f"· {label} …", "dim", stream=self._err))
                self._open_step, self._column_is_zero = call_id, False
            case StepEnded(call_id) if call_id == self._open_step:
                _write(self._err, paint(f" {_outcome(piece)}", "dim", stream=self._err) + "\n")
                self._open_step, self._column_is_zero = None, True
            case StepEnded():
                self._aside(step_line(piece))
            case Heard(text):
                self._aside(f"> {printable_line(text, width=HEARD_WIDTH)}")
            case Note(text):
                self._aside(printable_line(text))
            case Question():
                self._break_line()
                rows = question_lines(piece, width=screen_width(self._err))
                _write(self._err, "".join(f"{paint(row, 'bold', stream=self._err)}\n" for row in rows))
            case Settled():
                pass
            case Ended():
                self._break_line()
                if end := end_line(piece):
                    self._aside(end)

    def _text(self, text: str) -> None:
        # A line's end may come in two pieces; half of it is no control character yet.
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""
        text = printable(text.removesuffix("\r"))
        if text:
            _write(self._out, text)
            self._column_is_zero = text.endswith("\n")

    def _aside(self, line: str) -> None:
        self._break_line()
        _write(self._err, paint(line, "dim", stream=self._err) + "\n")

    def _break_line(self) -> None:
        self._close_step()
        self._held = ""
        if not self._column_is_zero:
            _write(self._out, "\n")
            self._column_is_zero = True

    def _close_step(self) -> None:
        if self._open_step is not None:
            _write(self._err, "\n")
            self._open_step, self._column_is_zero = None, True


def step_line(step: StepEnded) -> str:
    """Return a finished step as one line."""
    return f"· {step.label} … {_outcome(step)}"


def end_line(ended: Ended) -> str:
    """Return what is said of a run's end; nothing if it ended with an answer."""
    reason = f": {printable_line(ended.reason)}" if ended.reason else ""
    code = f" [{ended.code}]" if ended.code else ""
    match ended.status:
        case "failed":
            return f"(the run failed{reason}{code})"
        case "cancelled":
            return f"(the run was cancelled{reason})"
        case _:
            return ""


def _outcome(step: StepEnded) -> str:
    return f"{step.outcome}: {step.detail}" if step.detail else step.outcome


def _whole_lines(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()
