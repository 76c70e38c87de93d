"""The program that talks to one MCP server, with the official SDK, in a process of its own.

It is a process because the SDK takes 50 MB and a second to load, and because what a server sends is read, parsed and
checked here: a server that sends too much, or something that takes forever to check, blocks only itself. The process
gets only its own server's secrets, and it can reach the daemon only through its answers.

Its input is one line of JSON, the launch; then one line for each order (see `orders`). It answers with
lines of JSON. A fatal error is reported as `failed`, and it exits; the process that started it ends what is left.
"""

import asyncio
import json
import os
import select
import socket
from contextlib import suppress
from http import HTTPStatus
from typing import Any, NoReturn

import httpx2
from mcp import Client, MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    Implementation,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from palyra.core.errors import PalyraError
from palyra.core.version import VERSION
from palyra.tools.mcp import http_transport
from palyra.tools.mcp.limits import MAX_LINE_BYTES, MAX_LISTED, MAX_PAGES, MAX_RESULT_CHARS, ServerUnusable, first_fault
from palyra.tools.mcp.orders import (
    CallOrder,
    CancelOrder,
    Launch,
    ListOrder,
    Request,
    UrlLaunch,
    read_launch,
    read_order,
)
from palyra.tools.mcp.stdio_transport import StdioTransport

SAID_CHARS = 500
CLOSED = "Connection closed"
ERROR_STATUS = "Server returned an error response"
"""The SDK's messages for a closed connection and for an error status."""
SHOWN = {"name", "title", "description", "input_schema", "annotations"}
"""The fields of a tool that reach a model or a person, and so must not change unnoticed."""


class McpWorker:
    """Serves the requests for one server."""

    def __init__(self, stream: socket.socket, reader: asyncio.StreamReader) -> None:
        self._stream = stream
        self._reader = reader
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._let_go: set[int] = set()
        """Calls that were cancelled."""
        self._status = 0
        """Of the last HTTP error response; the SDK does not expose it."""

    async def run(self) -> None:
        """Connect, list the tools, and answer until the input ends."""
        launch = read_launch(await self._reader.readline())
        try:
            async with self._client(launch) as client:
                info = client.server_info
                self._send(
                    ready=f"{info.name} {info.version}" if info is not None else "",
                    protocol=client.protocol_version,
                    tools=await _listing(client),
                )
                await self._answer(client)
        except Exception as error:
            self._give_up(error)

    async def _answer(self, client: Client) -> None:
        async with asyncio.TaskGroup() as tasks:
            while line := await self._reader.readline():
                match read_order(line):
                    case CancelOrder(id=number):
                        if (task := self._calls.get(number)) is not None:
                            self._let_go.add(number)
                            task.cancel()
                    case request:
                        self._calls[request.id] = tasks.create_task(self._handle(client, request))
            for task in self._calls.values():
                task.cancel()

    async def _handle(self, client: Client, request: Request) -> None:
        number = request.id
        try:
            match request:
                case CallOrder():
                    result = await client.call_tool(request.tool, request.arguments)
                    self._send(id=number, text=_text(result), is_error=result.is_error or False)
                case ListOrder():
                    self._send(id=number, tools=await _listing(client))
        except asyncio.CancelledError:
            # Otherwise the connection has failed, and that error is the answer to every call.
            if number in self._let_go:
                self._send(id=number, error="it was cancelled")
            raise
        except Exception as error:
            self._send(id=number, error=self._error_text(error))
            if _is_lost(error):
                self._give_up(error)
        finally:
            self._calls.pop(number, None)
            self._let_go.discard(number)

    def _client(self, launch: Launch) -> Client:
        async def hear(message: object) -> None:
            if isinstance(message, ToolListChangedNotification):
                self._send(changed=True)

        return Client(
            http_transport.transport(launch, refused=self._note_status, give_up=self._give_up)
            if isinstance(launch, UrlLaunch)
            else StdioTransport(launch, self._give_up),
            client_info=Implementation(name="palyra", version=VERSION),
            message_handler=hear,
            # A listing must be current.
            cache=None,
        )

    def _send(self, **parts: object) -> None:
        """Send a message, and wait until it is sent: nothing is lost when the process ends right after."""
        left = memoryview(json.dumps(parts).encode() + b"\n")
        while left:
            select.select([], [self._stream], [])
            with suppress(BlockingIOError):
                left = left[self._stream.send(left) :]

    def _give_up(self, error: Exception) -> NoReturn:
        """Report the fatal error, and exit at once: the process that watches this one ends what it has started."""
        with suppress(OSError):
            self._send(failed=self._error_text(error))
        os._exit(1)

    def _note_status(self, status: int) -> None:
        self._status = status

    def _error_text(self, error: Exception) -> str:
        text = _error_text(error)
        return text if text != ERROR_STATUS else f"it answered with HTTP status {_status(self._status)}"


