"""All MCP servers of the configuration: starts and stops them with it, and offers their accepted tools."""

import asyncio
import logging
from collections.abc import Mapping

from palyra.core.errors import NotFound, PalyraError
from palyra.core.ids import PrincipalId
from palyra.core.mcp import McpServer, McpServerStatus, McpToolDecision, McpToolState
from palyra.journal.engines.base import Engine
from palyra.journal.stores import mcp_decisions
from palyra.tools.base import Tool
from palyra.tools.mcp.server import McpServerProcess, ServerEnvironment
from palyra.tools.mcp.tool import make_tool

Pins = dict[str, dict[str, McpToolDecision]]

RETRY_SECONDS = 5.0

log = logging.getLogger(__name__)


class McpServerNotFound(NotFound):
    """Unknown MCP server: the settings have none with this name. `palyra mcp list` lists them."""


class McpServers:
    """Runs the servers that the settings name."""

    def __init__(
        self,
        engine: Engine,
        mcp_servers: Mapping[str, McpServer],
        *,
        around: ServerEnvironment,
        owner: PrincipalId,
    ) -> None:
        self._engine = engine
        self._wanted = dict(mcp_servers)
        self._around = around
        self._owner = owner
        # Known from the beginning, so that nobody who looks before they start is told that there are none.
        self._servers = {name: self._process(name, settings) for name, settings in mcp_servers.items()}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._pins: Pins = {}
        self._tools: tuple[Tool, ...] | None = None
        self._changed = asyncio.Event()
        self._changed.set()

    def adopt(self, mcp_servers: Mapping[str, McpServer]) -> None:
        """Apply other settings."""
        if mcp_servers != self._wanted:
            self._wanted = dict(mcp_servers)
            self._changed.set()

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools that were accepted and have not changed since."""
        if self._tools is None:
            self._tools = tuple(
                make_tool(tool, server.settings, owner=self._owner, check_ready=server.check_ready, call=server.call)
                for server in self._servers.values()
                if server.settings.enabled
                for tool in server.tools
                if tool.state is McpToolState.ACCEPTED
            )
        return self._tools

    def status(self) -> list[McpServerStatus]:
        """Return the status of each server, by name."""
        return [self._servers[name].status() for name in sorted(self._servers)]

    def get(self, name: str) -> McpServerProcess:
        """Return the server of that name."""
        if (mcp_server_process := self._servers.get(name)) is None:
            raise McpServerNotFound
        return mcp_server_process

    async def read_decisions(self) -> None:
        """Apply the decisions on tools, made here or elsewhere."""
        pins: Pins = {}
        for pin in await self._engine.read(mcp_decisions.all_pins):
            pins.setdefault(pin.server, {})[pin.definition.name] = pin
        self._pins = pins
        for name, server in self._servers.items():
            server.decided(pins.get(name, {}))

    async def run(self) -> None:
        """Keep every server running until cancelled; then end them all."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._changed.wait()
                self._changed.clear()
                if not self._wanted and not self._servers:
                    continue
                try:
                    await self.read_decisions()
                except PalyraError as error:
                    # Without the decisions nothing could be offered; the journal will be available again.
                    log.warning("mcp servers wait for the journal: %s", error.detail)
                    await asyncio.sleep(RETRY_SECONDS)
                    self._changed.set()
                    continue
                await self._arrange(group)

    async def _arrange(self, group: asyncio.TaskGroup) -> None:
        for name in list(self._servers):
            server, mcp_server = self._servers[name], self._wanted.get(name)
            if mcp_server is None or not server.adopt(mcp_server):
                del self._servers[name]
                if (task := self._tasks.pop(name, None)) is not None:
                    task.cancel()
                    await asyncio.wait([task])
        for name, settings in self._wanted.items():
            if name not in self._servers:
                self._servers[name] = self._process(name, settings)
                self._servers[name].decided(self._pins.get(name, {}))
            if name not in self._tasks:
                self._tasks[name] = group.create_task(self._servers[name].keep())
        self._forget_tools()

    def _process(self, name: str, settings: McpServer) -> McpServerProcess:
        return McpServerProcess(name, settings, self._around, lines=self._forget_tools)

    def _forget_tools(self) -> None:
        self._tools = None
