"""Sessions and their messages, as the HTTP API takes and returns them."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from palyra.core.ids import RunId, SessionId
from palyra.core.model.prompt import Role
from palyra.core.session import Session


class RenameRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A new title."""

    title: str


class SessionPage(Struct, frozen=True, kw_only=True):
    """Sessions, the latest first."""

    sessions: Sequence[Session]
    next_cursor: str | None = None


class SessionResponse(Struct, frozen=True, kw_only=True):
    """One session."""

    session: Session


class ResolvedSessionResponse(Struct, frozen=True, kw_only=True):
    """One session, and whether it was just created."""

    session: Session
    created: bool


class SearchHit(Struct, frozen=True, kw_only=True):
    """A message that a search found."""

    session_id: SessionId
    tape_seq: int
    title: str | None
    text: str


class SearchHitPage(Struct, frozen=True, kw_only=True):
    """What a search found, best first."""

    hits: Sequence[SearchHit]
    next_cursor: str | None = None


class SessionMessage(Struct, frozen=True, kw_only=True):
    """One message of a conversation."""

    tape_seq: int
    run_id: RunId
    role: Role
    text: str
    at: datetime


class MessagePage(Struct, frozen=True, kw_only=True):
    """Messages, the latest first."""

    messages: Sequence[SessionMessage]
    next_cursor: str | None = None
