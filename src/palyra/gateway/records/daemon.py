"""The daemon's status and settings, as the APIs return them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct

from palyra.core.tool import JsonObject


class HealthResponse(Struct, frozen=True, kw_only=True):
    """The process lives."""

    status: Literal["ok", "stopped"]
    """`stopped` if an emergency stop covers all work."""


class ReadinessResponse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the daemon can work, and the code of the problem if it cannot."""

    status: Literal["ready", "not_ready"]
    code: str | None = None
    warning: str | None = None
    """The code of a problem that does not block it."""


class DaemonPart(Struct, frozen=True, kw_only=True):
    """One part of the daemon."""

    name: str
    status: str
    """`ok`, or the code of what is wrong."""
    detail: str = ""


class DaemonStatus(Struct, frozen=True, kw_only=True):
    """The daemon's status."""

    version: str
    provider: str
    model: str
    storage: str
    """`ok`, or the code of what keeps the journal from being written."""
    parts: Sequence[DaemonPart]
    pid: int | None = None
    """None or empty, like everything below, without the scope `admin`."""
    home: str | None = None
    started_at: datetime | None = None
    engine: str | None = None
    schema: int | None = None
    workspace: str | None = None
    settings_hash: str | None = None
    grpc: str | None = None
    """Where the gRPC API is."""
    runs: dict[str, int] = {}
    """Unfinished runs by status."""
    tasks: dict[str, int] = {}
    """Unfinished tasks by status."""
    counters: dict[str, int] = {}
    """What happened since the start, by kind of event."""
    connections: dict[str, int] = {}
    """Connections to both APIs and file descriptors: how many there are and may be, and how many were closed."""


class ConfigResponse(Struct, frozen=True, kw_only=True):
    """The settings that the daemon works with; secrets are left out."""

    hash: str
    values: JsonObject


class ReloadResponse(Struct, frozen=True, kw_only=True):
    """What became of changed settings."""

    hash: str
    live: tuple[str, ...]
    """The keys that are in force now."""
    restart: tuple[str, ...]
    """The keys that wait for the next start."""