async def _listing(client: Client) -> list[dict[str, Any]]:
    """Return every tool that the server has, page by page."""
    tools: list[Tool] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        if len(tools) > MAX_LISTED:
            raise ServerUnusable(f"it lists more than {MAX_LISTED} tools")
        cursor = page.next_cursor
        if not cursor:
            return [tool.model_dump(mode="json", by_alias=True, exclude_none=True, include=SHOWN) for tool in tools]
    raise ServerUnusable(f"its list of tools has more than {MAX_PAGES} pages")


def _text(result: CallToolResult) -> str:
    """Return a result as text: other content is named, and structured content is used when there is none."""
    parts: list[str] = []
    for block in result.content:
        match block:
            case TextContent():
                parts.append(block.text)
            case ImageContent() | AudioContent():
                parts.append(f"[{block.type} of type {block.mime_type}, {len(block.data) * 3 // 4} bytes, left out]")
            case ResourceLink():
                parts.append(f"[resource {block.name}: {block.uri}]")
            case EmbeddedResource(resource=TextResourceContents() as resource):
                parts.append(resource.text)
            case EmbeddedResource():
                parts.append(f"[resource {block.resource.uri}, no text, left out]")
    if not parts and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts)[:MAX_RESULT_CHARS]


def _is_lost(error: Exception) -> bool:
    """Tell whether the connection can no longer be used."""
    if isinstance(error, MCPError):
        # Servers use the code for anything that goes wrong in a call.
        is_closed = error.error.code == CONNECTION_CLOSED and error.error.message == CLOSED
        return is_closed or "Session terminated" in error.error.message
    return isinstance(error, OSError | ServerUnusable)


def _status(status: int) -> str:
    """Name a status, and what the owner can do about it."""
    name = next((f"{status} ({one.phrase})" for one in HTTPStatus if one == status), str(status))
    return f"{name}; check the `headers` in its settings" if status in (401, 403) else name


def _error_text(error: BaseException) -> str:
    """Say what went wrong in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, PalyraError):
        text = error.detail
    elif isinstance(error, MCPError):
        # For a fault in a response the SDK repeats the response, and where to read about such faults.
        text = error.error.message.partition(" [type=")[0]
    elif isinstance(error, ServerUnusable):
        text = str(error)
    elif isinstance(error, ValidationError):
        text = f"its answer is not MCP: {first_fault(error)}"
    elif isinstance(error, httpx2.TimeoutException):
        text = "it did not answer in time"
    elif isinstance(error, httpx2.TransportError):
        text = f"the connection to it failed: {str(error) or 'it was closed'}"
    else:
        text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:SAID_CHARS] or type(error).__name__


async def main() -> None:
    """Serve the process at the other end of the standard input."""
    stream = socket.socket(fileno=os.dup(0))
    # Accidental prints must not be taken for an answer.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    reader, _ = await asyncio.open_connection(sock=stream, limit=MAX_LINE_BYTES)
    await McpWorker(stream, reader).run()


if __name__ == "__main__":
    asyncio.run(main())
