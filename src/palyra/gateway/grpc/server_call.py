"""One call: messages in, messages out, and its final status.

A message on the wire is a byte that says whether it is compressed, four with its length, and its bytes. Input is
buffered here until the method reads it, and only reading lets the client send more. Output waits until the client has
room for it; the status follows when everything before it was sent.
"""

import asyncio
import re
import struct
from collections import deque
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import quote

from palyra.gateway.connections import ConnectionSlot
from palyra.gateway.error_status import GrpcStatus, RequestCompressionUnsupported, RequestInvalid, RequestTooLarge

MAX_REQUEST_BYTES = 1024 * 1024
GRANT_BYTES = 32 * 1024
"""How much is read before the client may send as much again."""

Headers = Sequence[tuple[str, str]]

_PREFIX = struct.Struct(">BI")
_BEGIN: Headers = (
    (":status", "200"),
    ("content-type", "application/grpc"),
    ("grpc-accept-encoding", "identity"),
)
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])", re.ASCII)
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MAX_DETAIL = 1_000
"""Clients limit the size of trailers; a longer text would hide the status itself."""
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class CallGone(Exception):
    """The caller has left; nothing reaches it any more."""


class CallConnection(Protocol):
    """The connection, as a call sees it."""

    slot: ConnectionSlot

    def send_headers(self, stream_id: int, headers: Headers, *, end: bool) -> None: ...

    def send_data(self, stream_id: int, data: memoryview) -> int:
        """Send as much as there is room for; return how much that was."""
        ...

    def grant(self, stream_id: int, size: int) -> None:
        """Let the caller send this many more bytes."""
        ...

    def ended(self, stream_id: int) -> None:
        """Release a call whose status has been sent."""
        ...


class ServerCall:
    """See the module. The connection feeds it; the method that serves it reads, writes and finishes."""

    def __init__(self, line: CallConnection, stream_id: int, metadata: dict[str, str]) -> None:
        self.path = metadata.get(":path", "")
        self.metadata = metadata
        self.seconds = _seconds(metadata.get("grpc-timeout"))
        """The caller's timeout."""
        self.task: asyncio.Task[None] | None = None
        self.gone = False
        """Nothing can be sent any more: the status was sent, or the client has left."""
        self._line = line
        self._stream_id = stream_id
        self._received = bytearray()
        self._owed = 0
        self.complete = False
        """The client sends nothing more."""
        self._arrived = asyncio.Event()
        self._begun = False
        self._outbox: deque[memoryview] = deque()
        self._last: Headers | None = None
        self._sent = asyncio.Event()
        """Set when no output is pending, and when none ever will be."""

    @property
    def slot(self) -> ConnectionSlot:
        """The slot of the call's connection."""
        return self._line.slot

    @property
    def waiting(self) -> bool:
        """Whether output waits for the caller to have room."""
        return bool(self._outbox)

    async def read(self, maximum: int = MAX_REQUEST_BYTES) -> bytes | None:
        """Return the next message, None after the last; one with more bytes than `most` is refused."""
        while (message := self._take(maximum)) is None:
            if self.complete:
                if self._received:
                    raise RequestInvalid("The call ended in the middle of a message.")
                return None
            self._grant()
            self._arrived.clear()
            await self._arrived.wait()
        return message

    async def write(self, message: bytes) -> None:
        """Send a message; return when the caller has had room for all of it."""
        if not self.put(message):
            await self.emptied()

    def put(self, message: bytes) -> bool:
        """Send a message; return whether the caller had room for all of it. If not, `emptied` waits until it has."""
        if self.gone:
            raise CallGone
        if not self._begun:
            self._begun = True
            self._line.send_headers(self._stream_id, _BEGIN, end=False)
        self._outbox.append(memoryview(_PREFIX.pack(0, len(message)) + message))
        self.pump()
        return not self._outbox and not self.gone

    async def emptied(self) -> None:
        """Wait until no output is pending."""
        while self._outbox:
            self._sent.clear()
            await self._sent.wait()
        if self.gone:
            raise CallGone

    async def finish(self, status: GrpcStatus, detail: str = "", trailing: Headers = ()) -> None:
        """End the call after all that was written; return when the caller has had room for it, or has left."""
        if self.gone:
            return
        self._last = self._ending(status, detail, trailing)
        self.pump()
        while not self.gone:
            self._sent.clear()
            await self._sent.wait()

    def leave(self, status: GrpcStatus, detail: str, trailing: Headers = ()) -> None:
        """End the call at once and drop pending output."""
        if not self.gone:
            self._outbox.clear()
            self._last = self._ending(status, detail, trailing)
            self.pump()

    # -- for the connection

    def feed(self, data: bytes, size: int) -> None:
        """Add input from the caller; it counts for `size` in flow control."""
        if self._last is None:
            self._owed += size
            self._received += data
            self._arrived.set()

    def feed_end(self) -> None:
        """Record that the caller sends nothing more."""
        self.complete = True
        self._arrived.set()

    def pump(self) -> None:
        """Send as much pending output as there is room for, and the status after it."""
        while self._outbox:
            waiting = self._outbox[0]
            sent = self._line.send_data(self._stream_id, waiting)
            if sent < len(waiting):
                self._outbox[0] = waiting[sent:]
                return
            self._outbox.popleft()
        if self._last is not None and not self.gone:
            self.gone = True
            self._line.send_headers(self._stream_id, self._last, end=True)
            self._line.ended(self._stream_id)
        self._sent.set()

    def drop(self) -> None:
        """Record that the caller has left or the connection is closed: the method that serves the call is cancelled."""
        self.gone = True
        self._outbox.clear()
        self._sent.set()
        if self.task is not None:
            self.task.cancel()

    # -- internal

    def _ending(self, status: GrpcStatus, detail: str, trailing: Headers) -> Headers:
        begin = () if self._begun else _BEGIN
        message = (("grpc-message", quote(detail[:_MAX_DETAIL], safe=_PRINTABLE, errors="replace")),) if detail else ()
        return (*begin, ("grpc-status", str(status.value)), *message, *trailing)

    def _take(self, maximum: int) -> bytes | None:
        """Return the next message if it is complete."""
        if len(self._received) < _PREFIX.size:
            return None
        compressed, length = _PREFIX.unpack_from(self._received)
        if compressed:
            raise RequestCompressionUnsupported
        if length > maximum:
            raise RequestTooLarge(f"The message has {length:,} bytes; the maximum is {maximum:,}. Send less at once.")
        end = _PREFIX.size + length
        if len(self._received) < end:
            return None
        message = bytes(memoryview(self._received)[_PREFIX.size : end])
        del self._received[:end]
        return message

    def _grant(self) -> None:
        """Let the caller send more: the method waits for input."""
        if self._owed >= GRANT_BYTES:
            self._line.grant(self._stream_id, self._owed)
            self._owed = 0


def _seconds(text: str | None) -> float | None:
    """Return the client's timeout in seconds; None if there is none, or it is not valid."""
    match = _TIMEOUT.fullmatch(text or "")
    return int(match[1]) * _UNITS[match[2]] if match else None
