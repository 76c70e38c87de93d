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

from h2.config import H2Configuration
from h2.connection import H2Connection
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
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from palyra.gateway.grpc.call import Call, Headers

MOST_CALLS = 2_048
MOST_HEADER_BYTES = 16 * 1024
WINDOW_BYTES = 1024 * 1024
PING_SECONDS = 60.0
ANSWER_SECONDS = 20.0
MOST_RESETS = 1_000
"""So many calls a caller may take back between two pings. Opening and taking back is cheap for it, and dear for us."""

_CONFIG = H2Configuration(
    client_side=False, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
)
_PING = b"palyra.."
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])", re.ASCII)
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_GIVES_UP = frozenset({SettingCodes.INITIAL_WINDOW_SIZE, SettingCodes.MAX_FRAME_SIZE})

log = logging.getLogger(__name__)


class _Http2(H2Connection):
    MAX_CLOSED_STREAMS = 64
    """How many ended calls are remembered, to tell a late frame from a wrong one. A line may carry many in its life."""


class Connection(asyncio.Protocol):
    """See the module. `accept` begins a call, `lost` is told when the line is down."""

    def __init__(self, accept: Callable[[Call], None], lost: Callable[["Connection"], None]) -> None:
        self._accept = accept
        self._lost = lost
        self._calls: dict[int, Call] = {}
        self._paused = False
        self._resets = 0
        self._owed = 0
        self._last_id = 0
        self._answered = True

    # -- what the event loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._http2 = _Http2(config=_CONFIG)
        self._http2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: MOST_CALLS,
                SettingCodes.MAX_HEADER_LIST_SIZE: MOST_HEADER_BYTES,
            },
        )
        self._http2.initiate_connection()
        self._http2.increment_flow_control_window(WINDOW_BYTES)
        self._flush()
        self._pinging = asyncio.get_running_loop().call_later(PING_SECONDS, self._ping)

    def data_received(self, data: bytes) -> None:
        try:
            events = self._http2.receive_data(data)
            for event in events:
                self._handle(event)
        except ProtocolError as error:
            # What it wants to say to the caller about this is ready to be sent.
            log.info("a caller was hung up on: %s", error)
            self._flush()
            self._transport.close()
        else:
            self._flush()

    def pause_writing(self) -> None:
        self._paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        self._transport.resume_reading()
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pinging.cancel()
        for call in list(self._calls.values()):
            call.drop()
        self._calls.clear()
        self._lost(self)

    # -- what a call says; if the caller has taken it back or hung up, the word of that is on its way to the call

    def send_headers(self, stream_id: int, headers: Headers, *, end: bool) -> None:
        with suppress(ProtocolError):
            self._http2.send_headers(stream_id, headers, end_stream=end)
            self._flush()

    def send_data(self, stream_id: int, data: memoryview) -> int:
        sent = 0
        try:
            while sent < len(data) and not self._paused:
                room = min(self._http2.local_flow_control_window(stream_id), self._http2.max_outbound_frame_size)
                if room <= 0:
                    break
                self._http2.send_data(stream_id, bytes(data[sent : sent + room]))
                sent = min(len(data), sent + room)
                self._flush()
        except ProtocolError:
            return len(data)
        return sent

    def grant(self, stream_id: int, size: int) -> None:
        with suppress(ProtocolError):
            self._http2.increment_flow_control_window(size, stream_id)
            self._flush()

    def ended(self, stream_id: int) -> None:
        call = self._calls.pop(stream_id, None)
        if call is not None and not call.complete:
            # It may have more to send, which nobody will read.
            with suppress(ProtocolError):
                self._http2.reset_stream(stream_id, ErrorCodes.NO_ERROR)
                self._flush()

    # -- what the server says

    def go_away(self) -> None:
        """Ask the caller to begin no further calls here; those under way go on."""
        self._transport.write(GoAwayFrame(last_stream_id=self._last_id).serialize())

    def close(self) -> None:
        """Hang up, once what was written has been sent."""
        self._transport.close()

    def abort(self) -> None:
        """Hang up at once."""
        self._transport.abort()

    # -- inside

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
                self._pump(event.stream_id or None)
            case RemoteSettingsChanged() if not _GIVES_UP.isdisjoint(event.changed_settings):
                self._pump()
            case PingAckReceived():
                self._answered = True
            case ConnectionTerminated():
                self._transport.close()
            case _:
                pass

    def _open(self, event: RequestReceived) -> None:
        stream_id = self._last_id = event.stream_id or 0
        headers = {
            name.decode("ascii", "replace"): value.decode("ascii", "replace") for name, value in event.headers or ()
        }
        content_type = headers.get("content-type", "")
        if headers.get(":method") != "POST" or not content_type.startswith("application/grpc"):
            status = "405" if headers.get(":method") != "POST" else "415"
            self._http2.send_headers(stream_id, ((":status", status),), end_stream=True)
            if event.stream_ended is None:
                self._http2.reset_stream(stream_id, ErrorCodes.NO_ERROR)
            return
        path = headers.get(":path", "")
        call = Call(self, stream_id, path, headers, seconds=_seconds(headers.get("grpc-timeout")))
        self._calls[stream_id] = call
        self._accept(call)

    def _feed(self, event: DataReceived) -> None:
        size = event.flow_controlled_length or 0
        # Of the line as a whole nothing is held back: a call that is not read must not hold up the others.
        self._owed += size
        if self._owed >= WINDOW_BYTES // 2:
            self._http2.increment_flow_control_window(self._owed)
            self._owed = 0
        if call := self._calls.get(event.stream_id or 0):
            call.feed(event.data or b"", size)

    def _taken_back(self, event: StreamReset) -> None:
        if (call := self._calls.pop(event.stream_id or 0, None)) is None:
            return
        call.drop()
        self._resets += 1
        if self._resets > MOST_RESETS:
            log.info("a caller was hung up on: it took back %d calls", self._resets)
            self._http2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            self._flush()
            self._transport.close()

    def _pump(self, stream_id: int | None = None) -> None:
        """Let a call send what waits, or all of them."""
        waiting = self._calls.values() if stream_id is None else filter(None, [self._calls.get(stream_id)])
        for call in list(waiting):
            call.pump()

    def _ping(self) -> None:
        self._resets = 0
        self._answered = False
        self._http2.ping(_PING)
        self._flush()
        self._pinging = asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._pinged)

    def _pinged(self) -> None:
        if not self._answered:
            self._transport.abort()
            return
        self._pinging = asyncio.get_running_loop().call_later(PING_SECONDS - ANSWER_SECONDS, self._ping)

    def _flush(self) -> None:
        data = self._http2.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)


def _seconds(text: str | None) -> float | None:
    """Return how long a caller will wait; None if it does not say, or not in a way that has a meaning."""
    found = _TIMEOUT.fullmatch(text or "")
    return int(found[1]) * _UNITS[found[2]] if found else None
