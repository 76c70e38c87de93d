"""Wraps text that comes in pieces into rows of a terminal: complete rows to print, and the one that still grows."""

from palyra.cli.terminal.output import screen_width, width_of
from palyra.cli.terminal.printable import printable

TAB = 4
MIN_WIDTH = 20
"""A terminal that is narrower has to break rows itself."""


class LineWrapper:
    """Breaks a growing text into rows between words."""

    def __init__(self) -> None:
        self.partial = ""
        """The last row, which may still grow."""
        self._held = ""

    def feed(self, text: str, *, width: int) -> list[str]:
        """Add a piece; return the rows that are complete now."""
        # A line ending may come in two pieces; half of it is not a control character yet.
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""
        *lines, last = (self.partial + printable(text.removesuffix("\r")).expandtabs(TAB)).split("\n")
        rows = [row for line in lines for row in wrap(line, width)]
        *begun, self.partial = wrap(last, width)
        return rows + begun

    def finish(self) -> list[str]:
        """Return what is left, and reset."""
        left, self.partial, self._held = self.partial, "", ""
        return [left] if left else []


def wrap(line: str, width: int) -> list[str]:
    """Break a line between words, with the indent of the first row; a word too long for any row stays whole."""
    rows = []
    margin = " " * min(len(line) - len(line.lstrip(" ")), width // 2)
    while width_of(line) > width:
        cut = _last_gap(line, width)
        if cut < 0:
            break
        rows.append(line[:cut].rstrip())
        line = margin + line[cut:].lstrip(" ")
    return [*rows, line]


def hang(text: str, *, indent: int) -> str:
    """Return a text for a row with this indent; further rows, if the terminal needs any, get the same indent."""
    width = max(MIN_WIDTH, screen_width() - indent)
    return f"\n{' ' * indent}".join(wrap(text, width))


def _last_gap(line: str, width: int) -> int:
    """Return the last space up to the width; the first one after a word that is too long; -1 if there is none."""
    indent = len(line) - len(line.lstrip(" "))
    reach, used = 0, 0
    for index, char in enumerate(line):
        used += width_of(char)
        if used > width:
            break
        reach = index + 1
    cut = line.rfind(" ", indent, reach + 1)
    return cut if cut >= 0 else line.find(" ", indent)
