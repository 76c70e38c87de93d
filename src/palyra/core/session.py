"""Sessions: one conversation, and how a caller refers to it."""

from datetime import datetime

from msgspec import Struct

from palyra.core.errors import Conflict, Invalid, NotFound
from palyra.core.ids import AgentId, PrincipalId, RunId, SessionId

MAX_KEY_CHARS = 200
MAX_LABEL_CHARS = 200


class SessionArchivedError(Conflict):
    """The session is archived. Unarchive it first, or start another."""

    code = "session_archived"


class SessionNotFound(NotFound):
    """You have no such session. `palyra sessions` lists yours."""


class SessionNameInvalid(Invalid):
    """The session's key, label or title is empty or too long."""


class Session(Struct, frozen=True, kw_only=True):
    """The current state of a session, derived from its tape."""

    session_id: SessionId
    principal: PrincipalId
    agent_id: AgentId | None
    """The agent bound to the session; None means the default agent."""
    key: str | None
    label: str | None
    title: str | None
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None
    reset_seq: int
    """Entries up to here are no longer context."""
    active_run_id: RunId | None
    parent_session_id: SessionId | None


def new_session(
    session_id: SessionId,
    principal: PrincipalId,
    *,
    at: datetime,
    agent_id: AgentId | None = None,
    key: str | None = None,
    label: str | None = None,
    parent_session_id: SessionId | None = None,
) -> Session:
    """Return a new, empty session."""
    return Session(
        session_id=session_id,
        principal=principal,
        agent_id=agent_id,
        key=key,
        label=label,
        title=None,
        created_at=at,
        updated_at=at,
        archived_at=None,
        reset_seq=0,
        active_run_id=None,
        parent_session_id=parent_session_id,
    )


class SessionRef(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a caller refers to a session: by id, key or label; by none of them for a new one."""

    session_id: str | None = None
    key: str | None = None
    label: str | None = None
    require_existing: bool = False
    reset: bool = False
