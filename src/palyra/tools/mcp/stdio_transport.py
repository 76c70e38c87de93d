"""An MCP server that is a program: exchanges messages over pipes, within limits.

The SDK has such a transport, but it reads lines of any length and does not report why the program ended.
"""

import asyncio
import json
import re
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from palyra.tools.mcp.limits import MAX_INVALID_MESSAGES, MAX_LINE_BYTES, MessageRateLimit, ServerUnusable, first_fault
from palyra.tools.mcp.orders import ProgramLaunch

BLOCK_BYTES = 64 * 1024
TOOLS_CHANGED = "notifications/tools/list_changed"
SAID_BYTES = 400
ENDING_SECONDS = 1.0
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escaped half surrogate, which is valid in JSON and not in text."""

Received = SessionMessage | Exception


class StdioTransport:
    """Starts the program and transports messages. The reason for the end goes to `give_up`, which never returns."""

    def __init__(self, launch: ProgramLaunch, give_up: Callable[[Exception], NoReturn]) -> None:
        self._launch = launch
        self._give_up = give_up
        self._said = b""
        self._nonsense = 0

    async def __aenter__(
        self,
    ) -> tuple[MemoryObjectReceiveStream[Received], MemoryObjectSendStream[SessionMessage]]:
        launch = self._launch
        path = launch.env.get("PATH", "")
        program = shutil.which(launch.command, path=path)
        if program is None:
            raise ServerUnusable(f"there is no program {launch.command!r} in {path!r}")
        self._process = await asyncio.create_subprocess_exec(
            program,
            *launch.args,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=launch.env,
            cwd=launch.cwd,
            limit=MAX_LINE_BYTES,
        )
        self._incoming, received = anyio.create_memory_object_stream[Received](0)
        sending, self._outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._running = [self._tasks.create_task(part) for part in (self._read(), self._write(), self._listen())]
        return received, sending

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running:
            task.cancel()
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(ENDING_SECONDS):
                await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
        await self._tasks.__aexit__(None, None, None)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        flow = MessageRateLimit()
        while True:
            try:
                line = await self._process.stdout.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                self._give_up(await self._end())
            except asyncio.LimitOverrunError:
                self._give_up(ServerUnusable(f"it sent a message of more than {MAX_LINE_BYTES >> 20} MiB"))
            self._count(flow, 1, len(line))
            if (message := self._message(line)) is not None:
                await self._incoming.send(message)

    def _count(self, flow: MessageRateLimit, messages: int, size: int) -> None:
        try:
            flow.add(messages, size)
        except ServerUnusable as error:
            self._give_up(error)

    def _message(self, line: bytes) -> SessionMessage | None:
        try:
            message = _read(line)
            if isinstance(message, types.JSONRPCNotification) and message.method != TOOLS_CHANGED:
                return None  # progress and log lines, which are not used: they would only take time
            return SessionMessage(message)
        except (ValueError, RecursionError) as error:
            if b'"jsonrpc"' in line:
                # If it was a response, a call would wait for it forever.
                self._give_up(ServerUnusable(f"it sent a message that is not valid: {first_fault(error)}"))
            self._nonsense += 1
            if self._nonsense > MAX_INVALID_MESSAGES:
                displayed = line[:80].decode(errors="replace").strip()
                self._give_up(ServerUnusable(f"it does not speak MCP: {self._nonsense} lines like {displayed!r}"))
            return None

    async def _write(self) -> None:
        assert self._process.stdin is not None
        async for item in self._outgoing:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                self._process.stdin.write(text.encode() + b"\n")
                await self._process.stdin.drain()
            except ConnectionError:
                self._give_up(await self._end("it closed its input"))

    async def _listen(self) -> None:
        """Keep the end of its standard error."""
        assert self._process.stderr is not None
        flow = MessageRateLimit()
        while piece := await self._process.stderr.read(BLOCK_BYTES):
            self._count(flow, 0, len(piece))
            self._said = (self._said + piece)[-SAID_BYTES:]

    async def _end(self, otherwise: str = "it closed its output") -> Exception:
        """Return how the program ended; `otherwise`, if it has not."""
        code = await _code(self._process)
        text = " ".join(self._said.decode(errors="replace").split())
        why = f"it ended with exit code {code}" if code is not None else otherwise
        return ServerUnusable(f"{why}: {text}" if text else why)


def _read(line: bytes) -> types.JSONRPCMessage:
    try:
        return types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        if not _HALF.search(line):
            raise
        # A program that cuts a text within a character writes half of a surrogate pair.
        data = json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8", "replace")
        return types.jsonrpc_message_adapter.validate_json(data, by_name=False)


async def _code(process: Process) -> int | None:
    with suppress(TimeoutError):
        async with asyncio.timeout(ENDING_SECONDS):
            return await process.wait()
    return None
