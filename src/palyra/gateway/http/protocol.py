"""One connection of the HTTP door: uvicorn's own, with a bound on what it takes in besides bodies.

The parser would keep the head of a request, or the trailers behind a body, however long they are, before anybody has
shown a token. Bodies are handed on as they come and need no bound here.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from palyra.gateway.http.wire import problem
from palyra.gateway.status import RequestTooLarge

MAX_HEAD_BYTES = 64 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """See the module."""

    _steps = 0
    """How often the parser had something to hand on."""
    _kept_bytes = 0
    """How much came since then."""

    def data_received(self, data: bytes) -> None:
        before = self._steps
        super().data_received(data)
        self._kept_bytes = self._kept_bytes + len(data) if self._steps == before else 0
        if self._kept_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse()

    def on_headers_complete(self) -> None:
        self._steps += 1
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._steps += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._steps += 1
        super().on_message_complete()

    def _refuse(self) -> None:
        # An answer that is under way must not be mixed with this one; before the first step there is none.
        if not self._steps or self.cycle.response_complete:
            answer = problem(RequestTooLarge("The head of the request is larger than 64 KiB."))
            head = [b"HTTP/1.1 413 Content Too Large", b"connection: close"]
            head += [name + b": " + value for name, value in answer.raw_headers]
            self.transport.write(b"\r\n".join([*head, b"", bytes(answer.body)]))
        self.transport.close()
