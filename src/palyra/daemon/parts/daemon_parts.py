"""Everything that a daemon consists of, apart from its endpoints."""

from dataclasses import dataclass

from palyra.daemon.parts.home import HomeParts
from palyra.daemon.parts.journal import CheckParts
from palyra.daemon.parts.runs import RunParts
from palyra.daemon.parts.services import ServiceParts
from palyra.daemon.parts.subsystems import Subsystems
from palyra.daemon.process.listener import ListenerParts
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
