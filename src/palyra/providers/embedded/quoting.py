"""Makes untrusted text safe to show: one line or a few, truncated, and without terminal control characters."""

import unicodedata

MAX_QUOTED_CHARS = 300

_KEPT = frozenset("\n\t")
_TAKEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def printable(text: str) -> str:
    """Return the text without control characters and those that change the writing direction."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char for char in text if char in _KEPT or unicodedata.category(char) not in _TAKEN)


def quote(text: str, *, limit: int = MAX_QUOTED_CHARS) -> str:
    """Return the text on one line, truncated."""
    line = " ".join(printable(text).split())
    return line if len(line) <= limit else line[:limit] + "…"
