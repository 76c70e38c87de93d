"""One MCP server: kept running, started again when it fails, called, and held to what was accepted of it."""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import msgspec

from palyra.core.attestation import Ran
from palyra.core.clock import Clock
from palyra.core.errors import Denied, PalyraError, Unavailable
from palyra.core.mcp import (
    McpServer,
    McpStanding,
    McpTool,
    Pin,
    ServerState,
    ToolState,
    is_same_program,
    place_of,
)
from palyra.core.tool import JsonObject
from palyra.sandbox.base import Bounds, Tier
from palyra.sandbox.resident import Cover, Staying, start
from palyra.tools.mcp import definitions
from palyra.tools.mcp.connection import Connection, McpServerDown
from palyra.tools.mcp.definitions import Listing
from palyra.tools.mcp.standing import in_brief, in_full, tools_of
from palyra.tools.mcp.wire import MOST_LINE_BYTES, MOST_TOOLS
from palyra.tools.witness import Witness

START_SECONDS = 60.0
"""A first start may have to fetch a program."""
READY_SECONDS = 20.0
"""How long a call waits for a server that is being started."""
FRESH_SECONDS = 60.0
"""After this time a server is asked again what its tools are, before one of them is called."""
CALM_SECONDS = 1.0
"""Between two looks at the tools of a server that says that they have changed."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
STEADY_SECONDS = 60.0
"""A server that ran this long has recovered: its next failure is a first one again."""
COVERED = "covered"
"""How a program is held that sees all but Palyra's own files and other processes: less than in the strict tier."""
WORKER = ("-I", "-m", "palyra.tools.mcp.worker")

log = logging.getLogger(__name__)


class McpMissing(Unavailable):
    """MCP servers need a package that is not installed: `pip install 'palyra[mcp]'` installs it."""


class McpToolWithdrawn(Denied):
    """The MCP server has changed this tool since it was accepted. `palyra mcp show` shows how; the owner decides."""


class McpTooManyTools(Unavailable):
    """The MCP server has more tools than can be used."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a server is started with, besides its settings."""

    order: Callable[[McpServer], Awaitable[JsonObject]]
    """Makes the worker's order: secrets put in their places."""
    hide: Callable[[str], str]
    """Takes them out of what a server says: it may repeat what it was sent."""
    cover: Callable[[], Cover]
    bounds: Bounds
    clock: Clock
    base: Path | None = None
    """A control group that one for each server is made in."""


