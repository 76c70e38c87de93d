"""One MCP server: kept running, restarted when it fails, called, and held to what was accepted."""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import msgspec

from palyra.core.attestation import ProgramRun
from palyra.core.clock import Clock
from palyra.core.errors import Denied, PalyraError, Unavailable
from palyra.core.mcp import (
    McpServer,
    McpServerState,
    McpServerStatus,
    McpTool,
    McpToolDecision,
    McpToolState,
    is_same_program,
    server_address,
)
from palyra.core.tool import JsonObject
from palyra.sandbox.base import ResourceLimits, Tier
from palyra.sandbox.processes.resident import HiddenPaths, ResidentJob, start
from palyra.tools.execution_record import ExecutionRecorder
from palyra.tools.mcp import definitions
from palyra.tools.mcp.definitions import McpToolListing
from palyra.tools.mcp.limits import MAX_LINE_BYTES, MAX_TOOLS
from palyra.tools.mcp.orders import Launch, ProgramLaunch
from palyra.tools.mcp.tool_status import tools_of, tools_summary, tools_with_changes
from palyra.tools.mcp.worker_connection import McpServerUnavailable, WorkerConnection

START_SECONDS = 60.0
"""A first start may have to download a program."""
READY_SECONDS = 20.0
"""How long a call waits for a server that is being started."""
FRESH_SECONDS = 60.0
"""After this time the tools of a server are listed again before one of them is called."""
CALM_SECONDS = 1.0
"""Minimum time between two listings for a server that reports changed tools."""
FIRST_PAUSE, MAX_PAUSE = 1.0, 300.0
STEADY_SECONDS = 60.0
"""A server that ran this long has recovered: its next failure counts as the first again."""
COVERED = "covered"
"""The isolation of a program that sees all but Palyra's own files and other processes: less than the strict tier."""
WORKER = ("-I", "-m", "palyra.tools.mcp.worker")

log = logging.getLogger(__name__)


class McpPackageMissing(Unavailable):
    """MCP servers need a package that is not installed. Install it: `pip install 'palyra[mcp]'`."""


class McpToolNotAccepted(Denied):
    """The MCP server has changed this tool since it was accepted. The owner can review it with `palyra mcp show`."""


class McpToolLimitReached(Unavailable):
    """The MCP server has more tools than can be used."""


@dataclass(frozen=True, slots=True)
class ServerEnvironment:
    """What a server is started with, besides its settings."""

    launch: Callable[[McpServer], Awaitable[Launch]]
    """Returns how the worker reaches the server, with secrets filled in."""
    hide: Callable[[str], str]
    """Takes secrets out of what a server sends: it may repeat what it received."""
    cover: Callable[[], HiddenPaths]
    bounds: ResourceLimits
    clock: Clock
    base: Path | None = None
    """The control group in which each server gets its own."""


