"""The doors to MCP servers: their settings made ready to start them, and the owner's word on their tools.

A tool is decided about by its digest: the definition that was looked at is the one that is accepted, and no other.
"""

import asyncio
import os
import pwd
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from palyra.config import references
from palyra.core.clock import Clock
from palyra.core.errors import Conflict, NotFound
from palyra.core.ids import PrincipalId
from palyra.core.mcp import Definition, McpServer, McpStanding, McpTool, Pin, ToolState, place_digest
from palyra.core.tool import JsonObject
from palyra.home import Home
from palyra.journal import mcp
from palyra.journal.engine import Connection, Engine
from palyra.runs.references import Referred
from palyra.sandbox.resident import Cover
from palyra.settings import Settings
from palyra.tools.mcp.servers import Servers

PATH = "/usr/local/bin:/usr/bin:/bin"
DECIDABLE = frozenset({ToolState.NEW, ToolState.CHANGED, ToolState.ACCEPTED, ToolState.REFUSED})


class McpToolNotFound(NotFound):
    """The MCP server has no such tool that could be decided about. `palyra mcp show` lists its tools."""


class McpDefinitionChanged(Conflict):
    """The tool is not the one that you have looked at any more. Look at it again with `palyra mcp show`."""


class Orders:
    """Makes of a server's settings what its worker is told, with secrets in their places."""

    def __init__(
        self,
        referred: Referred,
        *,
        folder: Path,
        caches: Path,
        own_ports: Callable[[], Iterable[int]],
    ) -> None:
        """Make orders.

        `folder` is where programs start if nothing else is said. In `caches` each has a folder that stays. `own_ports`
        are Palyra's, which none may reach.
        """
        self._referred = referred
        self._folder = folder
        self._caches = caches
        self._own_ports = own_ports

    async def __call__(self, server: McpServer) -> JsonObject:
        """Return the order."""
        if server.url is not None:
            return {
                "url": server.url,
                "headers": await self._values(server.headers),
                "allow_private": server.allow_private,
                "own_ports": sorted(self._own_ports()),
                "seconds": server.timeout_seconds,
            }
        cache = self._caches / place_digest(server)[:16]
        await asyncio.to_thread(cache.mkdir, parents=True, exist_ok=True)
        return {
            "command": _expanded(server.command or ""),
            "args": server.args,
            "cache": str(cache),
            "env": {**_usual_environment(), **_caching_in(cache), **await self._values(server.env)},
            "cwd": _expanded(server.cwd) if server.cwd is not None else str(self._folder),
        }

    async def _values(self, given: Mapping[str, str]) -> dict[str, str]:
        return {key: await self._referred.value(text, called=key) for key, text in given.items()}


class Mcp:
    """What the owner may ask and decide."""

    def __init__(self, engine: Engine, servers: Servers, *, clock: Clock) -> None:
        self._engine = engine
        self._servers = servers
        self._clock = clock

    async def all(self) -> list[McpStanding]:
        """Return how every server stands, in brief."""
        return self._servers.standing()

    async def one(self, name: str) -> McpStanding:
        """Return how a server stands, with all that its tools say of themselves."""
        return await asyncio.to_thread(self._servers.get(name).in_full)

    async def decide(
        self, principal: PrincipalId, name: str, digests: Mapping[str, str], *, accept: bool
    ) -> McpStanding:
        """Accept or refuse tools of a server, each with the digest of the definition that was looked at."""
        server = self._servers.get(name)
        known = {tool.tool: tool for tool in server.tools if tool.state in DECIDABLE}
        pins = [
            Pin(
                server=name,
                place=place_digest(server.settings),
                definition=_definition(known, tool, digest),
                accepted=accept,
                decided_at=self._clock.now(),
                decided_by=principal,
            )
            for tool, digest in digests.items()
        ]

        def unit(conn: Connection) -> None:
            for pin in pins:
                mcp.put(conn, pin)

        await self._engine.write(unit)
        await self._servers.read_decisions()
        return server.standing()

    async def restart(self, name: str) -> McpStanding:
        """Start a server anew."""
        server = self._servers.get(name)
        server.restart()
        return server.standing()

    async def test(self, name: str) -> McpStanding:
        """Ask a server for its tools; raise what is wrong if it does not answer."""
        server = self._servers.get(name)
        await server.look_again()
        return server.standing()


def cover(home: Home, settings: Settings, *, family: tuple[Home, ...]) -> Cover:
    """Return what no program of a server may see: homes but the agent's workspaces, and files with keys."""
    keys = [
        Path(reference.rest).expanduser() for reference in references(settings).values() if reference.kind == "file"
    ]
    if settings.http.tls_key is not None:
        keys.append(Path(settings.http.tls_key).expanduser())
    workspaces = tuple(one.workspace for one in family)
    root = settings.workspace.root
    return Cover(
        folders=tuple(one.path for one in family),
        open=workspaces,
        workspaces=(*workspaces, *((Path(root).expanduser(),) if root is not None else ())),
        files=tuple(home.path / key for key in keys),
    )


def _definition(known: Mapping[str, McpTool], tool: str, digest: str) -> Definition:
    found = known.get(tool)
    if found is None:
        raise McpToolNotFound
    if found.digest != digest:
        raise McpDefinitionChanged
    return Definition(
        name=found.tool,
        description=found.description,
        parameters=found.parameters,
        reads_only=found.reads_only,
        digest=found.digest,
    )


def _expanded(path: str) -> str:
    return str(Path(path).expanduser()) if path.startswith("~") else path


def _caching_in(folder: Path) -> dict[str, str]:
    """Return what has programs that fetch others, such as npx and uvx, keep them in a folder."""
    return {"XDG_CACHE_HOME": str(folder), "npm_config_cache": str(folder / "npm")}


def _usual_environment() -> dict[str, str]:
    """Return what every program needs, taken from the machine and not from the daemon's own environment."""
    user = os.getuid()
    try:
        person = pwd.getpwuid(user)
        name, folder = person.pw_name, person.pw_dir
    except KeyError:
        # In a container anybody can be the user.
        name, folder = str(user), "/tmp"
    return {"PATH": PATH, "HOME": folder, "USER": name, "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
