"""Text from models, tools and files as a terminal may show it.

A control character that reaches a terminal is a command to it: it can retitle the window, rewrite lines that were
printed before, or type into the shell. So everything that the command line did not write itself passes through here:
controls become visible signs, and nothing is dropped silently.
"""

import re

_BIDI = "\u202a-\u202e\u2066-\u2069"
"""Marks that make text read in another order than it is stored."""

_UNSAFE = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_BIDI}\ud800-\udfff]")
_UNSAFE_IN_LINE = re.compile(f"[\x00-\x1f\x7f-\x9f\u2028\u2029{_BIDI}\ud800-\udfff]")
_UNSAFE_IN_JSON = re.compile(f"[\x7f-\x9f\u2028\u2029{_BIDI}]")
TAB_COLUMNS = 4

_SPACES = re.compile(r"\s+")


def printable(text: str) -> str:
    """Return the text with its lines and tabs kept and every other control made visible."""
    return _UNSAFE.sub(_sign, text.replace("\r\n", "\n"))


def printable_line(text: str, *, width: int | None = None) -> str:
    """Return the text as one line, cut to a width if one is given."""
    line = _UNSAFE_IN_LINE.sub(_sign, _SPACES.sub(" ", text).strip())
    return line if width is None else shorten(line, width)


def printable_row(text: str) -> str:
    """Return a line as it stands, with its spaces: what is indented, and how far, can be what matters."""
    return _UNSAFE_IN_LINE.sub(_sign, text.expandtabs(TAB_COLUMNS))


def printable_json(text: str) -> str:
    """Return JSON text that means the same and holds no control character."""
    # JSON itself escapes what is below the space only; terminals obey U+0080 to U+009F as well.
    return _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def shorten(line: str, width: int) -> str:
    """Return the line if it fits, or its beginning and an ellipsis."""
    return line if len(line) <= width else line[: max(0, width - 1)].rstrip() + "…"


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"<U+{code:04X}>"
