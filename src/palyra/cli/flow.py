"""Text that comes in pieces, as rows of a terminal: whole rows to print, and the one that still grows."""

from palyra.cli.output import screen_width, width_of
from palyra.cli.printable import printable

TAB = 4
NARROWEST = 20
"""A terminal that is narrower has to break rows by itself."""


class Flow:
    """Breaks a growing text into rows between words."""

    def __init__(self) -> None:
        self.partial = ""
        """The last row, which may still grow."""
        self._held = ""

    def feed(self, text: str, *, width: int) -> list[str]:
        """Take a further piece; return the rows that are complete now."""
        # A line's end may come in two pieces; half of it is no control character yet.
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""
        *lines, last = (self.partial + printable(text.removesuffix("\r")).expandtabs(TAB)).split("\n")
        rows = [row for line in lines for row in wrap(line, width)]
        *begun, self.partial = wrap(last, width)
        return rows + begun

    def finish(self) -> list[str]:
        """Return what is left, and begin anew."""
        left, self.partial, self._held = self.partial, "", ""
        return [left] if left else []


def wrap(line: str, width: int) -> list[str]:
    """Break a line between words, further rows as far in as the first; a word too long for any row stays whole."""
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
    """Return a text that begins so far in on a row, with its further rows, if the terminal needs any, as far in."""
    width = max(NARROWEST, screen_width() - indent)
    return f"\n{' ' * indent}".join(wrap(text, width))


def _last_gap(line: str, width: int) -> int:
    """Return the last space up to the width; the first one behind a word that is too long; -1 if there is none."""
    indent = len(line) - len(line.lstrip(" "))
    reach, taken = 0, 0
    for place, char in enumerate(line):
        taken += width_of(char)
        if taken > width:
            break
        reach = place + 1
    cut = line.rfind(" ", indent, reach + 1)
    return cut if cut >= 0 else line.find(" ", indent)
