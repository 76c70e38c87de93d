"""What the holder of a token may see of the daemon's status."""

from palyra.core.token import TokenScope
from palyra.gateway.records.daemon import DaemonPart, DaemonStatus
from palyra.journal.stores.tokens import TokenHolder

COMMON_PARTS = frozenset({"journal", "provider", "stop"})
"""The parts that everyone's work depends on."""


def visible_status(status: DaemonStatus, holder: TokenHolder) -> DaemonStatus:
    """Return what a token's holder may see: without the scope `admin` nothing of the process, its files, or others."""
    if TokenScope.ADMIN in holder.scopes:
        return status
    parts = [
        part if part.name == "stop" and part.status != "ok" else DaemonPart(name=part.name, status=part.status)
        for part in status.parts
        if part.name in COMMON_PARTS
    ]
    return DaemonStatus(
        version=status.version, provider=status.provider, model=status.model, storage=status.storage, parts=parts
    )
