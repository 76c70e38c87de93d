"""The command line's output: tables for people, JSON for programs, colours where a terminal shows them."""

import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TextIO

from palyra.cli.terminal.printable import printable_line
from palyra.core.text.escaping import printable_json
from palyra.core.text.plural import plural as plural

GAP = "  "
FALLBACK_WIDTH = 100
MIN_COLUMN_WIDTH = 12
"""The minimum width that a column of a table is cut to."""
FIRST_SIGN_SECONDS = 0.6
"""A wait that is shorter is not shown."""

MAX_WIDTH = 10_000

NO_COLOURS: Mapping[str, str] = {}

_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def has_colours(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that wants colours."""
    # These two describe the terminal, not Palyra; see https://no-color.org.
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, *, stream: TextIO | None = None) -> str:
    """Return the text in a colour, if the stream (stdout) shows any."""
    if not text or not has_colours(stream or sys.stdout):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def width_of(text: str) -> int:
    """Return how many columns a line takes."""
    if text.isascii():
        return len(text)
    return sum(_columns(char) for char in text)


def screen_width(stream: TextIO | None = None) -> int:
    """Return the columns of the terminal; practically no limit where the output (stdout) is not a terminal."""
    is_terminal = (stream or sys.stdout).isatty()
    return shutil.get_terminal_size((FALLBACK_WIDTH, 24)).columns if is_terminal else MAX_WIDTH


def fold(text: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    """Break a text into rows that fit, at any character: `first` is put before the first, `rest` before the others.

    A row that the terminal had to break itself would continue at its left edge, where only our own text may be.
    """
    rows, row, room = list[str](), first, width - width_of(first)
    for char in text:
        used = _max_columns(char)
        if used > room and len(row) > len(rest):
            rows.append(row)
            row, room = rest, width - width_of(rest)
        row, room = row + char, room - used
    return [*rows, row]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, stretch: int = -1) -> list[str]:
    """Return the lines of a table. The column `stretch` is cut so that each line fits the terminal.

    If that is not enough, the widest of the others are cut too, except the first: it has the names.
    """
    cells = [[printable_line(cell) for cell in row] for row in rows]
    widths = [max(width_of(row[index]) for row in [list(heads), *cells]) for index in range(len(heads))]
    stretch %= len(heads)
    room = screen_width() - len(GAP) * (len(heads) - 1)
    widths[stretch] = min(widths[stretch], max(MIN_COLUMN_WIDTH, room - sum(widths) + widths[stretch]))
    while sum(widths) > room:
        widest = max(range(1, len(widths)), key=widths.__getitem__, default=0)
        if not widest or widths[widest] <= MIN_COLUMN_WIDTH:
            break
        widths[widest] -= 1
    lines = [paint(_fit(heads, widths), "dim")]
    lines.extend(_fit(row, widths) for row in cells)
    return lines


def facts(*pairs: tuple[str, str | None], colours: Mapping[str, str] = NO_COLOURS) -> list[str]:
    """Return aligned lines of names and values, some in colour; those without a value are left out."""
    supplied_value = [(name, printable_line(value)) for name, value in pairs if value]
    longest = max((len(name) for name, _ in supplied_value), default=0)
    room = max(MIN_COLUMN_WIDTH, screen_width() - longest - len(GAP))
    lines: list[str] = []
    for name, value in supplied_value:
        for index, row in enumerate(fold(value, room)):
            head = "" if index else name
            lines.append(
                f"{paint(head.ljust(longest), 'dim')}{GAP}{paint(row, colours[name]) if name in colours else row}"
            )
    return lines


def show(lines: Iterable[str]) -> None:
    """Print lines on stdout."""
    for line in lines:
        print(line)


def show_json(value: object) -> None:
    """Print a value as indented JSON."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    print(_spelled(printable_json(text)))


def show_json_line(text: str) -> None:
    """Print JSON text as one line and flush it: another program may be reading along."""
    print(_spelled(printable_json(text)), flush=True)


def _spelled(text: str) -> str:
    """Return JSON in characters that any stdout can write: its reader expects UTF-8, whatever the locale says."""
    if text.isascii() or (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8":
        return text
    return "".join(char if char.isascii() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def say(text: str) -> None:
    """Print a message that is not part of the result, on stderr."""
    print(text, file=sys.stderr, flush=True)


def clock_time(moment: datetime) -> str:
    """Return the local time of day."""
    return f"{moment.astimezone():%H:%M:%S}"


def date_time(moment: datetime | None) -> str:
    """Return the local date and time."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M}" if moment is not None else ""


def model_name(provider: object, model: object) -> str:
    """Return the model that answers, in one or two words: many providers have one model of the same name."""
    return " ".join(dict.fromkeys(str(word) for word in (provider, model) if word))


def counts(numbers: Mapping[str, Any]) -> str:
    """Return counts by name as one line."""
    return ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in numbers.items() if number) or "none"


class ProgressIndicator:
    """Shows progress on a terminal if something takes long; silent elsewhere."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._began = time.monotonic()
        self._shown = False

    def __enter__(self) -> "ProgressIndicator":
        return self

    def tick(self) -> None:
        """Show that it is still in progress."""
        passed = time.monotonic() - self._began
        if passed >= FIRST_SIGN_SECONDS and sys.stderr.isatty():
            print(f"\r{self._text} … {passed:.0f} s ", end="", file=sys.stderr, flush=True)
            self._shown = True

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r" + " " * (len(self._text) + 12) + "\r", end="", file=sys.stderr, flush=True)


def _fit(row: Sequence[str], widths: Sequence[int]) -> str:
    return GAP.join(_pad(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _pad(cell: str, width: int) -> str:
    used = width_of(cell)
    if used <= width:
        return cell + " " * (width - used)
    while width_of(cell) > width - 1:
        cell = cell[:-1]
    return f"{cell}…" + " " * (width - 1 - width_of(cell))


def _max_columns(char: str) -> int:
    """Return how many columns a character may take: terminals know characters that we do not."""
    return 2 if char >= "\U0001f000" else max(1, _columns(char))


def _columns(char: str) -> int:
    if unicodedata.combining(char) or char == "\u200d" or "\ufe00" <= char <= "\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
