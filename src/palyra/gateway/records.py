"""Records of the daemon's status, runs and sessions, as clients get them."""

from datetime import datetime

from msgspec import Struct

from palyra.core.session import Session
from palyra.core.spending.usage import Usage


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
    parts: list[DaemonPart]
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


class ListedRun(Struct, frozen=True, kw_only=True):
    """A run as the daemon lists it."""

    run_id: str
    session_id: str
    agent_id: str
    status: str
    input: str
    accepted_seq: int
    last_seq: int
    accepted_at: datetime
    reason: str | None = None
    limit_reached: str | None = None
    parent_run_id: str | None = None
    ended_at: datetime | None = None
    turns: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    cancel_requested: bool = False


class RunPage(Struct, frozen=True, kw_only=True):
    """A page of runs, the latest first, and where the next one begins."""

    runs: tuple[ListedRun, ...]
    next_cursor: str | None = None


class SessionPage(Struct, frozen=True, kw_only=True):
    """A page of sessions, the latest first, and where the next one begins."""

    sessions: tuple[Session, ...]
    next_cursor: str | None = None


class SearchHit(Struct, frozen=True, kw_only=True):
    """A message that a search found."""

    session_id: str
    tape_seq: int
    title: str | None
    text: str


class SessionMessage(Struct, frozen=True, kw_only=True):
    """A message of a session."""

    tape_seq: int
    role: str
    text: str
    at: datetime
    run_id: str | None = None
