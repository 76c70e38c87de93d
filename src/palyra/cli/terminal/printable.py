"""Text from models, tools and files in the lines of a terminal, escaped by `core/text/escaping.py`."""

from palyra.core.text import escaping
from palyra.core.text.escaping import printable_line as printable_line
from palyra.core.text.escaping import shorten as shorten

TAB_COLUMNS = 4


def printable(text: str) -> str:
    """Return the text with its lines and tabs kept and every other control made visible."""
    return escaping.printable(text.replace("\r\n", "\n"))


def printable_row(text: str) -> str:
    """Return a line with its spaces kept: what is indented, and how far, can matter."""
    return escaping.printable_row(text.expandtabs(TAB_COLUMNS))
