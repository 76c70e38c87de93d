"""Everything that a daemon consists of, apart from its endpoints."""

from dataclasses import dataclass

from palyra.daemon.home_parts import HomeParts
from palyra.daemon.journal import CheckParts
from palyra.daemon.listener import ListenerParts
from palyra.daemon.runs import RunParts
from palyra.daemon.services import ServiceParts
from palyra.daemon.subsystems import Subsystems
from palyra.tools.mcp.servers import McpServers


@dataclass(frozen=True, slots=True)
class DaemonParts:
    """Everything that endpoints and background tasks use."""

    files: HomeParts
    listener: ListenerParts
    subsystems: Subsystems
    mcp: McpServers
    runs: RunParts
    services: ServiceParts
    checks: CheckParts
