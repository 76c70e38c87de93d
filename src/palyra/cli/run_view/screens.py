"""Where a run is shown when there is no input: a pipe that gets the answer, or a terminal that shows everything."""

from typing import TextIO

from palyra.cli.run_view.approval_prompt import ApprovalPrompt, prompt_lines
from palyra.cli.run_view.narration import (
    CHAT,
    CTRL_C,
    DISCARDED_NOTICE,
    AnswerText,
    ApprovalSettled,
    AttemptDiscarded,
    Notice,
    OtherInput,
    Piece,
    RunEnded,
    ToolStepEnded,
    ToolStepStarted,
    TurnEnded,
)
from palyra.cli.terminal.output import paint, screen_width
from palyra.cli.terminal.printable import printable, printable_line

HEARD_WIDTH = 200


def screen_for(out: TextIO, err: TextIO) -> "PipeScreen | TerminalScreen":
    """Return the screen that suits these streams."""
    return TerminalScreen(out, err) if out.isatty() else PipeScreen(out, err)


class PipeScreen:
    """Writes the answer to stdout for a program, and everything else to stderr.

    A turn is written when it has ended: what a program has read cannot be taken back if the turn is discarded.
    """

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._turn: list[str] = []

    def show(self, piece: Piece) -> None:
        match piece:
            case AnswerText(text):
                self._turn.append(text)
            case TurnEnded(is_answer):
                text, self._turn = "".join(self._turn), []
                _write(self._out if is_answer else self._err, _with_newline(printable(text)))
            case AttemptDiscarded():
                self._turn = []
                _write(self._err, f"{DISCARDED_NOTICE}\n")
            case ToolStepStarted():
                pass
            case ToolStepEnded():
                _write(self._err, f"{step_line(piece)}\n")
            case OtherInput(text):
                _write(self._err, f"> {printable_line(text, width=HEARD_WIDTH)}\n")
            case Notice(text):
                _write(self._err, f"{printable_line(text)}\n")
            case ApprovalPrompt():
                _write(self._err, "".join(f"{line}\n" for line in prompt_lines(piece)))
                _write(
                    self._err,
                    f"  Answer with `palyra approvals allow {piece.code}` or `palyra approvals deny {piece.code}`.\n",
                )
            case ApprovalSettled():
                pass
            case RunEnded():
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
            case AnswerText(text):
                self._close_step()
                self._text(text)
            case TurnEnded():
                self._break_line()
            case AttemptDiscarded():
                self._aside(DISCARDED_NOTICE)
            case ToolStepStarted() if self._open_step is not None:
                # Several are running; this one gets its line when it is done.
                pass
            case ToolStepStarted(call_id, label):
                self._break_line()
                _write(self._err, paint(f"· {label} …", "dim", stream=self._err))
                self._open_step, self._column_is_zero = call_id, False
            case ToolStepEnded(call_id) if call_id == self._open_step:
                _write(self._err, paint(f" {_outcome(piece)}", "dim", stream=self._err) + "\n")
                self._open_step, self._column_is_zero = None, True
            case ToolStepEnded():
                self._aside(step_line(piece))
            case OtherInput(text):
                self._aside(f"> {printable_line(text, width=HEARD_WIDTH)}")
            case Notice(text):
                self._aside(printable_line(text))
            case ApprovalPrompt():
                self._break_line()
                rows = prompt_lines(piece, width=screen_width(self._err))
                _write(self._err, "".join(f"{paint(row, 'bold', stream=self._err)}\n" for row in rows))
            case ApprovalSettled():
                pass
            case RunEnded():
                self._break_line()
                if end := end_line(piece):
                    self._aside(end)

    def _text(self, text: str) -> None:
        # A line ending may come in two pieces; half of it is not a control character yet.
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


def step_line(step: ToolStepEnded) -> str:
    """Return a finished step as one line."""
    return f"· {step.label} … {_outcome(step)}"


def end_line(ended: RunEnded) -> str:
    """Return the line about a run's end; empty if it ended with an answer."""
    reason = f": {printable_line(ended.reason)}" if ended.reason not in ("", CHAT, CTRL_C) else ""
    code = f" [{ended.code}]" if ended.code else ""
    match ended.status:
        case "failed":
            return f"(run failed{reason}{code})"
        case "cancelled":
            return f"(run cancelled{reason})"
        case _:
            return ""


def _outcome(step: ToolStepEnded) -> str:
    return f"{step.outcome}: {step.detail}" if step.detail else step.outcome


def _with_newline(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()