class Server:
    """See the module."""

    def __init__(self, name: str, settings: McpServer, around: Surroundings, *, told: Callable[[], None]) -> None:
        """`told` is called whenever its tools may stand otherwise."""
        self.name = name
        self.settings = settings
        self._around = around
        self._told = told
        self._pins: Mapping[str, Pin] = {}
        self._listing: Listing | None = None
        self._listed_at = 0.0
        self._connection: Connection | None = None
        self._ready = asyncio.Event()
        self._again = asyncio.Event()
        self._looking = asyncio.Lock()
        self._state = ServerState.STARTING if settings.enabled else ServerState.DISABLED
        self._reason = self._says = self._protocol = ""
        self._restarts = 0
        self._next_at: float | None = None
        self._warned: set[tuple[str, str]] = set()
        self.tools: tuple[McpTool, ...] = ()

    def adopt(self, settings: McpServer) -> bool:
        """Take over other settings; tell whether that is possible without a new start."""
        if not is_same_program(self.settings, settings):
            return False
        self.settings = settings
        self._look()
        return True

    def decided(self, pins: Mapping[str, Pin]) -> None:
        """Take over what was decided about its tools."""
        self._pins = pins
        self._look()

    def in_full(self) -> McpStanding:
        """Say how it stands, with all that its tools say of themselves and what has changed of it. Blocks a while."""
        return msgspec.structs.replace(self.standing(), tools=in_full(self.tools, self._pins))

    def standing(self) -> McpStanding:
        """Say how it stands, in brief."""
        left = self._next_at - self._around.clock.monotonic() if self._next_at is not None else None
        return McpStanding(
            name=self.name,
            transport="http" if self.settings.url is not None else "stdio",
            place=place_of(self.settings),
            state=self._state,
            reason=self._around.hide(self._reason),
            says=self._says,
            protocol=self._protocol,
            restarts=self._restarts,
            retry_in_seconds=round(max(0.0, left), 1) if left is not None else None,
            tools=in_brief(self.tools),
        )

    def restart(self) -> None:
        """Start it anew, at once."""
        self._reason = ""
        self._again.set()
        if self._connection is not None:
            self._connection.fail("it was told to start again")

    async def keep(self) -> None:
        """Keep it running until cancelled."""
        pause = FIRST_PAUSE
        while self.settings.enabled:
            self._state, self._next_at = ServerState.STARTING, None
            self._again.clear()
            began = self._around.clock.monotonic()
            try:
                await self._live()
            except (PalyraError, OSError) as error:
                self._reason = error.detail if isinstance(error, PalyraError) else str(error)
            except Exception as error:
                log.exception("mcp server %s failed in a way that it should not", self.name)
                self._reason = f"{type(error).__name__}: {error}"
            now = self._around.clock.monotonic()
            pause = FIRST_PAUSE if now - began > STEADY_SECONDS else pause
            self._restarts += 1
            if not self._again.is_set():
                self._state, self._next_at = ServerState.FAILED, now + pause
                log.warning("mcp server %s is down, next try in %g s: %s", self.name, pause, self._reason)
                self._told()
            try:
                async with asyncio.timeout(pause):
                    await self._again.wait()
                pause = FIRST_PAUSE
            except TimeoutError:
                pause = min(pause * 2, LONGEST_PAUSE)

    async def call(self, tool: McpTool, arguments: JsonObject, witness: Witness) -> str:
        """Call a tool that was accepted, if it is still what it was then; the witness sees how its program is held."""
        if self._around.clock.monotonic() - self._listed_at > FRESH_SECONDS:
            await self.look_again()
        connection = await self.check_ready(tool)
        if self.settings.command is not None:
            bounds = self._around.bounds
            limits = {"memory_bytes": bounds.memory_bytes, "processes": bounds.processes}
            witness.note(Ran(tier=COVERED if self._is_covered else Tier.OFF.value, limits=limits))
        return await connection.call(tool.tool, arguments)

    async def check_ready(self, tool: McpTool) -> Connection:
        """Return the connection for a call of the tool; raise if the server is down, or the tool is not the same."""
        connection = await self._connected()
        now = next((one for one in self.tools if one.tool == tool.tool), None)
        if now is None or now.state is not ToolState.ACCEPTED or now.digest != tool.digest:
            raise McpToolWithdrawn(
                f"{tool.name} is not offered any more: the MCP server has changed it, or it was refused."
                f" The owner sees how with `palyra mcp show {self.name}`."
            )
        return connection

    async def look_again(self) -> None:
        """Ask the server what its tools are now."""
        connection = await self._connected()
        async with self._looking:
            try:
                async with asyncio.timeout(START_SECONDS):
                    listed = await connection.listing()
            except TimeoutError:
                connection.fail(why := f"it did not say within {START_SECONDS:g} s what its tools are")
                raise McpServerDown(f"The MCP server {self.name} is not there now: {why}.") from None
            await self._adopt_listing(listed)

    @property
    def _is_covered(self) -> bool:
        return self.settings.command is not None and self.settings.sandbox == "strict"

    def _cover(self, order: JsonObject) -> Cover:
        """Return what its program does not see, and what it may change. Blocks."""
        cover = self._around.cover()
        return replace(
            cover,
            network=self.settings.network,
            open=(*cover.open, Path(order["cache"])),
            writable=tuple(Path(path).expanduser() for path in self.settings.writable),
        )

    async def _connected(self) -> Connection:
        try:
            async with asyncio.timeout(READY_SECONDS if self._state is ServerState.STARTING else 0.01):
                await self._ready.wait()
        except TimeoutError:
            why = self._reason or "it is still being started"
            raise McpServerDown(f"The MCP server {self.name} is not there now: {why.removesuffix('.')}.") from None
        assert self._connection is not None
        return self._connection

    async def _live(self) -> None:
        """Run it once, to its failure, which is raised."""
        if await asyncio.to_thread(find_spec, "mcp") is None:
            raise McpMissing
        order = await self._around.order(self.settings)
        covered = self._is_covered
        staying = Staying(
            argv=(sys.executable, *WORKER),
            cover=await asyncio.to_thread(self._cover, order) if covered else None,
            bounds=self._around.bounds,
            base=self._around.base,
        )
        resident = await start(staying, most_bytes=MOST_LINE_BYTES)
        listing_changed = asyncio.Event()
        connection = Connection(resident, changed=listing_changed.set)
        kindly = True
        try:
            try:
                async with asyncio.timeout(START_SECONDS):
                    ready = await connection.greet(order)
            except TimeoutError:
                raise McpServerDown(f"It did not answer within {START_SECONDS:g} s of its start.") from None
            await self._adopt_listing(ready.tools or [])
            self._says = definitions.clean(self._around.hide(ready.ready or ""), most=100)
            self._protocol = definitions.clean(ready.protocol, most=40)
            self._connection, self._state, self._reason = connection, ServerState.READY, ""
            self._ready.set()
            self._told()
            log.info("mcp server %s is ready: %s", self.name, self._says)
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
        """Look at the tools anew when the server says that they are others."""
        while True:
            await changed.wait()
            changed.clear()
            await self.look_again()
            # One that says so all the time is believed the first time at once, and then now and then.
            await asyncio.sleep(CALM_SECONDS)

    async def _adopt_listing(self, listed: list[JsonObject]) -> None:
        # Off the event loop: what a server says may be long.
        listing = await asyncio.to_thread(definitions.read, listed)
        wanted = self.settings.tools
        usable = [name for name in listing.definitions if wanted is None or name in wanted]
        if len(usable) > MOST_TOOLS:
            raise McpTooManyTools(
                f"It has {len(usable)} tools; {MOST_TOOLS} are the most. Name those that you want in `tools`."
            )
        self._listing, self._listed_at = listing, self._around.clock.monotonic()
        self._look()

    def _look(self) -> None:
        self.tools = tools_of(self.name, self.settings, self._pins, self._listing)
        for tool in self.tools:
            if tool.state is ToolState.CHANGED and (tool.name, tool.digest) not in self._warned:
                self._warned.add((tool.name, tool.digest))
                log.warning(
                    "mcp server %s has changed %s, which is withdrawn until it is accepted", self.name, tool.tool
                )
        self._told()


def _first(group: BaseExceptionGroup[PalyraError]) -> PalyraError:
    """Return what went wrong first."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, PalyraError)
    return error
