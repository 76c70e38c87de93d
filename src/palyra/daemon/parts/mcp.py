"""Builds the MCP servers of a daemon, and reports their status in one line."""

from collections.abc import Callable, Iterable
from pathlib import Path

from palyra.core.mcp import McpServerState, McpToolState
from palyra.daemon.parts.home import HomeParts
from palyra.daemon.parts.journal_setup import OWNER
from palyra.gateway.records.daemon import DaemonPart
from palyra.journal.engines.base import Engine
from palyra.runs.services.mcp import McpLaunchOrders, hidden_paths
from palyra.runs.services.settings_secrets import SettingsSecrets
from palyra.runs.system import System
from palyra.sandbox.base import MIB, ResourceLimits
from palyra.tools.mcp.server import ServerEnvironment
from palyra.tools.mcp.servers import McpServers


def build_mcp(
    files: HomeParts,
    system: System,
    engine: Engine,
    secrets: SettingsSecrets,
    *,
    control_group: Path | None,
    own_ports: Callable[[], Iterable[int]],
) -> McpServers:
    """Return the servers of the settings, not yet started; they follow the settings.

    The groups of their programs are created in `control_group`.
    """
    home, config = files.home, system.config
    sandbox, family = config.now.sandbox, home.family()
    folder = files.workspaces(OWNER).roots[0].trusted
    around = ServerEnvironment(
        launch=McpLaunchOrders(secrets, folder=folder, caches=home.path / "mcp", own_ports=own_ports),
        hide=secrets.hide,
        cover=lambda: hidden_paths(home, config.now, family=family),
        base=control_group,
        bounds=ResourceLimits(memory_bytes=sandbox.memory_mb * MIB, processes=sandbox.processes),
        clock=system.clock,
    )
    servers = McpServers(engine, config.now.mcp.servers, around=around, owner=OWNER)
    config.watch(lambda new: servers.adopt(new.mcp.servers))
    return servers


def mcp_status(servers: McpServers) -> list[DaemonPart]:
    """Return their status, if there are any: first what needs the owner."""
    statuses = servers.status()
    if not statuses:
        return []
    counts = {
        "accepted": sum(server.count(McpToolState.ACCEPTED) for server in statuses),
        "changed": sum(server.count(McpToolState.CHANGED) for server in statuses),
        "new": sum(server.count(McpToolState.NEW) for server in statuses),
        "down": sum(server.state is McpServerState.FAILED for server in statuses),
    }
    status = "ok"
    if counts["changed"]:
        status = "mcp_tools_changed"
    elif counts["down"]:
        status = "mcp_server_unavailable"
    elif counts["new"]:
        status = "mcp_tools_new"
    texts = [f"{len(statuses)} server{'' if len(statuses) == 1 else 's'}", f"{counts['accepted']} tools accepted"]
    texts += [f"{count} {what}" for what, count in counts.items() if count and what != "accepted"]
    return [DaemonPart(name="mcp", status=status, detail=", ".join(texts))]
