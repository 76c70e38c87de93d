"""MCP servers: the launch configuration of each, and the owner's decisions on their tools.

A decision on a tool is for its digest: only the definition that the owner has seen is accepted.
"""

import asyncio
import os
import pwd
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from palyra.config import references
from palyra.core.clock import Clock
from palyra.core.errors import Conflict
from palyra.core.ids import PrincipalId
from palyra.core.mcp import (
    McpServer,
    McpServerStatus,
    McpTool,
    McpToolDecision,
    McpToolDefinition,
    McpToolNotFound,
    McpToolState,
    server_digest,
)
from palyra.home import Home
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import mcp_decisions
from palyra.runs.services.settings_secrets import SettingsSecrets
from palyra.sandbox.processes.resident import HiddenPaths
from palyra.settings import Settings
from palyra.tools.mcp.orders import Launch, ProgramLaunch, UrlLaunch
from palyra.tools.mcp.servers import McpServers

PATH = "/usr/local/bin:/usr/bin:/bin"
DECIDABLE = frozenset({McpToolState.NEW, McpToolState.CHANGED, McpToolState.ACCEPTED, McpToolState.REJECTED})


class McpToolChanged(Conflict):
    """The tool has changed since you reviewed it. Review it again with `palyra mcp show`."""


class McpLaunchOrders:
    """Turns a server's settings into the launch configuration of its worker, with secrets filled in."""

    def __init__(
        self,
        referred: SettingsSecrets,
        *,
        folder: Path,
        caches: Path,
        own_ports: Callable[[], Iterable[int]],
    ) -> None:
        """Set up where programs run.

        `folder` is where programs start by default. Each program has a persistent folder in `caches`. `own_ports`
        are Palyra's, which no program may reach.
        """
        self._referred = referred
        self._folder = folder
        self._caches = caches
        self._own_ports = own_ports

    async def __call__(self, server: McpServer) -> Launch:
        """Return the launch configuration."""
        if server.url is not None:
            return UrlLaunch(
                url=server.url,
                headers=await self._values(server.headers),
                allow_private=server.allow_private,
                own_ports=tuple(sorted(self._own_ports())),
                timeout_seconds=server.timeout_seconds,
            )
        cache = self._caches / server_digest(server)[:16]
        await asyncio.to_thread(cache.mkdir, parents=True, exist_ok=True)
        return ProgramLaunch(
            command=_expanded(server.command or ""),
            args=tuple(server.args),
            cache=str(cache),
            env={**_usual_environment(), **_caching_in(cache), **await self._values(server.env)},
            cwd=_expanded(server.cwd) if server.cwd is not None else str(self._folder),
        )

    async def _values(self, arguments: Mapping[str, str]) -> dict[str, str]:
        return {key: await self._referred.value(text, called=key) for key, text in arguments.items()}


class McpService:
    """Shows the state of servers to the owner, and records the owner's decisions."""

    def __init__(self, engine: Engine, servers: McpServers, *, clock: Clock) -> None:
        self._engine = engine
        self._servers = servers
        self._clock = clock

    async def all(self) -> list[McpServerStatus]:
        """Return the status of every server, without details."""
        return self._servers.status()

    async def one(self, name: str) -> McpServerStatus:
        """Return the status of a server, with its tools' full definitions."""
        return await asyncio.to_thread(self._servers.get(name).in_full)

    async def decide(
        self, principal: PrincipalId, name: str, digests: Mapping[str, str], *, accept: bool
    ) -> McpServerStatus:
        """Accept or reject tools of a server, each by the digest of the definition that the owner has seen."""
        server = self._servers.get(name)
        mcp_tools = {tool.tool: tool for tool in server.tools if tool.state in DECIDABLE}
        pins = [
            McpToolDecision(
                server=name,
                server_digest=server_digest(server.settings),
                definition=_definition(mcp_tools, tool, digest),
                accepted=accept,
                decided_at=self._clock.now(),
                decided_by=principal,
            )
            for tool, digest in digests.items()
        ]

        def unit(conn: Connection) -> None:
            for pin in pins:
                mcp_decisions.put(conn, pin)

        await self._engine.write(unit)
        await self._servers.read_decisions()
        return server.status()

    async def restart(self, name: str) -> McpServerStatus:
        """Restart a server."""
        server = self._servers.get(name)
        server.restart()
        return server.status()

    async def test(self, name: str) -> McpServerStatus:
        """Ask a server for its tools; raise the problem if it does not answer."""
        server = self._servers.get(name)
        await server.refresh_tools()
        return server.status()


def hidden_paths(home: Home, settings: Settings, *, family: tuple[Home, ...]) -> HiddenPaths:
    """Return the paths that no program of a server may see: homes except the agent's workspaces, and key files."""
    keys = [
        Path(reference.rest).expanduser() for reference in references(settings).values() if reference.kind == "file"
    ]
    if settings.http.tls_key is not None:
        keys.append(Path(settings.http.tls_key).expanduser())
    workspaces = tuple(one.workspace for one in family)
    root = settings.workspace.root
    return HiddenPaths(
        folders=tuple(one.path for one in family),
        open=workspaces,
        workspaces=(*workspaces, *((Path(root).expanduser(),) if root is not None else ())),
        files=tuple(home.path / key for key in keys),
    )


def _definition(mcp_tools: Mapping[str, McpTool], tool: str, digest: str) -> McpToolDefinition:
    mcp_tool = mcp_tools.get(tool)
    if mcp_tool is None:
        raise McpToolNotFound("The MCP server has no such tool to accept or reject. `palyra mcp show` lists its tools.")
    if mcp_tool.digest != digest:
        raise McpToolChanged
    return McpToolDefinition(
        name=mcp_tool.tool,
        description=mcp_tool.description,
        parameters=mcp_tool.parameters,
        reads_only=mcp_tool.reads_only,
        digest=mcp_tool.digest,
    )


def _expanded(path: str) -> str:
    return str(Path(path).expanduser()) if path.startswith("~") else path


def _caching_in(folder: Path) -> dict[str, str]:
    """Return the variables that make programs such as npx and uvx keep their downloads in a folder."""
    return {"XDG_CACHE_HOME": str(folder), "npm_config_cache": str(folder / "npm")}


def _usual_environment() -> dict[str, str]:
    """Return the variables that every program needs, taken from the machine and not from the daemon's environment."""
    user = os.getuid()
    try:
        person = pwd.getpwuid(user)
        name, folder = person.pw_name, person.pw_dir
    except KeyError:
        # In a container the user can have any id.
        name, folder = str(user), "/tmp"
    return {"PATH": PATH, "HOME": folder, "USER": name, "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
