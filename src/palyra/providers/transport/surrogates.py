"""Repairs characters that a server has split in two: `\\ud83d` at the end of one text, `\\ude00` at the beginning of
the next.

Servers that count characters as JavaScript does split an emoji this way. Neither half can be decoded alone; so the
first is held back until the second comes. A half within a text becomes the replacement character.
"""

import re

_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# An escaped backslash does not begin an escape: backslashes are matched in pairs, and complete characters with them.
_TOKEN = re.compile(
    rb"(?P<whole>" + _HIGH + _LOW + rb")|(?P<high>" + _HIGH + rb")|(?P<low>" + _LOW + rb')|\\.|"', re.DOTALL
)
_UNREADABLE = rb"\ufffd"


class SurrogateRepair:
    """Repairs the events of one answer, in order."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept = b""

    def repair(self, data: bytes) -> bytes:
        """Return an event's data with complete characters only."""
        pieces: list[bytes] = []
        upto, opened = 0, -1
        for match in _TOKEN.finditer(data):
            start, end = match.span()
            if match[0] == b'"':
                opened = end
            elif match.lastgroup in ("high", "low"):
                pieces += (
                    data[upto:start],
                    self._half(match[0], first=start == opened, last=data[end : end + 1] == b'"'),
                )
                upto = end
        return b"".join((*pieces, data[upto:]))

    def _half(self, half: bytes, *, first: bool, last: bool) -> bytes:
        """Return the replacement for a half."""
        is_low = half[3:4].lower() >= b"c"
        if is_low:
            data, self._kept = self._kept, b""
            return data + half if data and first else _UNREADABLE
        if last:
            self._kept = half
            return b""
        return _UNREADABLE
