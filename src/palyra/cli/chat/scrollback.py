"""What the live chat shows: rows to be printed for good, and below them what still changes."""

import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from palyra.cli.run_view.approval_prompt import ApprovalPrompt, answer_choices, prompt_lines
from palyra.cli.run_view.narration import (
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
from palyra.cli.run_view.screens import HEARD_WIDTH, end_line, step_line
from palyra.cli.terminal.output import fold, paint
from palyra.cli.terminal.printable import printable_line
from palyra.cli.terminal.wrapping import LineWrapper, wrap

MIN_WIDTH = 20
LONG_SECONDS = 5.0
"""After this time without output, the waiting time is shown."""


@dataclass(frozen=True, slots=True)
class ScreenRow:
    """One printable row of the screen."""

    text: str
    dim: bool = False
    asks: bool = False
    """It is part of an approval prompt: where a terminal has bold text, no answer of a model looks like it."""


class Scrollback:
    """Collects rows from one thread and passes them to another."""

    def __init__(self, *, width: Callable[[], int] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._width = width or _terminal_width
        self._clock = clock
        self._quiet_since = clock()
        self._asked = False
        self._lock = threading.Lock()
        self._rows: list[ScreenRow] = []
        self._flow = LineWrapper()
        self._steps: dict[str, str] = {}
        self._working = False

    def show(self, piece: Piece) -> None:
        """Add a piece of the narration."""
        with self._lock:
            self._take_in(piece)
        self.changed()

    def add(self, rows: Iterable[ScreenRow]) -> None:
        """Add rows that are not part of an answer."""
        with self._lock:
            self._rows.extend(ScreenRow(part, dim=row.dim) for row in rows for part in wrap(row.text, self._columns()))
        self.changed()

    def work(self, *, under_way: bool) -> None:
        """Set whether work is in progress."""
        with self._lock:
            changed = self._working != under_way
            self._working = under_way
            if changed:
                self._quiet_since = self._clock()
        if changed:
            self.changed()

    def changed(self) -> None:
        """Have the new rows shown."""
        self.on_change()

    def has_rows(self) -> bool:
        """Return whether there are rows to be printed."""
        with self._lock:
            return bool(self._rows)

    def take(self) -> list[ScreenRow]:
        """Return the rows to be printed, once."""
        with self._lock:
            rows, self._rows = self._rows, []
            return rows

    def take_all(self) -> list[ScreenRow]:
        """Return the rows to be printed, including the one that is still growing."""
        with self._lock:
            self._break_off()
        return self.take()

    def alive(self) -> list[ScreenRow]:
        """Return the live rows below the printed ones."""
        with self._lock:
            rows = list(self._rows)
            if self._flow.partial:
                rows.append(ScreenRow(self._flow.partial))
            if self._steps:
                rows.extend(ScreenRow(f"· {label} …{self._waited()}", dim=True) for label in self._steps.values())
            elif self._working and not self._flow.partial:
                rows.append(ScreenRow(f"…{self._waited()}", dim=True))
            return rows

    def _waited(self) -> str:
        """Return how long nothing has come, if that is long; at an approval prompt the person knows the reason."""
        waited = self._clock() - self._quiet_since
        return f" {waited:.0f} s, Ctrl-C cancels" if waited >= LONG_SECONDS and not self._asked else ""

    def _take_in(self, piece: Piece) -> None:
        self._quiet_since = self._clock()
        match piece:
            case AnswerText(text):
                self._rows.extend(ScreenRow(row) for row in self._flow.feed(text, width=self._columns()))
            case TurnEnded():
                self._break_off()
            case AttemptDiscarded():
                self._break_off()
                self._aside(DISCARDED_NOTICE)
            case ToolStepStarted(call_id, label):
                self._break_off()
                self._steps[call_id] = label
            case ToolStepEnded(call_id):
                self._break_off()
                self._steps.pop(call_id, None)
                self._aside_of_others(step_line(piece))
            case OtherInput(text):
                self._break_off()
                self._aside_of_others(f"> {printable_line(text, width=HEARD_WIDTH)}")
            case Notice(text):
                self._break_off()
                self._aside(printable_line(text))
            case ApprovalPrompt():
                self._break_off()
                self._asked = True
                rows = prompt_lines(piece, width=self._columns())
                self._rows.extend(
                    ScreenRow(row, asks=True) for row in (*rows, *wrap(f"  {answer_choices(piece)}", self._columns()))
                )
            case ApprovalSettled():
                self._asked = False
            case RunEnded():
                self._break_off()
                self._asked = False
                self._steps.clear()
                if end := end_line(piece):
                    self._aside(end)

    def _break_off(self) -> None:
        self._rows.extend(ScreenRow(row) for row in self._flow.finish())

    def _aside(self, line: str) -> None:
        self._rows.extend(ScreenRow(row, dim=True) for row in wrap(line, self._columns()))

    def _aside_of_others(self, line: str) -> None:
        """Print text of tools and people with further rows indented: none of them may look like an approval prompt."""
        self._rows.extend(ScreenRow(row, dim=True) for row in fold(line, self._columns(), rest="  "))

    def _columns(self) -> int:
        return max(MIN_WIDTH, self._width() - 1)


def print_rows(rows: Iterable[ScreenRow]) -> None:
    """Print rows for good."""
    for row in rows:
        colour = "dim" if row.dim else "bold" if row.asks else ""
        sys.stdout.write((paint(row.text, colour) if colour else row.text) + "\n")
    sys.stdout.flush()


def _terminal_width() -> int:
    import shutil

    return shutil.get_terminal_size((80, 24)).columns
