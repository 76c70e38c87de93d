"""Servers behind a URL: reached where the configuration says, and nowhere else."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from palyra.core.mcp import McpServer, McpServerState
from palyra.core.tool import CallOutcome
from palyra.journal.engines.sqlite_engine import SqliteEngine
from tests.contract.mcp.conftest import PALYRAS_PORT, HttpServer, Keep


@asynccontextmanager
async def answering(answer: Callable[[bytes], bytes]) -> AsyncIterator[int]:
    """Answer every request at a port by hand."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(answer(head))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_a_server_over_http_is_used_like_any_other(
    sqlite: SqliteEngine, keep: Keep, http_server: HttpServer
) -> None:
    async with keep(sqlite, s=McpServer(url=http_server.url, allow_private=True, headers={"X-Key": "abc"})) as kept:
        await kept.accepts("note")
        done = await kept.call("mcp.s.note", {"text": "milk"})
        assert kept.status().transport == "http"
    assert (done.outcome, done.text) == (CallOutcome.OK, "noted 'milk' 1x")


async def test_this_machine_is_reached_only_if_the_owner_says_so(
    sqlite: SqliteEngine, keep: Keep, http_server: HttpServer
) -> None:
    async with keep(sqlite, s=McpServer(url=http_server.url)) as kept:
        found = await kept.reaches(McpServerState.FAILED)
    assert "which is this machine" in found.reason
    assert "allow_private" in found.reason


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", socket.gethostname()])
async def test_palyra_itself_is_never_reached(sqlite: SqliteEngine, keep: Keep, host: str) -> None:
    url = f"http://{host}:{PALYRAS_PORT}/mcp"
    async with keep(sqlite, s=McpServer(url=url, allow_private=True)) as kept:
        found = await kept.reaches(McpServerState.FAILED)
    assert "Palyra itself" in found.reason or "has no address" in found.reason


async def test_a_redirect_to_another_place_is_not_followed(sqlite: SqliteEngine, keep: Keep) -> None:
    asked: list[bytes] = []

    def elsewhere(head: bytes) -> bytes:
        asked.append(head)
        return b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

    async with answering(elsewhere) as other:
        moved = f"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:{other}/mcp\r\nContent-Length: 0\r\n\r\n"
        async with answering(lambda head: moved.encode()) as port:
            server = McpServer(url=f"http://127.0.0.1:{port}/mcp", allow_private=True, headers={"X-Key": "abc"})
            async with keep(sqlite, s=server) as kept:
                await kept.reaches(McpServerState.FAILED)
    assert asked == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + b"x" * (9 << 20), "more than 8 MiB"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n\r\nx",
            "compresses its responses",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: " + b"x" * (9 << 20), ""),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\nnope", ""),
        (b"what is HTTP?\r\n\r\n", ""),
        (b"", ""),
    ],
    ids=["huge", "packed", "huge event", "no json", "no http", "nothing"],
)
async def test_an_answer_that_is_none_is_the_reason(
    sqlite: SqliteEngine, keep: Keep, answer: bytes, reason: str
) -> None:
    async with answering(lambda head: answer) as port:
        async with keep(sqlite, s=McpServer(url=f"http://127.0.0.1:{port}/mcp", allow_private=True)) as kept:
            found = await kept.reaches(McpServerState.FAILED, seconds=60)
    assert found.reason
    assert reason in found.reason


async def test_nobody_there_is_the_reason(sqlite: SqliteEngine, keep: Keep) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with keep(sqlite, s=McpServer(url=f"http://127.0.0.1:{port}/mcp", allow_private=True)) as kept:
        found = await kept.reaches(McpServerState.FAILED)
    assert "cannot be reached" in found.reason


async def test_a_server_that_goes_away_is_found_again(
    sqlite: SqliteEngine, keep: Keep, http_server: HttpServer
) -> None:
    async with keep(sqlite, s=McpServer(url=http_server.url, allow_private=True, timeout_seconds=60)) as kept:
        await kept.accepts("note", "end")
        crashed = await kept.call("mcp.s.end")
        assert crashed.outcome is CallOutcome.ERROR
        lost = await kept.call("mcp.s.note", {"text": "a"})
        assert lost.outcome is CallOutcome.ERROR
        await kept.reaches(McpServerState.FAILED)
        await asyncio.to_thread(http_server.start)
        await kept.reaches(McpServerState.READY)
        found = await kept.call("mcp.s.note", {"text": "a"})
    assert found.text == "noted 'a' 1x"
