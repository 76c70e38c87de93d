"""Text from models, tools and files in the lines of a terminal, escaped by `core/text/escaping.py`."""

import re

from palyra.core.text import escaping

TAB_COLUMNS = 4

_SPACES = re.compile(r"(?:[ \t\n]|\r\n)+")


def printable(text: str) -> str:
    """Return the text with its lines and tabs kept and every other control made visible."""
    return escaping.printable(text.replace("\r\n", "\n"))


def printable_line(text: str, *, width: int | None = None) -> str:
    """Return the text as one line, cut to a width if one is given."""
    line = escaping.printable_row(_SPACES.sub(" ", text).strip(" "))
    return line if width is None else shorten(line, width)


def printable_row(text: str) -> str:
    """Return a line with its spaces kept: what is indented, and how far, can matter."""
    return escaping.printable_row(text.expandtabs(TAB_COLUMNS))


def shorten(line: str, width: int) -> str:
    """Return the line if it fits, or its beginning and an ellipsis."""
    return line if len(line) <= width else line[: max(0, width - 1)].rstrip() + "…"
