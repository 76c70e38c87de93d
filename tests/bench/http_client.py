"""An HTTP client that costs little: one kept connection, requests made beforehand, answers looked at when complete."""

import asyncio
import json
import re
from typing import Self, cast
from urllib.parse import urlsplit

from tests.support.daemon import Daemon

END = b"\r\n0\r\n\r\n"
"""Ends a chunked answer. No event holds it: JSON has no bare line ends."""
GOOD = b"HTTP/1.1 200"
DONE = b"event: run_completed\n"

_DATA = re.compile(rb"^data: (.*)$", re.MULTILINE)
_CHUNK_HEAD = re.compile(rb"\r\n[0-9a-f]+\r\n")


class Refused(Exception):
    """The daemon did not answer as it should."""


class HttpClient(asyncio.Protocol):
    """One connection. Asks one thing at a time."""

    def __init__(self, daemon: Daemon) -> None:
        self._address = urlsplit(daemon.address)
        self._token = daemon.token
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[bytes] | None = None
        self._last = b""
        self.pieces: list[bytes] = []
        """What has come of the answer under way."""

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._transport is not None:
            self._transport.close()

    def chat(self, text: str, session: str) -> bytes:
        """Return the request that sends a message and follows its run."""
        body = json.dumps({"text": text, "session": {"key": session}}).encode()
        return self.request("POST", "/console/v1/chat", body)

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return a request as it goes over the wire."""
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: {self._address.netloc}\r\nauthorization: Bearer {self._token}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def turn(self, request: bytes) -> bytes:
        """Send a message and return the whole answer, which must tell of a run that completed."""
        answer = await self.ask(request)
        if not answer.startswith(GOOD) or DONE not in answer:
            raise Refused(answer[:2000].decode(errors="replace"))
        return answer

    async def ask(self, request: bytes) -> bytes:
        """Send a request and return the whole chunked answer."""
        if self._transport is None:
            await self._connect()  # the daemon ends connections on which nothing was asked for some seconds
        self._waiting = self._loop.create_future()
        self.send(request)
        return await self._waiting

    def send(self, request: bytes) -> None:
        """Send a request whose answer is gathered in `pieces`."""
        assert self._transport is not None
        self.pieces = []
        self._transport.write(request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own, which is no subclass

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        self._last = data[-len(END) :] if len(data) >= len(END) else (self._last + data)[-len(END) :]
        # A refusal has no chunks.
        if self._waiting is not None and (self._last == END or not self.pieces[0].startswith(GOOD)):
            waiting, self._waiting = self._waiting, None
            waiting.set_result(b"".join(self.pieces))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(Refused(f"the connection was lost: {exc}"))

    async def _connect(self) -> None:
        host, port = self._address.hostname, self._address.port
        assert host is not None
        assert port is not None
        await self._loop.create_connection(lambda: self, host, port)


def events_of(answer: bytes) -> list[bytes]:
    """Return the JSON of each event in an answer, or in the pieces of one."""
    return _DATA.findall(_CHUNK_HEAD.sub(b"", answer))
