"""A caller that speaks HTTP/2 by hand: what no library would send, it can."""

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    UnknownFrameReceived,
)
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame

SECONDS = 60.0
CONFIG = H2Configuration(
    client_side=True,
    header_encoding="utf-8",
    validate_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)


@dataclass
class Answer:
    """What has come for one call."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    over: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(self.headers["grpc-status"])

    @property
    def code(self) -> str:
        return self.headers.get("palyra-error-code", "")

    @property
    def message(self) -> bytes:
        """The one message of it."""
        flag, length = struct.unpack_from(">BI", self.body)
        assert (flag, length) == (0, len(self.body) - 5)
        return self.body[5:]


class _Http2(H2Connection):
    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        # The package hears nothing more after a goodbye; a caller still waits for its answers.
        return [], [UnknownFrameReceived(frame=frame)]


class Wire:
    """One connection. What it is sent it takes in when asked, and makes room for it unless told not to."""

    def __init__(self, address: str, *, settings: dict[SettingCodes, int] | None = None, reads: bool = True) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS)
        self.http2 = _Http2(CONFIG)
        self.answers: dict[int, Answer] = {}
        self.goodbye: int | None = None
        self.closed = False
        self._reads = reads
        if settings is not None:
            self.http2.local_settings = Settings(client=True, initial_values=settings)
        self.http2.initiate_connection()
        self.flush()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # -- what is sent

    def call(
        self,
        path: str,
        body: bytes | None = None,
        *,
        headers: dict[str, str] | None = None,
        end: bool = True,
        flush: bool = True,
    ) -> int:
        """Begin a call; `body` is what comes in its frames, None for nothing yet."""
        stream_id = self.http2.get_next_available_stream_id()
        self.http2.send_headers(stream_id, head(path, headers), end_stream=end and body is None)
        self.answers[stream_id] = Answer()
        if body is not None:
            self.data(stream_id, body, end=end, flush=flush)
        elif flush:
            self.flush()
        return stream_id

    def data(
        self, stream_id: int, data: bytes, *, end: bool = True, padding: int | None = None, flush: bool = True
    ) -> None:
        """Send data, waiting for room as often as it takes."""
        rest = memoryview(data)
        extra = 0 if padding is None else padding + 1
        while True:
            self.until(lambda: self.http2.local_flow_control_window(stream_id) > extra)
            room = min(self.http2.local_flow_control_window(stream_id), self.http2.max_outbound_frame_size) - extra
            piece, rest = rest[:room], rest[room:]
            self.http2.send_data(stream_id, bytes(piece), end_stream=end and not rest, pad_length=padding)
            if flush:
                self.flush()
            if not rest:
                return

    def flush(self) -> None:
        self.raw(self.http2.data_to_send())

    def raw(self, data: bytes) -> None:
        """Send bytes that the protocol knows nothing of; a line that is closed meanwhile is no error."""
        try:
            self.socket.sendall(data)
        except (ConnectionError, TimeoutError):
            self.closed = True

    # -- what comes

    def until(self, condition: Callable[[], bool]) -> None:
        """Take in what comes until something is true."""
        deadline = monotonic() + SECONDS
        while not condition():
            assert not self.closed, f"the line was closed, with {self.goodbye}"
            assert monotonic() < deadline, "it did not come in time"
            self.receive()

    def answer(self, stream_id: int) -> Answer:
        """Wait for the end of a call."""
        answer = self.answers[stream_id]
        self.until(lambda: answer.over or answer.reset is not None)
        return answer

    def hung_up(self) -> int | None:
        """Wait until the line is closed; return the reason, if one was given."""
        while not self.closed:
            self.receive()
        return self.goodbye

    def receive(self) -> None:
        """Take in what comes next."""
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            data = b""
        self.closed = not data
        for event in self.http2.receive_data(data):
            self._note(event)
        if not self.closed:
            self.flush()

    def _note(self, event: Event) -> None:
        match event:
            case ResponseReceived() | TrailersReceived():
                self._of(event.stream_id).headers |= {str(name): str(value) for name, value in event.headers or ()}
            case DataReceived():
                self._of(event.stream_id).body += event.data or b""
                if self._reads and event.flow_controlled_length and event.stream_id:
                    self.http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case StreamEnded():
                self._of(event.stream_id).over = True
            case StreamReset():
                self._of(event.stream_id).reset = int(event.error_code or ErrorCodes.NO_ERROR)
            case UnknownFrameReceived(frame=GoAwayFrame() as goodbye):
                self.goodbye = goodbye.error_code
            case _:
                pass

    def _of(self, stream_id: int | None) -> Answer:
        return self.answers.setdefault(stream_id or 0, Answer())


def head(path: str, headers: dict[str, str] | None = None) -> list[tuple[str, str]]:
    """Return the head of a call."""
    usual = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return list((usual | (headers or {})).items())


def framed(message: bytes) -> bytes:
    """Return a message as it goes over the wire."""
    return struct.pack(">BI", 0, len(message)) + message
