"""What of the daemon's status the bearer of a token may see."""

from palyra.gateway.records import Part, Status
from palyra.journal.tokens import Holder, Scope

COMMON_PARTS = frozenset({"journal", "provider", "stop"})
"""The parts that everyone's work depends on."""


def visible(status: Status, holder: Holder) -> Status:
    """Return what a token's bearer may see: without the scope `admin` nothing of the process, its files, or others."""
    if Scope.ADMIN in holder.scopes:
        return status
    parts = [
        part if part.name == "stop" and part.status != "ok" else Part(name=part.name, status=part.status)
        for part in status.parts
        if part.name in COMMON_PARTS
    ]
    return Status(
        version=status.version, provider=status.provider, model=status.model, storage=status.storage, parts=parts
    )
