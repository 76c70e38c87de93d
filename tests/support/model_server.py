"""A server that plays a provider of models, over real sockets, piece by piece, as well or as badly as a test wants.

It speaks HTTP by hand, so that it can break off, stall, answer nonsense, or cut its answer wherever it likes. What it
was asked is kept, and when each connection was closed by the other side.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any

SSE = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    """With small names."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Line:
    """The connection on which a request is answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.closed_at: float | None = None
        """When the other side was seen to have gone, as of `perf_counter`."""

    async def head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Because", *(f"{name}: {value}" for name, value in headers.items())]
        await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def chunk(self, data: bytes) -> None:
        """Send a piece of a body of unknown length; an empty one ends it."""
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def gone(self) -> None:
        """Wait until the other side closes the connection."""
        try:
            while await self._reader.read(4096):
                pass
        except ConnectionError:
            pass
        self.closed_at = perf_counter()

    def reset(self) -> None:
        """Break the connection off, without a farewell."""
        self._writer.transport.abort()


Reply = Callable[[Asked, Line], Awaitable[None]]


@dataclass
class ModelServer:
    """Gives each request the next of its replies, and the last one for ever."""

    replies: list[Reply] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    _tasks: set["asyncio.Task[Any]"] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def play(self, *replies: Reply) -> None:
        """Answer with these from now on."""
        self.replies[:] = replies

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while (asked := await _request(reader)) is not None:
                self.asked.append(asked)
                line = Line(reader, writer)
                self.lines.append(line)
                reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
                await reply(asked, line)
                if writer.is_closing():
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # cancelled by `stop` alone
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def model_server(*replies: Reply) -> AsyncIterator[ModelServer]:
    """Serve on a free port of this machine for as long as the context lasts."""
    made = ModelServer(replies=list(replies))
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, limit=64 * 1024 * 1024)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await made.stop()


def stream(
    data: bytes | str, *, cut: int | Sequence[int] | None = None, headers: dict[str, str] | None = None
) -> Reply:
    """Answer with a stream of events: at once, or cut into pieces of a size, or at these places."""
    body = data.encode() if isinstance(data, str) else data

    async def reply(asked: Asked, line: Line) -> None:
        await line.head(200, {**SSE, **(headers or {}), "Transfer-Encoding": "chunked"})
        for piece in _cut(body, cut):
            await line.chunk(piece)
            if cut is not None:
                await asyncio.sleep(0)
        await line.chunk(b"")

    return reply


def answer(status: int, body: bytes | str | object, *, headers: dict[str, str] | None = None) -> Reply:
    """Answer with a whole body; what is neither bytes nor text is sent as JSON."""
    data = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    kind = {} if isinstance(body, bytes | str) else JSON

    async def reply(asked: Asked, line: Line) -> None:
        await line.head(status, {**kind, **(headers or {}), "Content-Length": str(len(data))})
        await line.raw(data)

    return reply


def echo_key(status: int) -> Reply:
    """Answer with an error that says back whatever the request was authorised with."""

    async def reply(asked: Asked, line: Line) -> None:
        said = {name: value for name, value in asked.headers.items() if name not in ("host", "content-length")}
        message = f"Not with these headers: {json.dumps(said)}"
        await answer(status, {"error": {"message": message, "type": "bad", "code": "bad"}})(asked, line)

    return reply


def stalls(data: bytes | str = b"") -> Reply:
    """Send the beginning of a stream, and then nothing, until the other side goes."""
    body = data.encode() if isinstance(data, str) else data

    async def reply(asked: Asked, line: Line) -> None:
        await line.head(200, {**SSE, "Transfer-Encoding": "chunked"})
        if body:
            await line.chunk(body)
        await line.gone()

    return reply


async def silent(asked: Asked, line: Line) -> None:
    """Take the request, and say nothing."""
    await line.gone()


def breaks_off(data: bytes | str = b"") -> Reply:
    """Send the beginning of a stream, and reset the connection."""
    body = data.encode() if isinstance(data, str) else data

    async def reply(asked: Asked, line: Line) -> None:
        await line.head(200, {**SSE, "Transfer-Encoding": "chunked"})
        if body:
            await line.chunk(body)
        line.reset()

    return reply


def endless(data: bytes | str, *, first: bytes = b"") -> Reply:
    """Send the same events again and again after some others, until the other side goes."""
    body = (data.encode() if isinstance(data, str) else data) * 100

    async def reply(asked: Asked, line: Line) -> None:
        await line.head(200, {**SSE, "Transfer-Encoding": "chunked"})
        if first:
            await line.chunk(first)
        while True:
            await line.chunk(body)

    return reply


def raw(data: bytes) -> Reply:
    """Send bytes that need not be HTTP, and close."""

    async def reply(asked: Asked, line: Line) -> None:
        await line.raw(data)
        line._writer.close()

    return reply


def _cut(body: bytes, cut: int | Sequence[int] | None) -> Iterable[bytes]:
    if cut is None:
        return [body] if body else []
    places = range(cut, len(body), cut) if isinstance(cut, int) else cut
    bounds = [0, *places, len(body)]
    return [body[start:end] for start, end in pairwise(bounds) if end > start]


async def _request(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    method, path, _ = first.split(" ", 2)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(method, path, headers, body)
