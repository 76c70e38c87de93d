"""What the live chat shows: rows to be printed for good, and below them what still changes."""

import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from palyra.cli.flow import Flow, wrap
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
from palyra.cli.output import fold, paint
from palyra.cli.printable import printable_line
from palyra.cli.question import Question, answers, question_lines
from palyra.cli.screens import HEARD_WIDTH, end_line, step_line

NARROWEST = 20
LONG_SECONDS = 5.0
"""Who waits longer for a sign is told for how long by now."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the screen, fit to be printed."""

    text: str
    dim: bool = False
    asks: bool = False
    """It is part of a question: what no answer of a model looks like where a terminal has bold letters."""


class Scroll:
    """Collects rows from one thread and hands them to another."""

    def __init__(self, *, width: Callable[[], int] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._width = width or _terminal_width
        self._clock = clock
        self._quiet_since = clock()
        self._asked = False
        self._lock = threading.Lock()
        self._rows: list[Row] = []
        self._flow = Flow()
        self._steps: dict[str, str] = {}
        self._working = False

    def show(self, piece: Piece) -> None:
        """Take a piece of the story."""
        with self._lock:
            self._take_in(piece)
        self.changed()

    def add(self, rows: Iterable[Row]) -> None:
        """Take rows that are no part of an answer."""
        with self._lock:
            self._rows.extend(Row(part, dim=row.dim) for row in rows for part in wrap(row.text, self._columns()))
        self.changed()

    def work(self, *, under_way: bool) -> None:
        """Say whether something is going on."""
        with self._lock:
            changed = self._working != under_way
            self._working = under_way
            if changed:
                self._quiet_since = self._clock()
        if changed:
            self.changed()

    def changed(self) -> None:
        """Have the news shown."""
        self.on_change()

    def has_rows(self) -> bool:
        """Tell whether there are rows to be printed."""
        with self._lock:
            return bool(self._rows)

    def take(self) -> list[Row]:
        """Return the rows to be printed, once."""
        with self._lock:
            rows, self._rows = self._rows, []
            return rows

    def take_all(self) -> list[Row]:
        """Return also the row that would still have grown."""
        with self._lock:
            self._break_off()
        return self.take()

    def alive(self) -> list[Row]:
        """Return what stands below the printed rows at this moment."""
        with self._lock:
            rows = list(self._rows)
            if self._flow.partial:
                rows.append(Row(self._flow.partial))
            if self._steps:
                rows.extend(Row(f"· {label} …{self._waited()}", dim=True) for label in self._steps.values())
            elif self._working and not self._flow.partial:
                rows.append(Row(f"…{self._waited()}", dim=True))
            return rows

    def _waited(self) -> str:
        """Say how long nothing has come, if that is long; who is asked a question knows what is waited for."""
        waited = self._clock() - self._quiet_since
        return f" {waited:.0f} s, Ctrl-C cancels" if waited >= LONG_SECONDS and not self._asked else ""

    def _take_in(self, piece: Piece) -> None:
        self._quiet_since = self._clock()
        match piece:
            case Text(text):
                self._rows.extend(Row(row) for row in self._flow.feed(text, width=self._columns()))
            case TurnEnded():
                self._break_off()
            case Voided():
                self._break_off()
                self._aside(VOIDED)
            case StepBegun(call_id, label):
                self._break_off()
                self._steps[call_id] = label
            case StepEnded(call_id):
                self._break_off()
                self._steps.pop(call_id, None)
                self._aside_of_others(step_line(piece))
            case Heard(text):
                self._break_off()
                self._aside_of_others(f"> {printable_line(text, width=HEARD_WIDTH)}")
            case Note(text):
                self._break_off()
                self._aside(printable_line(text))
            case Question():
                self._break_off()
                self._asked = True
                rows = question_lines(piece, width=self._columns())
                self._rows.extend(Row(row, asks=True) for row in (*rows, *wrap(f"  {answers(piece)}", self._columns())))
            case Settled():
                self._asked = False
            case Ended():
                self._break_off()
                self._asked = False
                self._steps.clear()
                if end := end_line(piece):
                    self._aside(end)

    def _break_off(self) -> None:
        self._rows.extend(Row(row) for row in self._flow.finish())

    def _aside(self, line: str) -> None:
        self._rows.extend(Row(row, dim=True) for row in wrap(line, self._columns()))

    def _aside_of_others(self, line: str) -> None:
        """Print what tools and people said, further rows a bit in: none of them may begin like a question."""
        self._rows.extend(Row(row, dim=True) for row in fold(line, self._columns(), rest="  "))

    def _columns(self) -> int:
        return max(NARROWEST, self._width() - 1)


def print_rows(rows: Iterable[Row]) -> None:
    """Print rows for good."""
    for row in rows:
        colour = "dim" if row.dim else "bold" if row.asks else ""
        sys.stdout.write((paint(row.text, colour) if colour else row.text) + "\n")
    sys.stdout.flush()


def _terminal_width() -> int:
    import shutil

    return shutil.get_terminal_size((80, 24)).columns
