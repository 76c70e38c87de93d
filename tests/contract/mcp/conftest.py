"""MCP servers kept by the parts that keep them in a daemon, with real processes behind them."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, Popen
from time import monotonic, sleep
from typing import Any

import pytest

from palyra.core.ids import CallId, PrincipalId
from palyra.core.mcp import McpServer, McpServerState, McpServerStatus, McpTool, McpToolState
from palyra.core.tool import JsonObject, ToolCall
from palyra.daemon.process.system_clock import SystemClock
from palyra.home import Home
from palyra.journal.engines.base import Engine
from palyra.journal.vault.vault_key import VaultKeySource
from palyra.runs.services.mcp import McpLaunchOrders, McpService
from palyra.runs.services.secrets import SecretService, UsedSecrets
from palyra.runs.services.settings_secrets import SettingsSecrets
from palyra.sandbox.base import MIB, ResourceLimits
from palyra.sandbox.files.workspace import Workspace
from palyra.sandbox.processes.resident import HiddenPaths
from palyra.tools.base import ToolContext
from palyra.tools.execution import ToolResult, execute
from palyra.tools.mcp.server import ServerEnvironment
from palyra.tools.mcp.servers import McpServers
from palyra.tools.toolbox import Toolbox
from tests.support.eventually import eventually

SUPPORT = Path(__file__).parent.parent.parent / "support"
OWNER = PrincipalId("user:owner")
PALYRAS_PORT = 7717


def notebook(**settings: Any) -> McpServer:
    """A server made with the SDK."""
    given = {"command": sys.executable, "args": (str(SUPPORT / "mcp_server.py"),), "sandbox": "off", **settings}
    return McpServer(**given)


def hostile(how: str, *more: str, **settings: Any) -> McpServer:
    """A server that does what none should."""
    return notebook(args=(str(SUPPORT / "hostile_mcp.py"), how, *more), **settings)


@dataclass
class Keeping:
    """Servers that are kept, and the way to use them."""

    servers: McpServers
    mcp: McpService
    home: Home
    used: UsedSecrets
    secrets: SecretService
    context: ToolContext

    def status(self, name: str = "s") -> McpServerStatus:
        found = [one for one in self.servers.status() if one.name == name]
        assert found, f"there is no server {name}"
        return found[0]

    async def reaches(self, state: McpServerState, name: str = "s", *, seconds: float = 60.0) -> McpServerStatus:
        """Wait until a server stands like that."""

        def there() -> McpServerStatus:
            found = self.status(name)
            assert found.state is state, f"{found.state}: {found.reason}"
            return found

        return await eventually(there, timeout=seconds)

    async def accepts(self, *tools: str, name: str = "s") -> McpServerStatus:
        """Wait for a server and accept tools of it, all if none is named."""
        found = await self.reaches(McpServerState.READY, name)
        digests = {
            tool.tool: tool.digest
            for tool in found.tools
            if tool.tool in tools or (not tools and tool.state in (McpToolState.NEW, McpToolState.CHANGED))
        }
        return await self.mcp.decide(OWNER, name, digests, accept=True)

    def tool(self, tool: str, name: str = "s") -> McpTool:
        return next(one for one in self.servers.get(name).in_full().tools if one.tool == tool)

    def names(self, who: PrincipalId = OWNER) -> list[str]:
        """The tools of servers that agents are offered."""
        every = Toolbox(self.servers.tools).catalog(None, who=who).names()
        return [name for name in every if name.startswith("mcp.")]

    async def call(self, tool: str, arguments: JsonObject | None = None, **context: Any) -> ToolResult:
        """Call a tool as a run does."""
        catalog = Toolbox(self.servers.tools).catalog(None, who=context.pop("who", OWNER))
        call = ToolCall(call_id=CallId("c1"), tool=tool, arguments=arguments or {})
        done = await execute(call, catalog=catalog, context=context.get("context", self.context), timeout_ms=60_000)
        assert isinstance(done, ToolResult)
        return done


Keep = Callable[..., AbstractAsyncContextManager[Keeping]]


@asynccontextmanager
async def keeping(folder: Path, engine: Engine, **wanted: McpServer) -> AsyncIterator[Keeping]:
    """Keep servers for as long as the context lasts."""
    home = Home(folder / "home")
    await asyncio.to_thread(lambda: home.path.mkdir(exist_ok=True))
    clock, used = SystemClock(), UsedSecrets()
    secrets = SecretService(engine, VaultKeySource(home.vault_key, reference=None), clock=clock, used=used)
    referred = SettingsSecrets(home, owner=OWNER, secrets=secrets, used=used)
    orders = McpLaunchOrders(referred, folder=folder, caches=home.path / "mcp", own_ports=lambda: (PALYRAS_PORT,))
    around = ServerEnvironment(
        launch=orders,
        hide=referred.hide,
        cover=lambda: HiddenPaths(folders=(home.path,)),
        bounds=ResourceLimits(memory_bytes=700 * MIB, processes=64),
        clock=clock,
    )
    servers = McpServers(engine, wanted, around=around, owner=OWNER)
    context = ToolContext(workspace=Workspace((folder,)), clock=clock, principal=OWNER)
    # They are listed before any of them starts.
    assert [one.name for one in servers.status()] == sorted(wanted)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(servers.run())
        yield Keeping(servers, McpService(engine, servers, clock=clock), home, used, secrets, context)
        running.cancel()


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    """Keeps servers for as long as the context lasts, in a folder of the test's own."""
    return partial(keeping, tmp_path)


@dataclass
class HttpServer:
    """A server made with the SDK that speaks streamable HTTP, at a port that stays the same."""

    port: int
    process: "Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        """Start it, and wait until it answers. Blocks."""
        self.kill()
        program = [sys.executable, str(SUPPORT / "mcp_server.py"), str(self.port)]
        self.process = Popen(program, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
        deadline = monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self.process.poll() is None, "the server did not start"
                assert monotonic() < deadline, "the server does not answer"
            sleep(0.05)

    def kill(self) -> None:
        """End it as a crash would. Blocks."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def http_server() -> Iterator[HttpServer]:
    """A server over HTTP that runs."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = HttpServer(taken.getsockname()[1])
    try:
        server.start()
        yield server
    finally:
        server.kill()
