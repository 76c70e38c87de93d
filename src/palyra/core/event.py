"""What all events have in common.

Every event has a time, an actor (the principal or component that caused it) and labels (where its content came from).
`active_ms` is the time a worker spent on the run since the previous entry: the sum is the run's wall clock. It is
stored as `carried_ms`, its first name: it is on most entries, and mapping it would make every read slower.
"""

from datetime import datetime

from msgspec import Struct, field

from palyra.core.ids import CallId, RunId, SessionId


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """The fields that all events have."""

    at: datetime
    actor: str = "system"
    labels: tuple[str, ...] = ()
    active_ms: int = field(default=0, name="carried_ms")


class ParentRun(Struct, frozen=True, kw_only=True):
    """The run that waits for this one, and the call that waits."""

    run_id: RunId
    session_id: SessionId
    call_id: CallId
    depth: int
    """How many runs are above this one."""
    root_run_id: RunId | None = None
    """The run at the top, for which all others work; old entries do not have it, and the direct parent is used."""
    root_session_id: SessionId | None = None
    """Its session."""
