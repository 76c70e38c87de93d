"""Servers behind a URL that answer at first, and then otherwise than they should."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from palyra.core.mcp import McpServer, McpServerState
from palyra.core.tool import CallOutcome
from palyra.journal.engines.sqlite_engine import SqliteEngine
from tests.contract.mcp.conftest import OWNER, Keep
from tests.support.eventually import eventually

Json = Any
KEY = "hunter2-hunter2"
NOTICE = json.dumps(
    {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}
).encode()
TOOL = {"name": "echo", "description": "Say it again.", "inputSchema": {"type": "object", "properties": {}}}


def answer(status: str, body: Json = None, fields: str = "") -> bytes:
    text = json.dumps(body).encode() if body is not None else b""
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{fields}Content-Length: {len(text)}\r\n\r\n"
    return head.encode() + text


def result(number: Json, found: Json, fields: str = "") -> bytes:
    return answer("200 OK", {"jsonrpc": "2.0", "id": number, "result": found}, fields)


@asynccontextmanager
async def speaking(call: Callable[[Json], bytes], *, flood: bool = False) -> AsyncIterator[McpServer]:
    """Serve MCP by hand: a server that calls itself by its key, and answers calls with the bytes that are given.

    It may flood whoever listens to what it has to say by itself.
    """

    def reply(asked: Json, key: str) -> bytes:
        number = asked.get("id")
        match asked.get("method"):
            case "initialize":
                info = {"name": f"echo for {key}", "version": "1"}
                says = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
                return result(number, says, "Mcp-Session-Id: 1\r\n")
            case "tools/list":
                return result(number, {"tools": [TOOL]})
            case "tools/call":
                return call(number)
            case _ if number is None:
                return answer("202 Accepted")
            case _:
                return answer("404 Not Found")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
                fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                if head[0].startswith("GET") and flood:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
                    while True:
                        writer.write(b"event: message\ndata: " + NOTICE + b"\n\n")
                        await writer.drain()
                elif not head[0].startswith("POST"):
                    said = answer("405 Method Not Allowed")
                else:
                    said = reply(json.loads(body), fields.get("x-key", ""))
                writer.write(said)
                await writer.drain()
                if not said:
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        yield McpServer(url=url, allow_private=True, headers={"X-Key": "vault:key"}, timeout_seconds=60)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (answer("401 Unauthorized"), "HTTP status 401 (Unauthorized); check the `headers` in its settings"),
        (answer("500 Whatever"), "HTTP status 500 (Internal Server Error)"),
        (answer("599 Whatever"), "HTTP status 599"),
        (b"", "The MCP server has ended"),
    ],
    ids=["401", "500", "599", "cut off"],
)
async def test_a_call_that_is_not_answered_ends_with_the_reason(
    sqlite: SqliteEngine, keep: Keep, given: bytes, reason: str
) -> None:
    async with speaking(lambda number: given) as server, keep(sqlite, s=server) as kept:
        await kept.secrets.set(OWNER, "key", KEY.encode())
        await kept.mcp.restart("s")
        await kept.accepts()
        done = await kept.call("mcp.s.echo")
    assert done.outcome is CallOutcome.ERROR
    assert reason in done.text
    assert "cancelled" not in done.text


async def test_what_a_server_calls_itself_shows_no_secret_that_it_was_sent(sqlite: SqliteEngine, keep: Keep) -> None:
    async with speaking(lambda number: answer("500 No")) as server, keep(sqlite, s=server) as kept:
        await kept.secrets.set(OWNER, "key", KEY.encode())
        await kept.mcp.restart("s")
        found = await kept.reaches(McpServerState.READY)
    assert found.server_name == "echo for [secret key] 1"


async def test_one_that_floods_is_ended(sqlite: SqliteEngine, keep: Keep) -> None:
    async with speaking(lambda number: b"", flood=True) as server, keep(sqlite, s=server) as kept:
        await kept.secrets.set(OWNER, "key", KEY.encode())
        await kept.mcp.restart("s")
        await eventually(lambda: "it sent too much" in kept.status().reason, timeout=60)


@pytest.mark.parametrize(
    ("is_cut", "reason"),
    [(True, "the connection to it failed: "), (False, "it did not answer in time")],
    ids=["cut off", "silent"],
)
async def test_a_connection_that_leads_nowhere_is_the_reason(
    sqlite: SqliteEngine, keep: Keep, is_cut: bool, reason: str
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            if not is_cut:
                await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
    async with keep(sqlite, s=McpServer(url=url, allow_private=True, timeout_seconds=60 if is_cut else 1)) as kept:
        found = await kept.reaches(McpServerState.FAILED)
    listening.close()
    assert found.reason.startswith(reason)
    assert not found.reason.endswith(": ")
