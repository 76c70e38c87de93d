"""One caller's line: HTTP/2 on the one side, calls on the other.

The `h2` package knows the protocol; here is what a server must decide for itself: how much it takes in, how long it
waits, and when it hangs up. A caller that does not read what it is sent is not read from either, so that nothing piles
up; one that answers no ping is gone, whatever TCP believes.
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

from palyra.gateway.connections import Slot
from palyra.gateway.grpc.call import Call, Headers
from palyra.gateway.grpc.http2 import Http2

WINDOW_BYTES = 1024 * 1024
FRAME_BYTES = 16 * 1024
"""The largest frame that is sent, which every caller takes."""
FLUSH_BYTES = 64 * 1024
TURN_BYTES = 4 * 1024
"""So much of what came is taken in before others have their turn: it may be hundreds of frames."""
PING_SECONDS = 60.0
ANSWER_SECONDS = 20.0
"""So long a caller has for its first words, for a ping, and to take what was sent before we hung up."""
IDLE_SECONDS = 300.0
"""How long a caller with a valid token may stay without a call. The goodbye tells it to connect again for the next."""
MOST_RESETS = 1_000
"""So many calls a caller may take back between two pings. Opening and taking back is cheap for it, and dear for us."""
MOST_IDLE = 10_000
"""So many frames that ask for nothing a caller may send between two pings, or between two things that it is sent."""
SETTINGS_COST = 100
"""For how many of these settings count: each of them changes every call."""

_PING = b"palyra.."
_GRPC = re.compile(r"application/grpc(?:[+;].*)?")
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])", re.ASCII)
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}

log = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """See the module. `accept` begins a call; `made` and `lost` are told when the line is up and when it is down."""

    def __init__(
        self,
        accept: Callable[[Call], None],
        *,
        slot: Slot,
        made: Callable[["Connection"], None],
        lost: Callable[["Connection"], None],
    ) -> None:
        self.slot = slot
        self._accept = accept
        self._made = made
        self._lost = lost
        self._calls: dict[int, Call] = {}
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
        """The caller has made room, which nobody has used yet."""
        self._answered = False
        self._idle_since: tuple[float, int] | None = None
        """Since when no call is under way, and the last one before that."""
        self._leaving = False
        """One of the two begins no further calls here."""
        self._over = False
        """We have hung up."""

    # -- what the event loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._pinged)
        self._http2 = Http2()
        self._http2.initiate_connection()
        self._http2.increment_flow_control_window(WINDOW_BYTES)
        self._flush()
        self.slot.peer = self
        self._made(self)

    def data_received(self, data: bytes) -> None:
        if self._over:
            # It may not have heard yet that we hung up; if it goes on and on, it does not want to.
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

    # -- what a call says; if the caller has taken it back or hung up, the word of that is on its way to the call

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
            # It may have more to send, which nobody will read.
            self._reset(stream_id, ErrorCodes.NO_ERROR)
        self._leave_if_done()

    # -- what the server says

    @property
    def busy(self) -> bool:
        return bool(self._calls)

    def overdue(self, now: float, seconds: float) -> bool:
        """Whether no call was under way for long."""
        if self._calls or self._idle_since is None or self._idle_since[1] != self._last_id:
            self._idle_since = (now, self._last_id)
        return now - self._idle_since[0] > IDLE_SECONDS

    def abort(self) -> None:
        """Hang up at once."""
        self._over = True
        self._transport.abort()

    def go_away(self) -> None:
        """Ask the caller to begin no further calls here; those under way go on."""
        if not self._over:
            self._leaving = True
            self._flush()
            self._transport.write(GoAwayFrame(last_stream_id=self._last_id).serialize())
            self._leave_if_done()

    leave = go_away

    def hang_up(self) -> None:
        """Say nothing more; who does not take in time what was said so far goes without."""
        if not self._over:
            self._flush()
            self._over = True
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._transport.abort)
            self._unread.clear()
            if self._transport.is_closing() or not self._transport.can_write_eof():
                self._transport.close()
                return
            # To close with something unread would take from the caller what it was sent last.
            try:
                self._transport.write_eof()
            except OSError:
                self._transport.abort()
            else:
                if not self._reading:
                    self._transport.resume_reading()

    # -- inside

    def _go_on(self) -> None:
        """Take in more if there is more, and if the caller reads; from the line only what is not here already."""
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
            # What the package says of it may hold what was sent, a token too. The caller gets the code of the error.
            log.info("a caller was hung up on: %s", type(error).__name__)
            self.hang_up()
        except Exception:
            log.warning("a caller was hung up on: what it sent can not be handled", exc_info=True)
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
                self._taken_back(event)
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
            seconds = _seconds(headers.get("grpc-timeout"))
            call = self._calls[stream_id] = Call(self, stream_id, headers.get(":path", ""), headers, seconds=seconds)
            self._accept(call)

    def _decline(self, event: RequestReceived, status: str) -> None:
        """Answer what is no call."""
        stream_id = event.stream_id or 0
        self.send_headers(stream_id, ((":status", status),), end=True)
        if event.stream_ended is None:
            self._reset(stream_id, ErrorCodes.NO_ERROR)

    def _feed(self, event: DataReceived) -> None:
        size = event.flow_controlled_length or 0
        # Of the line as a whole nothing is held back: a call that is not read must not hold up the others.
        self._owed += size
        if self._owed >= WINDOW_BYTES // 2:
            self._http2.increment_flow_control_window(self._owed)
            self._owed = 0
        if not event.data and event.stream_ended is None:
            self._count(1)
        if call := self._calls.get(event.stream_id or 0):
            call.feed(event.data or b"", size)

    def _taken_back(self, event: StreamReset) -> None:
        if (call := self._calls.pop(event.stream_id or 0, None)) is None:
            return
        call.drop()
        self._resets += 1
        if self._resets > MOST_RESETS:
            self._calm("it took back too many calls")
        self._leave_if_done()

    def _count(self, cost: int) -> None:
        """Bear with what asks for nothing, up to a point."""
        self._idle += cost
        if self._idle > MOST_IDLE:
            self._calm("it sent too much that asks for nothing")

    def _calm(self, reason: str) -> None:
        if not self._over:
            log.info("a caller was hung up on: %s", reason)
            self._http2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            self.hang_up()

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        with suppress(ProtocolError):
            self._http2.reset_stream(stream_id, code)
            self._flush_soon()

    def _pump(self) -> None:
        """Let all calls send what waits."""
        for call in [call for call in self._calls.values() if call.waiting]:
            call.pump()

    def _ping(self) -> None:
        self._resets = self._idle = 0
        self._answered = False
        self._http2.ping(_PING)
        self._flush()
        self._timer = asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._pinged)

    def _pinged(self) -> None:
        if self._answered:
            self._timer = asyncio.get_running_loop().call_later(PING_SECONDS - ANSWER_SECONDS, self._ping)
        else:
            log.info("a caller was hung up on: it says nothing")
            self.abort()

    def _leave_if_done(self) -> None:
        if self._leaving and not self._calls:
            self.hang_up()

    def _flush_soon(self, size: int = 0) -> None:
        """Send what is ready when everybody who is at it has had a turn: one packet costs less than four.

        What has grown large goes at once, so that the transport can say that it is too much.
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


def _seconds(text: str | None) -> float | None:
    """Return how long a caller will wait; None if it does not say, or not in a way that has a meaning."""
    found = _TIMEOUT.fullmatch(text or "")
    return int(found[1]) * _UNITS[found[2]] if found else None
