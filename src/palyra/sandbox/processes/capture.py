"""Keeps the head and the tail of an output, however long it is."""

from collections import deque

from palyra.sandbox.base import CapturedOutput


class OutputCapture:
    """Takes an output piece by piece, and never holds more than its head, its tail and one piece."""

    def __init__(self, *, head_bytes: int, tail_bytes: int) -> None:
        self._head = bytearray()
        self._head_bytes = head_bytes
        self._tail: deque[bytes] = deque()
        self._tail_bytes = tail_bytes
        self._held = 0
        self._left_out = 0

    def add(self, piece: bytes) -> None:
        """Add the next piece."""
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += piece[:room]
            piece = piece[room:]
        if not piece:
            return
        self._tail.append(piece)
        self._held += len(piece)
        # Full pieces are dropped while the rest is still long enough; the excess of the first is cut off at the end.
        while self._tail and self._held - len(self._tail[0]) >= self._tail_bytes:
            removed = len(self._tail.popleft())
            self._held -= removed
            self._left_out += removed

    def output(self) -> CapturedOutput:
        """Return what was kept."""
        tail = b"".join(self._tail)
        too_much = max(0, len(tail) - self._tail_bytes)
        return CapturedOutput(bytes(self._head), tail[too_much:], self._left_out + too_much)
