"""Parses server-sent events from bytes as they come, wherever the network has split them.

Every piece of every answer goes through here, so the usual case is fast: complete events with one line of data each.
"""

from palyra.providers.transport.surrogates import SurrogateRepair

MAX_EVENT_BYTES = 8 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"

Event = tuple[str, bytes]
"""The event's name, which may be empty, and its data."""


def begins(first: bytes) -> bool:
    """Return whether an answer with this beginning is an event stream, whatever its content type."""
    return first.removeprefix(_BOM).lstrip().startswith((b"data:", b"event:", b"id:", b"retry:", b":"))


class EventTooLarge(Exception):
    """An event is larger than anything that could be meant."""


class SseParser:
    """The incomplete event at the end of a stream."""

    __slots__ = ("_begun", "_half_break", "_halves", "_rest", "_searched")

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0
        """How much of the rest is known not to contain the end of an event."""
        self._begun = False
        self._halves = SurrogateRepair()
        self._half_break = False
        """The last byte was a CR, whose LF may still come."""

    def feed(self, piece: bytes) -> list[Event]:
        """Add some bytes, and return the events that they complete."""
        if self._half_break and piece:
            self._half_break = False
            if piece[0] == 0x0A:
                piece = piece[1:]
        if b"\r" in piece:
            self._half_break = piece[-1] == 0x0D
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not self._begun:
            piece = self._without_bom(piece)
        rest = self._rest
        if not rest:
            end = piece.rfind(b"\n\n")
            if end < 0:
                rest += piece
                return self._wait()
            data = piece[:end]
            rest += piece[end + 2 :]
        else:
            rest += piece
            end = rest.rfind(b"\n\n", self._searched)
            if end < 0:
                return self._wait()
            data = bytes(rest[:end])
            del rest[: end + 2]
        self._searched = max(0, len(rest) - 1)
        if len(rest) > MAX_EVENT_BYTES:
            raise EventTooLarge
        return self._repaired(data) if b"\\u" in data else _events(data)

    def end(self) -> list[Event]:
        """Return what is left when the stream has ended: an event without the empty line that should follow it."""
        data = bytes(self._rest)
        self._rest.clear()
        return self._repaired(data)

    def _repaired(self, full_data: bytes) -> list[Event]:
        events = _events(full_data)
        # An escaped surrogate begins like this.
        if b"\\ud" in full_data or b"\\uD" in full_data:
            return [(name, self._halves.repair(data)) for name, data in events]
        return events

    def _wait(self) -> list[Event]:
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLarge
        self._searched = max(0, len(self._rest) - 1)
        return []

    def _without_bom(self, piece: bytes) -> bytes:
        piece = bytes(self._rest) + piece
        self._rest.clear()
        if len(piece) < len(_BOM) and _BOM.startswith(piece):
            self._rest += piece
            return b""
        self._begun = True
        return piece.removeprefix(_BOM)


def _events(data: bytes) -> list[Event]:
    events: list[Event] = []
    for block in data.split(b"\n\n"):
        # An event without data does not count: some servers send them as keep-alives.
        if block[:6] == b"data: " and len(block) > 6 and b"\n" not in block:
            events.append(("", block[6:]))
        elif event := _event(block):
            events.append(event)
    return events


def _event(block: bytes) -> Event | None:
    first, _, second = block.partition(b"\n")
    if first[:7] == b"event: " and second[:6] == b"data: " and len(second) > 6 and b"\n" not in second:
        return first[7:].decode(errors="replace"), second[6:]
    name, data = "", []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ").decode(errors="replace")
    return (name, b"\n".join(data)) if any(data) else None
