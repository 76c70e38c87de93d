"""Escaping of untrusted text for display: everything is shown, and nothing can pass for something else.

A character that is invisible, breaks a line or controls a terminal is replaced by a sign: `⟨CR⟩`, `⟨ESC⟩`, `⟨U+202E⟩`.
There are two levels:

- `escape` is for texts that a person decides by. It is exact: the bracket itself is replaced too, so a text cannot
  imitate a sign, and the original can be recovered. It is applied once, where such a text is built.
- `printable` is for everything else that is shown in a terminal or a report. It leaves what languages and emoji need,
  and may be applied again: signs stay as they are.
"""

import re

MARGIN = "> "
"""The prefix of each line of a quoted text, so that no line of it looks like our own."""

_NAMES = {0x00: "NUL", 0x07: "BEL", 0x08: "BS", 0x09: "TAB", 0x0A: "LF", 0x0D: "CR", 0x1B: "ESC", 0x7F: "DEL"}

_BREAKING = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 but for tab and line feed; U+0085 of C1 ends a line
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e"  # soft hyphen, zero width, line ends, direction
    "\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"  # further zero width and direction
    "\U000e0001\U000e0020-\U000e007f\ud800-\udfff"  # tags, surrogates
)
_UNSEEN = (
    "\u00a0\u1680\u2000-\u200a\u202f\u205f"  # spaces that look like the usual one
    "\u200c\u200d\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # joiners, fillers, variants
    "\u2065\u2800\u3164\uffa0\ufe00-\ufe0f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_SPACES = re.compile(r"(?:[ \t\n]|\r\n)+")
_TERMINAL = re.compile(f"[{_BREAKING}]")
_TERMINAL_LINE = re.compile(f"[{_BREAKING}\t\n]")
_EXACT = re.compile(f"[{_BREAKING}{_UNSEEN}⟨]")
_EXACT_LINE = re.compile(f"[{_BREAKING}{_UNSEEN}\t\n⟨]")
_NET = re.compile(f"[{_BREAKING}{_UNSEEN}]")
_NET_LINE = re.compile(f"[{_BREAKING}{_UNSEEN}\t\n]")


def escape(text: str) -> str:
    """Escape a text of several lines exactly: only its line feeds and tabs are left as they are."""
    return _EXACT.sub(_sign, text)


def escape_line(text: str) -> str:
    """Escape a text exactly, on one line."""
    return _EXACT_LINE.sub(_sign, text)


def escape_start(text: str, max_chars: int) -> str:
    """Escape the beginning of a text exactly, on one line, and say how much more there is."""
    displayed, used = "", 0
    for char in text[:max_chars]:
        sign = escape_line(char)
        if len(displayed) + len(sign) > max_chars:
            break
        displayed, used = displayed + sign, used + 1
    left = len(text) - used
    return f"{displayed}… ({left:,} more characters)" if left else displayed


def quote(text: str) -> str:
    """Escape a text exactly, with a margin before each line: a line without a margin is not part of it."""
    return "\n".join(MARGIN + line for line in escape(text).split("\n"))


def visible(text: str) -> str:
    """Escape what is still invisible in a text that was built from escaped parts."""
    return _NET.sub(_sign, text)


def visible_line(text: str) -> str:
    """Do the same as `visible`, on one line."""
    return _NET_LINE.sub(_sign, text)


def printable(text: str) -> str:
    """Return a text of several lines that is safe to show in a terminal."""
    return _TERMINAL.sub(_sign, text)


def printable_row(text: str) -> str:
    """Return a text on one line that is safe to show in a terminal."""
    return _TERMINAL_LINE.sub(_sign, text)


def printable_line(text: str, *, width: int | None = None) -> str:
    """Return the text as one line, cut to a width if one is given."""
    line = printable_row(_SPACES.sub(" ", text).strip(" "))
    return line if width is None else shorten(line, width)


def shorten(line: str, width: int) -> str:
    """Return the line if it fits, or its beginning and an ellipsis."""
    return line if len(line) <= width else line[: max(0, width - 1)].rstrip() + "…"


def printable_json(text: str) -> str:
    """Return equivalent JSON text that is safe to show in a terminal."""
    # JSON itself escapes only what is below the space; terminals obey U+0080 to U+009F as well.
    return _TERMINAL.sub(_json_escape, text)


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"⟨{_NAMES.get(code) or f'U+{code:04X}'}⟩"
