"""The program that speaks to one MCP server, with the official SDK, in a process of its own.

It is a process because the SDK takes 50 MB and a second to load, and because what a server sends is read, parsed and
checked here: one that sends too much, or something that takes for ever to check, holds up nobody but itself. It is
never trusted with anything but its own server's secrets, and it has no way to the daemon but its answers.

On its input comes one line of JSON, the order; then one line for each call, cancellation and listing. It answers with
lines of JSON. What it can not go on after is said as `failed`, and it ends; whoever started it ends what is left.
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
from palyra.tools.mcp import web
from palyra.tools.mcp.pipe import Pipe
from palyra.tools.mcp.wire import MOST_LINE_BYTES, MOST_LISTED, MOST_PAGES, MOST_RESULT_CHARS, Unusable, first_fault

SAID_CHARS = 500
CLOSED = "Connection closed"
ERROR_STATUS = "Server returned an error response"
"""What the SDK makes of these."""
SHOWN = {"name", "title", "description", "input_schema", "annotations"}
"""What of a tool reaches a model or a person, and so must not change unseen."""


class Worker:
    """One server, and whoever asks it."""

    def __init__(self, stream: socket.socket, reader: asyncio.StreamReader) -> None:
        self._stream = stream
        self._reader = reader
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._let_go: set[int] = set()
        """Calls that nobody waits for any more."""
        self._status = 0
        """Of the last answer over HTTP that was none; the SDK keeps it to itself."""

    async def run(self) -> None:
        """Connect, say what there is, and answer until the input ends."""
        order = json.loads(await self._reader.readline())
        try:
            async with self._client(order) as client:
                info = client.server_info
                self._tell(
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
                asked = json.loads(line)
                if "cancel" in asked:
                    if (task := self._calls.get(asked["cancel"])) is not None:
                        self._let_go.add(asked["cancel"])
                        task.cancel()
                else:
                    self._calls[asked["id"]] = tasks.create_task(self._carry_out(client, asked))
            for task in self._calls.values():
                task.cancel()

    async def _carry_out(self, client: Client, asked: dict[str, Any]) -> None:
        number = asked["id"]
        try:
            if "call" in asked:
                result = await client.call_tool(asked["call"], asked["arguments"])
                self._tell(id=number, text=_text(result), is_error=result.is_error or False)
            else:
                self._tell(id=number, tools=await _listing(client))
        except asyncio.CancelledError:
            # Else the connection has broken, and what is said of that is the answer to every call.
            if number in self._let_go:
                self._tell(id=number, error="it was cancelled")
            raise
        except Exception as error:
            self._tell(id=number, error=self._words(error))
            if _is_lost(error):
                self._give_up(error)
        finally:
            self._calls.pop(number, None)
            self._let_go.discard(number)

    def _client(self, order: dict[str, Any]) -> Client:
        async def hear(message: object) -> None:
            if isinstance(message, ToolListChangedNotification):
                self._tell(changed=True)

        return Client(
            web.transport(order, refused=self._note_status, give_up=self._give_up)
            if "url" in order
            else Pipe(order, self._give_up),
            client_info=Implementation(name="palyra", version=VERSION),
            message_handler=hear,
            # A listing must be what the server says now.
            cache=None,
        )

    def _tell(self, **parts: object) -> None:
        """Say something, and wait until it is said: nothing is lost when the process ends right after."""
        left = memoryview(json.dumps(parts).encode() + b"\n")
        while left:
            select.select([], [self._stream], [])
            with suppress(BlockingIOError):
                left = left[self._stream.send(left) :]

    def _give_up(self, error: Exception) -> NoReturn:
        """Say why it can not go on, and end at once: whoever watches over this process ends what it has started."""
        with suppress(OSError):
            self._tell(failed=self._words(error))
        os._exit(1)

    def _note_status(self, status: int) -> None:
        self._status = status

    def _words(self, error: Exception) -> str:
        said = _words(error)
        return said if said != ERROR_STATUS else f"it answered with HTTP status {_status(self._status)}"


async def _listing(client: Client) -> list[dict[str, Any]]:
    """Return every tool that the server has, page by page."""
    found: list[Tool] = []
    cursor = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        if len(found) > MOST_LISTED:
            raise Unusable(f"it lists more than {MOST_LISTED} tools")
        cursor = page.next_cursor
        if not cursor:
            return [tool.model_dump(mode="json", by_alias=True, exclude_none=True, include=SHOWN) for tool in found]
    raise Unusable(f"its list of tools has more than {MOST_PAGES} pages")


def _text(result: CallToolResult) -> str:
    """Return a result as text: what is no text is named, and structured content stands in when there is none."""
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
    return "\n".join(parts)[:MOST_RESULT_CHARS]


def _is_lost(error: Exception) -> bool:
    """Tell whether the connection is of no use any more."""
    if isinstance(error, MCPError):
        # Servers use the code for whatever goes wrong in a call.
        is_closed = error.error.code == CONNECTION_CLOSED and error.error.message == CLOSED
        return is_closed or "Session terminated" in error.error.message
    return isinstance(error, OSError | Unusable)


def _status(status: int) -> str:
    """Name a status, and what the owner can do about it."""
    name = next((f"{status} ({one.phrase})" for one in HTTPStatus if one == status), str(status))
    return f"{name}; look at the `headers` of its settings" if status in (401, 403) else name


def _words(error: BaseException) -> str:
    """Say what went wrong in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, PalyraError):
        text = error.detail
    elif isinstance(error, MCPError):
        # Of a fault in an answer the SDK repeats the answer, and where to read about such faults.
        text = error.error.message.partition(" [type=")[0]
    elif isinstance(error, Unusable):
        text = str(error)
    elif isinstance(error, ValidationError):
        text = f"its answer is not MCP: {first_fault(error)}"
    elif isinstance(error, httpx2.TimeoutException):
        text = "it did not answer in time"
    elif isinstance(error, httpx2.TransportError):
        text = f"the connection to it failed: {str(error) or 'it was cut off'}"
    else:
        text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:SAID_CHARS] or type(error).__name__


async def main() -> None:
    """Serve the one who holds the other end of the standard input."""
    stream = socket.socket(fileno=os.dup(0))
    # Whatever prints by mistake must not be taken for an answer.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    reader, _ = await asyncio.open_connection(sock=stream, limit=MOST_LINE_BYTES)
    await Worker(stream, reader).run()


if __name__ == "__main__":
    asyncio.run(main())
