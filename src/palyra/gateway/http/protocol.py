"""One connection of the HTTP API: uvicorn's own, with bounds on what it takes in and on how long it waits.

The parser would keep the head of a request, or the trailers behind a body, however long they are, before anybody has
shown a token. Bodies are handed on as they come and need no bound here.

A head has to come within a time in all. A body may take as long as it makes progress: somebody may be on a slow line.

What is sent and not read fills the buffers of the kernel, then ours, and then whoever sends has to wait. A reader that
takes next to nothing for a while is cut off. Closing would not do: it waits until everything was read.
"""

import asyncio
import logging
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from palyra.core.errors import PalyraError
from palyra.gateway.connections import Slot
from palyra.gateway.http.wire import problem
from palyra.gateway.status import RequestTimeout, RequestTooLarge

MAX_HEAD_BYTES = 64 * 1024
MIN_BODY_BYTES = 4 * 1024
"""What a client has to send of a body in the time that it has for a head."""
SLOT = "palyra.slot"
"""Where a request finds the slot of its connection, in the state of its scope."""
LEAST_BYTES = 16 * 1024
"""What a reader has to take in the time that it is given."""


log = logging.getLogger(__name__)


class BoundedProtocol(HttpToolsProtocol):
    """See the module."""

    slot: Slot
    """Set before the connection is made."""
    _complete = True
    """The last request that has begun is here to its end."""
    _received_bytes = 0
    _awaited: tuple[float, int] | None = None
    """Since when something of a request is awaited, and how much had come by then."""
    _steps = 0
    """How often the parser had something to hand on."""
    _kept_bytes = 0
    """How much came since then."""
    _unread_bytes = 0
    """How much waited for the reader when we last looked."""
    _look: asyncio.TimerHandle | None = None

    @staticmethod
    def patience() -> float:
        """Return for how many seconds a reader may take next to nothing."""
        return 30.0

    @property
    def busy(self) -> bool:
        """See `Peer`."""
        return bool(self.cycle) and not self.cycle.response_complete

    def overdue(self, now: float, seconds: float) -> bool:
        """See `Peer`. Between requests, uvicorn's own timer runs; while we do not read, nothing can come."""
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
        self._look_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look_no_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self._look_no_more()
        self.slot.release()
        super().connection_lost(exc)

    def _look_later(self) -> None:
        self._look_no_more()
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._look = self.loop.call_later(self.patience(), self._judge_reader)

    def _look_no_more(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _judge_reader(self) -> None:
        if self._unread_bytes - self.transport.get_write_buffer_size() < LEAST_BYTES:
            log.info("a client was cut off: it did not read what was sent to it")
            self.transport.abort()
        else:
            self._look_later()

    def _refuse(self, error: PalyraError) -> None:
        # An answer that is under way must not be mixed with this one; before the first step there is none.
        if not self._steps or self.cycle.response_complete:
            answer = problem(error)
            head = [STATUS_LINE[answer.status_code] + b"connection: close"]
            head += [name + b": " + value for name, value in answer.raw_headers]
            self.transport.write(b"\r\n".join([*head, b"", bytes(answer.body)]))
        self.transport.close()


def bounded(patience: Callable[[], float]) -> type[BoundedProtocol]:
    """Return the protocol of connections whose readers have so many seconds; asked each time, since it may change."""
    return type("PatientProtocol", (BoundedProtocol,), {"patience": staticmethod(patience)})
