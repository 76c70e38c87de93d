"""The daemon's end of one worker: requests in, responses out, and nothing accepted that does not fit."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec import Struct

from palyra.core.errors import Invalid, Unavailable
from palyra.core.tool import JsonObject
from palyra.sandbox.processes.resident import ResidentProcess
from palyra.tools.mcp.orders import CallOrder, CancelOrder, Launch, ListOrder, Order, Request

LET_GO_SECONDS = 3.0
"""How long a worker may take to end a call that was cancelled."""
ENDING_SECONDS = 2.0
KILL_SECONDS = 5.0


class McpServerUnavailable(Unavailable):
    """The MCP server is not available right now. `palyra mcp list` says why; it is restarted automatically."""


class McpCallFailed(Invalid):
    """The MCP server reports that the call failed."""


class WorkerMessage(Struct, frozen=True):
    """A line from the worker."""

    id: int | None = None
    ready: str | None = None
    protocol: str = ""
    tools: list[JsonObject] | None = None
    text: str | None = None
    is_error: bool = False
    error: str | None = None
    failed: str | None = None
    changed: bool = False


_said = msgspec.json.Decoder(WorkerMessage)


class WorkerConnection:
    """One worker, and the server behind it."""

    def __init__(self, resident: ResidentProcess, *, changed: Callable[[], None]) -> None:
        """`changed` is called when the server says that its tools have changed."""
        self._resident = resident
        self._changed = changed
        self._waiting: dict[int, asyncio.Future[WorkerMessage]] = {}
        self._asked = 0
        self._reason = ""
        self._is_open = True
        # Not in a task group, which would cancel it: it must see the end.
        self._end = asyncio.get_running_loop().create_task(resident.ended())

    async def greet(self, launch: Launch) -> WorkerMessage:
        """Send how to reach the server, and return what it offers."""
        self._send(launch)
        while True:
            worker_message = await self._read_message()
            if worker_message.ready is not None and worker_message.tools is not None:
                return worker_message

    async def run(self) -> None:
        """Deliver responses until there are no more; then raise `McpServerUnavailable` with the reason."""
        while True:
            worker_message = await self._read_message()
            if worker_message.changed:
                self._changed()
            if worker_message.id is not None and (waiting := self._waiting.pop(worker_message.id, None)) is not None:
                if not waiting.done():
                    waiting.set_result(worker_message)

    async def call(self, tool: str, arguments: JsonObject) -> str:
        """Call a tool and return its result; raise if that is an error."""
        worker_message = await self._ask(CallOrder(self._next_id(), tool, arguments))
        if worker_message.is_error:
            raise McpCallFailed(worker_message.text or "The server reports that the call failed, without a reason.")
        return worker_message.text or ""

    async def listing(self) -> list[JsonObject]:
        """Return the server's current listing."""
        return (await self._ask(ListOrder(self._next_id()))).tools or []

    async def close(self, *, kindly: bool) -> None:
        """End it, and everything that it has started; `kindly` gives the server a moment to exit by itself."""
        self._is_open = False
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(
                    McpServerUnavailable(f"The MCP server has ended: {self._reason or 'it was stopped'}.")
                )
                # The caller may be gone already, which is not a fault to report.
                waiting.exception()
        self._waiting.clear()
        ending = asyncio.get_running_loop().create_task(self._finish(kindly=kindly))
        cancelled = False
        while not ending.done():
            # A caller that is cancelled meanwhile still waits for the end: no process may be left behind.
            try:
                await asyncio.wait([ending])
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError

    async def _finish(self, *, kindly: bool) -> None:
        self._resident.writer.close()
        if kindly:
            await asyncio.wait([self._end], timeout=ENDING_SECONDS)
        self._resident.stop()
        await asyncio.wait([self._end], timeout=KILL_SECONDS)

    def fail(self, reason: str) -> None:
        """End it for a reason; `run` raises it."""
        self._reason = self._reason or reason
        self._resident.stop()

    def _next_id(self) -> int:
        self._asked += 1
        return self._asked

    async def _ask(self, request: Request) -> WorkerMessage:
        if not self._is_open:
            raise McpServerUnavailable
        number = request.id
        waiting: asyncio.Future[WorkerMessage] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        self._send(request)
        try:
            worker_message = await asyncio.shield(waiting)
        except asyncio.CancelledError:
            self._cancel(number)
            raise
        if worker_message.error is not None:
            raise McpCallFailed(f"The MCP server did not answer the call: {worker_message.error.removesuffix('.')}.")
        return worker_message

    def _cancel(self, number: int) -> None:
        if number in self._waiting and self._is_open:
            self._send(CancelOrder(number))
            asyncio.get_running_loop().call_later(LET_GO_SECONDS, self._check_let_go, number)

    def _check_let_go(self, number: int) -> None:
        if number in self._waiting and self._is_open:
            self.fail(f"it did not finish a cancelled call within {LET_GO_SECONDS:g} s")

    def _send(self, message: Launch | Order) -> None:
        with suppress(ConnectionError):
            self._resident.writer.write(msgspec.json.encode(message) + b"\n")

    async def _read_message(self) -> WorkerMessage:
        try:
            line = await self._resident.reader.readline()
            if line:
                worker_message = _said.decode(line)
                if worker_message.failed is None:
                    return worker_message
                self._reason = self._reason or worker_message.failed
            else:
                await asyncio.wait([self._end], timeout=ENDING_SECONDS)
                how = self._end.result() if self._end.done() else "it closed the connection"
                heard = f"; its last output: {self._resident.stderr_tail}" if self._resident.stderr_tail else ""
                self._reason = self._reason or f"{how}{heard}"
        except (ValueError, RecursionError, msgspec.DecodeError):
            self._reason = self._reason or "its response could not be read"
        except OSError as error:
            self._reason = self._reason or f"the connection to it failed: {error.strerror}"
        raise McpServerUnavailable(self._reason)
