"""One client connection: HTTP/2 on one side, calls on the other.

The `h2` package implements the protocol; this module decides what a server must decide itself: how much it reads, how
long it waits, and when it closes. A client that does not read what it is sent is not read from either, so that nothing
piles up; one that does not answer a ping is gone, whatever TCP reports.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from hyperframe.frame import GoAwayFrame

from palyra.gateway.connections import ConnectionSlot
from palyra.gateway.grpc.http2 import Http2
from palyra.gateway.grpc.server_call import Headers, ServerCall

WINDOW_BYTES = 1024 * 1024
FRAME_BYTES = 16 * 1024
"""The largest frame that is sent, which every client accepts."""
FLUSH_BYTES = 64 * 1024
TURN_BYTES = 4 * 1024
"""How much input is processed before other tasks have a turn: it may be hundreds of frames."""
PING_SECONDS = 60.0
PING_TIMEOUT_SECONDS = 20.0
"""The client's timeout for its first bytes, for a ping, and to read what was sent before we closed."""
IDLE_SECONDS = 300.0
"""How long a client with a valid token may stay without a call. GOAWAY makes it reconnect for the next one."""
MAX_RESETS = 1_000
"""How many calls a client may reset between two pings. Opening and resetting is cheap for it, and costly for us."""
MAX_IDLE = 10_000
"""How many frames that request nothing a client may send between two pings, or between two frames sent to it."""
SETTINGS_COST = 100
"""How many of these a SETTINGS frame counts for: each of them changes every call."""

_PING = b"palyra.."
_GRPC = re.compile(r"application/grpc(?:[+;].*)?")

log = logging.getLogger(__name__)