class McpServerProcess:
    """Runs one MCP server; see the module."""

    def __init__(self, name: str, settings: McpServer, around: ServerEnvironment, *, lines: Callable[[], None]) -> None:
        """`told` is called whenever the status of its tools may have changed."""
        self.name = name
        self.settings = settings
        self._around = around
        self._notify = lines
        self._pins: Mapping[str, McpToolDecision] = {}
        self._listing: McpToolListing | None = None
        self._listed_at = 0.0
        self._connection: WorkerConnection | None = None
        self._ready = asyncio.Event()
        self._again = asyncio.Event()
        self._looking = asyncio.Lock()
        self._state = McpServerState.STARTING if settings.enabled else McpServerState.DISABLED
        self._reason = self._server_name = self._protocol = ""
        self._restarts = 0
        self._next_at: float | None = None
        self._warned: set[tuple[str, str]] = set()
        self.tools: tuple[McpTool, ...] = ()

    def adopt(self, settings: McpServer) -> bool:
        """Apply other settings; tell whether that is possible without a restart."""
        if not is_same_program(self.settings, settings):
            return False
        self.settings = settings
        self._refresh()
        return True

    def decided(self, pins: Mapping[str, McpToolDecision]) -> None:
        """Apply the decisions on its tools."""
        self._pins = pins
        self._refresh()

    def in_full(self) -> McpServerStatus:
        """Return its status, with the full definitions of its tools and their changes. Blocks for a while."""
        return msgspec.structs.replace(self.status(), tools=tools_with_changes(self.tools, self._pins))

    def status(self) -> McpServerStatus:
        """Return its status, without details."""
        left = self._next_at - self._around.clock.monotonic() if self._next_at is not None else None
        return McpServerStatus(
            name=self.name,
            transport="http" if self.settings.url is not None else "stdio",
            address=server_address(self.settings),
            state=self._state,
            reason=self._around.hide(self._reason),
            server_name=self._server_name,
            protocol=self._protocol,
            restarts=self._restarts,
            retry_in_seconds=round(max(0.0, left), 1) if left is not None else None,
            tools=tools_summary(self.tools),
        )

    def restart(self) -> None:
        """Restart it, at once."""
        self._reason = ""
        self._again.set()
        if self._connection is not None:
            self._connection.fail("a restart was requested")

    async def keep(self) -> None:
        """Keep it running until cancelled."""
        pause = FIRST_PAUSE
        while self.settings.enabled:
            self._state, self._next_at = McpServerState.STARTING, None
            self._again.clear()
            began = self._around.clock.monotonic()
            try:
                await self._live()
            except (PalyraError, OSError) as error:
                self._reason = error.detail if isinstance(error, PalyraError) else str(error)
            except Exception as error:
                log.exception("mcp server %s failed unexpectedly", self.name)
                self._reason = f"{type(error).__name__}: {error}"
            now = self._around.clock.monotonic()
            pause = FIRST_PAUSE if now - began > STEADY_SECONDS else pause
            self._restarts += 1
            if not self._again.is_set():
                self._state, self._next_at = McpServerState.FAILED, now + pause
                log.warning("mcp server %s is down, next try in %g s: %s", self.name, pause, self._reason)
                self._notify()
            try:
                async with asyncio.timeout(pause):
                    await self._again.wait()
                pause = FIRST_PAUSE
            except TimeoutError:
                pause = min(pause * 2, MAX_PAUSE)

    async def call(self, tool: McpTool, arguments: JsonObject, witness: ExecutionRecorder) -> str:
        """Call an accepted tool, if it is unchanged since; the witness records how its program is isolated."""
        if self._around.clock.monotonic() - self._listed_at > FRESH_SECONDS:
            await self.refresh_tools()
        connection = await self.check_ready(tool)
        if self.settings.command is not None:
            bounds = self._around.bounds
            limits = {"memory_bytes": bounds.memory_bytes, "processes": bounds.processes}
            witness.note(ProgramRun(tier=COVERED if self._is_covered else Tier.OFF.value, limits=limits))
        return await connection.call(tool.tool, arguments)

    async def check_ready(self, tool: McpTool) -> WorkerConnection:
        """Return the connection for a call of the tool; raise if the server is down, or the tool has changed."""
        connection = await self._connected()
        now = next((one for one in self.tools if one.tool == tool.tool), None)
        if now is None or now.state is not McpToolState.ACCEPTED or now.digest != tool.digest:
            raise McpToolNotAccepted(
                f"{tool.name} is no longer offered: the MCP server has changed it, or it was rejected. "
                f"The owner can review it with `palyra mcp show {self.name}`."
            )
        return connection

    async def refresh_tools(self) -> None:
        """List the server's tools again."""
        connection = await self._connected()
        async with self._looking:
            try:
                async with asyncio.timeout(START_SECONDS):
                    listed = await connection.listing()
            except TimeoutError:
                connection.fail(why := f"it did not list its tools within {START_SECONDS:g} s")
                raise McpServerUnavailable(f"The MCP server {self.name} is not available: {why}.") from None
            await self._adopt_listing(listed)

    @property
    def _is_covered(self) -> bool:
        return self.settings.command is not None and self.settings.sandbox == "strict"

    def _cover(self, launch: ProgramLaunch) -> HiddenPaths:
        """Return what its program does not see, and what it may change. Blocks."""
        cover = self._around.cover()
        return replace(
            cover,
            network=self.settings.network,
            open=(*cover.open, Path(launch.cache)),
            writable=tuple(Path(path).expanduser() for path in self.settings.writable),
        )

    async def _connected(self) -> WorkerConnection:
        try:
            async with asyncio.timeout(READY_SECONDS if self._state is McpServerState.STARTING else 0.01):
                await self._ready.wait()
        except TimeoutError:
            why = self._reason or "it is still starting"
            raise McpServerUnavailable(
                f"The MCP server {self.name} is not available: {why.removesuffix('.')}."
            ) from None
        assert self._connection is not None
        return self._connection

    async def _live(self) -> None:
        """Run it once, until it fails; the failure is raised."""
        if await asyncio.to_thread(find_spec, "mcp") is None:
            raise McpPackageMissing
        launch = await self._around.launch(self.settings)
        covered = launch if isinstance(launch, ProgramLaunch) and self._is_covered else None
        staying = ResidentJob(
            argv=(sys.executable, *WORKER),
            cover=await asyncio.to_thread(self._cover, launch)
            if isinstance(launch, ProgramLaunch) and covered
            else None,
            bounds=self._around.bounds,
            base=self._around.base,
        )
        resident = await start(staying, max_bytes=MAX_LINE_BYTES)
        listing_changed = asyncio.Event()
        connection = WorkerConnection(resident, changed=listing_changed.set)
        kindly = True
        try:
            try:
                async with asyncio.timeout(START_SECONDS):
                    ready = await connection.greet(launch)
            except TimeoutError:
                raise McpServerUnavailable(f"It did not answer within {START_SECONDS:g} s after its start.") from None
            await self._adopt_listing(ready.tools or [])
            self._server_name = definitions.clean(self._around.hide(ready.ready or ""), maximum=100)
            self._protocol = definitions.clean(ready.protocol, maximum=40)
            self._connection, self._state, self._reason = connection, McpServerState.READY, ""
            self._ready.set()
            self._notify()
            log.info("mcp server %s is ready: %s", self.name, self._server_name)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow(listing_changed))
                await connection.run()
        except PalyraError:
            kindly = False
            raise
        except BaseExceptionGroup as group:
            kindly = False
            if (faults := group.subgroup(PalyraError)) is None:
                raise
            raise _first(faults) from None
        finally:
            self._ready.clear()
            self._connection = None
            await connection.close(kindly=kindly)

    async def _follow(self, changed: asyncio.Event) -> None:
        """List the tools again when the server says that they have changed."""
        while True:
            await changed.wait()
            changed.clear()
            await self.refresh_tools()
            # A server that reports changes all the time is listed at once the first time, and then from time to time.
            await asyncio.sleep(CALM_SECONDS)

    async def _adopt_listing(self, listed: list[JsonObject]) -> None:
        # Off the event loop: a listing may be long.
        listing = await asyncio.to_thread(definitions.read, listed)
        names = self.settings.tools
        usable = [name for name in listing.definitions if names is None or name in names]
        if len(usable) > MAX_TOOLS:
            raise McpToolLimitReached(
                f"It has {len(usable)} tools; the maximum is {MAX_TOOLS}. Name the ones that you want in `tools`."
            )
        self._listing, self._listed_at = listing, self._around.clock.monotonic()
        self._refresh()

    def _refresh(self) -> None:
        self.tools = tools_of(self.name, self.settings, self._pins, self._listing)
        for tool in self.tools:
            if tool.state is McpToolState.CHANGED and (tool.name, tool.digest) not in self._warned:
                self._warned.add((tool.name, tool.digest))
                log.warning(
                    "mcp server %s has changed %s, which is not offered until it is accepted", self.name, tool.tool
                )
        self._notify()


def _first(group: BaseExceptionGroup[PalyraError]) -> PalyraError:
    """Return what went wrong first."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, PalyraError)
    return error
