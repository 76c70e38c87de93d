"""A run as lists show it."""

from datetime import datetime

from msgspec import Struct

from palyra.core.ids import AgentId, RunId, SessionId
from palyra.core.limits import LimitKind
from palyra.core.run.state import RunStatus
from palyra.core.spending.usage import Usage


class RunRecord(Struct, frozen=True, kw_only=True):
    """A run as lists show it."""

    run_id: RunId
    session_id: SessionId
    agent_id: AgentId
    status: RunStatus
    input: str
    """The first words of the message that started it."""
    reason: str | None
    limit_reached: LimitKind | None
    parent_run_id: RunId | None
    accepted_seq: int
    last_seq: int
    accepted_at: datetime
    ended_at: datetime | None
    turns: int
    tool_calls: int
    usage: Usage
    cancel_requested: bool