class GrpcConnection(asyncio.Protocol):
    """See the module. `accept` begins a call; `made` and `lost` are called when the connection opens and closes."""

    def __init__(
        self,
        accept: Callable[[ServerCall], None],
        *,
        slot: ConnectionSlot,
        made: Callable[["GrpcConnection"], None],
        lost: Callable[["GrpcConnection"], None],
    ) -> None:
        self.slot = slot
        self._accept = accept
        self._made = made
        self._lost = lost
        self._calls: dict[int, ServerCall] = {}
        self._unread = bytearray()
        self._turn: asyncio.Handle | None = None
        self._reading = True
        self._paused = False
        self._resets = 0
        self._idle = 0
        self._owed = 0
        self._late = 0
        self._last_id = 0
        self._flushing: asyncio.Handle | None = None
        self._ready = 0
        self._room = False
        """The client has made room that was not used yet."""
        self._answered = False
        self._idle_since: tuple[float, int] | None = None
        """Since when no call is in progress, and the last one before that."""
        self._leaving = False
        """One of the two sides begins no further calls here."""
        self._over = False
        """We have closed the connection."""

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(PING_TIMEOUT_SECONDS, self._pinged)
        self._http2 = Http2()
        self._http2.initiate_connection()
        self._http2.increment_flow_control_window(WINDOW_BYTES)
        self._flush()
        self.slot.peer = self
        self._made(self)

    def data_received(self, data: bytes) -> None:
        if self._over:
            # The client may not know yet that we closed; if it keeps sending, it ignores that.
            self._late += len(data)
            if self._late > WINDOW_BYTES:
                self.abort()
            return
        if self._unread or len(data) > TURN_BYTES:
            self._unread += data
            self._go_on()
        else:
            self._take(data)

    def pause_writing(self) -> None:
        self._paused = True
        self._go_on()

    def resume_writing(self) -> None:
        self._paused = False
        self._go_on()
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._timer.cancel()
        for call in list(self._calls.values()):
            call.drop()
        self._calls.clear()
        self.slot.release()
        self._lost(self)

    # -- called by a call; if the client has cancelled it or disconnected, the call is about to be notified

    def send_headers(self, stream_id: int, headers: Headers, *, end: bool) -> None:
        with suppress(ProtocolError):
            self._http2.send_headers(stream_id, headers, end_stream=end)
            self._idle = 0
            self._flush_soon()

    def send_data(self, stream_id: int, data: memoryview) -> int:
        sent = 0
        try:
            while sent < len(data) and not self._paused:
                room = min(self._http2.local_flow_control_window(stream_id), FRAME_BYTES)
                if room <= 0:
                    break
                piece = bytes(data[sent : sent + room])
                self._http2.send_data(stream_id, piece)
                sent += len(piece)
                self._idle = 0
                self._flush_soon(len(piece))
        except ProtocolError:
            return len(data)
        return sent

    def grant(self, stream_id: int, size: int) -> None:
        with suppress(ProtocolError):
            self._http2.increment_flow_control_window(size, stream_id)
            self._flush_soon()

    def ended(self, stream_id: int) -> None:
        call = self._calls.pop(stream_id, None)
        if call is not None and not call.complete:
            # The client may have more to send, which will not be read.
            self._reset(stream_id, ErrorCodes.NO_ERROR)
        self._leave_if_done()

    # -- called by the server

    @property
    def busy(self) -> bool:
        return bool(self._calls)

    def overdue(self, now: float, seconds: float) -> bool:
        """Whether the connection has been idle for too long."""
        if self._calls or self._idle_since is None or self._idle_since[1] != self._last_id:
            self._idle_since = (now, self._last_id)
        return now - self._idle_since[0] > IDLE_SECONDS

    def abort(self) -> None:
        """Close the connection at once."""
        self._over = True
        self._transport.abort()

    def go_away(self) -> None:
        """Ask the client to begin no further calls here; those in progress continue."""
        if not self._over:
            self._leaving = True
            self._flush()
            self._transport.write(GoAwayFrame(last_stream_id=self._last_id).serialize())
            self._leave_if_done()

    leave = go_away

    def hang_up(self) -> None:
        """Close after sending what is pending; a client that does not read it in time loses it."""
        if not self._over:
            self._flush()
            self._over = True
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(PING_TIMEOUT_SECONDS, self._transport.abort)
            self._unread.clear()
            if self._transport.is_closing() or not self._transport.can_write_eof():
                self._transport.close()
                return
            # Closing with unread input would discard what was sent last to the client.
            try:
                self._transport.write_eof()
            except OSError:
                self._transport.abort()
            else:
                if not self._reading:
                    self._transport.resume_reading()

    # -- internal

    def _go_on(self) -> None:
        """Process more input if there is any and if the client reads; read the socket only when the buffer is empty."""
        if self._over:
            return
        if self._unread and not self._paused and self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turn)
        reading = not self._unread and not self._paused
        if reading != self._reading:
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _take_turn(self) -> None:
        self._turn = None
        if not self._over and not self._paused:
            piece = bytes(self._unread[:TURN_BYTES])
            del self._unread[:TURN_BYTES]
            self._take(piece)
            self._go_on()

    def _take(self, data: bytes) -> None:
        try:
            for event in self._http2.receive_data(data):
                self._handle(event)
                if self._over:
                    return
            self._flush()
        except ProtocolError as error:
            # The package's message may contain what was sent, even a token. The client gets the error code.
            log.info("a connection was closed: %s", type(error).__name__)
            self.hang_up()
        except Exception:
            log.warning("a connection was closed: what it sent cannot be handled", exc_info=True)
            self.abort()
        else:
            if self._room:
                self._room = False
                self._pump()

    def _handle(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._open(event)
            case DataReceived():
                self._feed(event)
            case StreamEnded():
                if call := self._calls.get(event.stream_id or 0):
                    call.feed_end()
            case StreamReset():
                self._on_reset(event)
            case WindowUpdated():
                self._room = True
                self._count(1)
            case RemoteSettingsChanged():
                self._answered = self._room = True
                self._count(SETTINGS_COST)
            case PingAckReceived():
                self._answered = True
                self._count(1)
            case ConnectionTerminated():
                self._leaving = True
                self._leave_if_done()
            case _:
                self._count(1)

    def _open(self, event: RequestReceived) -> None:
        stream_id = event.stream_id or 0
        if self._leaving:
            self._reset(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        self._last_id = stream_id
        headers = {
            name.decode("ascii", "replace"): value.decode("ascii", "replace") for name, value in event.headers or ()
        }
        if headers.get(":method") != "POST":
            self._decline(event, "405")
        elif not _GRPC.fullmatch(headers.get("content-type", "")):
            self._decline(event, "415")
        else:
            call = self._calls[stream_id] = ServerCall(self, stream_id, headers)
            self._accept(call)

    def _decline(self, event: RequestReceived, status: str) -> None:
        """Respond to a request that is not a call."""
        stream_id = event.stream_id or 0
        self.send_headers(stream_id, ((":status", status),), end=True)
        if event.stream_ended is None:
            self._reset(stream_id, ErrorCodes.NO_ERROR)

    def _feed(self, event: DataReceived) -> None:
        size = event.flow_controlled_length or 0
        # There is no flow control for the connection as a whole: a call that is not read must not delay the others.
        self._owed += size
        if self._owed >= WINDOW_BYTES // 2:
            self._http2.increment_flow_control_window(self._owed)
            self._owed = 0
        if not event.data and event.stream_ended is None:
            self._count(1)
        if call := self._calls.get(event.stream_id or 0):
            call.feed(event.data or b"", size)

    def _on_reset(self, event: StreamReset) -> None:
        if (call := self._calls.pop(event.stream_id or 0, None)) is None:
            return
        call.drop()
        self._resets += 1
        if self._resets > MAX_RESETS:
            self._calm("the client cancelled too many calls")
        self._leave_if_done()

    def _count(self, cost: int) -> None:
        """Tolerate frames that request nothing, up to a limit."""
        self._idle += cost
        if self._idle > MAX_IDLE:
            self._calm("the client sent too many frames without requests")

    def _calm(self, reason: str) -> None:
        if not self._over:
            log.info("a connection was closed: %s", reason)
            self._http2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            self.hang_up()

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        with suppress(ProtocolError):
            self._http2.reset_stream(stream_id, code)
            self._flush_soon()

    def _pump(self) -> None:
        """Let all calls send what is pending."""
        for call in [call for call in self._calls.values() if call.waiting]:
            call.pump()

    def _ping(self) -> None:
        self._resets = self._idle = 0
        self._answered = False
        self._http2.ping(_PING)
        self._flush()
        self._timer = asyncio.get_running_loop().call_later(PING_TIMEOUT_SECONDS, self._pinged)

    def _pinged(self) -> None:
        if self._answered:
            self._timer = asyncio.get_running_loop().call_later(PING_SECONDS - PING_TIMEOUT_SECONDS, self._ping)
        else:
            log.info("a connection was closed: the client sent nothing")
            self.abort()

    def _leave_if_done(self) -> None:
        if self._leaving and not self._calls:
            self.hang_up()

    def _flush_soon(self, size: int = 0) -> None:
        """Send pending output after all ready tasks have had a turn: one packet costs less than four.

        A large amount is sent at once, so that the transport can apply back-pressure.
        """
        self._ready += size
        if self._ready >= FLUSH_BYTES:
            self._flush()
        elif self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing, self._ready = None, 0
        data = self._http2.data_to_send()
        if data and not self._over:
            self._transport.write(data)
