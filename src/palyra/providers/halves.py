"""Letters that a server has cut in two: `\\ud83d` at the end of one text, `\\ude00` at the beginning of the next.

Servers that count letters as JavaScript does cut an emoji so. Neither half can be read alone; so the first is kept back
until the second comes. A half in the midst of a text becomes the sign for a letter that can not be read.
"""

import re

_HIGH, _LOW = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# A backslash that is itself escaped begins nothing: they are taken in pairs, and whole letters with them.
_TOKEN = re.compile(
    rb"(?P<whole>" + _HIGH + _LOW + rb")|(?P<high>" + _HIGH + rb")|(?P<low>" + _LOW + rb')|\\.|"', re.DOTALL
)
_UNREADABLE = rb"\ufffd"


class Halves:
    """Mends the events of one answer, in their order."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept = b""

    def mend(self, data: bytes) -> bytes:
        """Return an event's data with whole letters alone."""
        pieces: list[bytes] = []
        upto, opened = 0, -1
        for found in _TOKEN.finditer(data):
            start, end = found.span()
            if found[0] == b'"':
                opened = end
            elif found.lastgroup in ("high", "low"):
                pieces += (
                    data[upto:start],
                    self._half(found[0], first=start == opened, last=data[end : end + 1] == b'"'),
                )
                upto = end
        return b"".join((*pieces, data[upto:]))

    def _half(self, half: bytes, *, first: bool, last: bool) -> bytes:
        """Return what stands in the place of a half."""
        is_low = half[3:4].lower() >= b"c"
        if is_low:
            kept, self._kept = self._kept, b""
            return kept + half if kept and first else _UNREADABLE
        if last:
            self._kept = half
            return b""
        return _UNREADABLE
