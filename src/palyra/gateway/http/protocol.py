"""One connection of the HTTP API: uvicorn's protocol, with limits on input and waiting times.

The parser would buffer the head of a request, or the trailers after a body, however long they are, before the client
has shown a token. Bodies are handed on as they come and need no limit here.

A head has a total timeout. A body may take as long as it makes progress: the client may have a slow connection.

Output that is not read fills the buffers of the kernel, then ours, and then the sender has to wait. A reader that takes
almost nothing for a while is disconnected. Closing would not do: it waits until everything was read.
"""

import asyncio
import logging
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from palyra.core.errors import PalyraError
from palyra.gateway.connections import ConnectionSlot
from palyra.gateway.error_status import RequestTimeout, RequestTooLarge
from palyra.gateway.http.messages import problem_response

MAX_HEAD_BYTES = 64 * 1024
MIN_BODY_BYTES = 4 * 1024
"""How much of a body a client has to send in the time allowed for a head."""
SLOT = "palyra.slot"
"""The key of the connection's slot in the state of a request's scope."""
MIN_BODY_RATE_BYTES = 16 * 1024
"""How much a reader has to take within its timeout."""


log = logging.getLogger(__name__)


class BoundedProtocol(HttpToolsProtocol):
    """See the module."""

    slot: ConnectionSlot
    """Set before the connection is made."""
    _complete = True
    """The last request that has begun was received completely."""
    _received_bytes = 0
    _awaited: tuple[float, int] | None = None
    """Since when input of a request is awaited, and how much had been received by then."""
    _steps = 0
    """How often the parser has handed on something."""
    _kept_bytes = 0
    """How much was received since then."""
    _unread_bytes = 0
    """How much was unread at the last check."""
    _reader_timer: asyncio.TimerHandle | None = None

    @staticmethod
    def read_timeout() -> float:
        """Return for how many seconds a reader may take almost nothing."""
        return 30.0

    @property
    def busy(self) -> bool:
        """See `Peer`."""
        return bool(self.cycle) and not self.cycle.response_complete

    def overdue(self, now: float, seconds: float) -> bool:
        """See `Peer`. Between requests, uvicorn's own timer runs; while we do not read, nothing can arrive."""
        answering = self.busy and self._complete
        if answering or self.timeout_keep_alive_task is not None or self.flow.read_paused:
            self._awaited = None
            return False
        if self._awaited is None:
            self._awaited = (now, self._received_bytes)
        since, before = self._awaited
        if now - since <= seconds:
            return False
        if self.busy and self._received_bytes - before >= MIN_BODY_BYTES:
            self._awaited = (now, self._received_bytes)
            return False
        return True

    def leave(self) -> None:
        """See `Peer`."""
        if self._kept_bytes:
            self._refuse(RequestTimeout())
        else:
            self.transport.close()

    def abort(self) -> None:
        """See `Peer`."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.slot.peer = self

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        before = self._steps
        super().data_received(data)
        self._kept_bytes = self._kept_bytes + len(data) if self._steps == before else 0
        if self._kept_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(RequestTooLarge("The head of the request is larger than 64 KiB."))

    def on_message_begin(self) -> None:
        self._complete = False
        super().on_message_begin()
        self.scope["state"][SLOT] = self.slot

    def on_headers_complete(self) -> None:
        self._steps += 1
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._steps += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._complete = True
        self._steps += 1
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_reader_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_reader_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_reader_timer()
        self.slot.release()
        super().connection_lost(exc)

    def _start_reader_timer(self) -> None:
        self._stop_reader_timer()
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._reader_timer = self.loop.call_later(self.read_timeout(), self._judge_reader)

    def _stop_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _judge_reader(self) -> None:
        if self._unread_bytes - self.transport.get_write_buffer_size() < MIN_BODY_RATE_BYTES:
            log.info("a connection was closed: the client did not read what was sent")
            self.transport.abort()
        else:
            self._start_reader_timer()

    def _refuse(self, error: PalyraError) -> None:
        # A response in progress must not be mixed with this one; before the first step there is none.
        if not self._steps or self.cycle.response_complete:
            answer = problem_response(error)
            head = [STATUS_LINE[answer.status_code] + b"connection: close"]
            head += [name + b": " + value for name, value in answer.raw_headers]
            self.transport.write(b"\r\n".join([*head, b"", bytes(answer.body)]))
        self.transport.close()


def bounded(read_timeout: Callable[[], float]) -> type[BoundedProtocol]:
    """Return the protocol with this read timeout; it is called each time, since it may change."""
    return type("TimedProtocol", (BoundedProtocol,), {"read_timeout": staticmethod(read_timeout)})
