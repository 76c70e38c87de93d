"""The MCP servers of a daemon: put together, and told of in one line."""

from collections.abc import Callable, Iterable
from pathlib import Path

from palyra.core.clock import Clock
from palyra.core.mcp import ServerState, ToolState
from palyra.daemon.current import Current
from palyra.daemon.journal import OWNER
from palyra.gateway.records import Part
from palyra.home import Home
from palyra.journal.engine import Engine
from palyra.runs.mcp import Orders, cover
from palyra.runs.references import Referred
from palyra.sandbox.base import MIB, Bounds
from palyra.tools.mcp.server import Surroundings
from palyra.tools.mcp.servers import Servers


def build(
    engine: Engine,
    home: Home,
    settings: Current,
    *,
    referred: Referred,
    clock: Clock,
    folder: Path,
    base: Path | None,
    own_ports: Callable[[], Iterable[int]],
) -> Servers:
    """Return the servers of the settings, not yet started; they follow the settings.

    `base` is a control group that those of their programs are made in.
    """
    sandbox, family = settings.now.sandbox, home.family()
    around = Surroundings(
        order=Orders(referred, folder=folder, caches=home.path / "mcp", own_ports=own_ports),
        hide=referred.hide,
        cover=lambda: cover(home, settings.now, family=family),
        base=base,
        bounds=Bounds(memory_bytes=sandbox.memory_mb * MIB, processes=sandbox.processes),
        clock=clock,
    )
    servers = Servers(engine, settings.now.mcp.servers, around=around, owner=OWNER)
    settings.watch(lambda new: servers.adopt(new.mcp.servers))
    return servers


def parts(servers: Servers) -> list[Part]:
    """Say how they stand, if there are any: what needs the owner first."""
    found = servers.standing()
    if not found:
        return []
    counts = {
        "accepted": sum(server.count(ToolState.ACCEPTED) for server in found),
        "changed": sum(server.count(ToolState.CHANGED) for server in found),
        "new": sum(server.count(ToolState.NEW) for server in found),
        "down": sum(server.state is ServerState.FAILED for server in found),
    }
    status = "ok"
    if counts["changed"]:
        status = "mcp_tools_changed"
    elif counts["down"]:
        status = "mcp_server_down"
    elif counts["new"]:
        status = "mcp_tools_new"
    said = [f"{len(found)} server{'' if len(found) == 1 else 's'}", f"{counts['accepted']} tools accepted"]
    said += [f"{count} {what}" for what, count in counts.items() if count and what != "accepted"]
    return [Part(name="mcp", status=status, detail=", ".join(said))]
