"""The daemon's status and settings, as the APIs return them."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct


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
    values: dict[str, str | int | bool | None]


class ReloadResponse(Struct, frozen=True, kw_only=True):
    """What became of changed settings."""

    hash: str
    live: tuple[str, ...]
    """The keys that are in force now."""
    restart: tuple[str, ...]
    """The keys that wait for the next start."""
