"""Data kept outside the tape: results that are too long for it, and file checkpoints."""

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from palyra.core.ids import CallId, PrincipalId, RunId, SessionId

MAX_KEPT_BYTES = 8 * 1024 * 1024
"""The maximum size of one artifact."""


class Artifact(Struct, frozen=True, kw_only=True):
    """A result that is too long for the tape."""

    artifact_id: str
    principal: PrincipalId
    session_id: SessionId
    run_id: RunId
    call_id: CallId
    what: str
    """The tool that produced it."""
    digest: str
    size: int
    made_at: datetime


class FileCheckpoint(Struct, frozen=True, kw_only=True):
    """A file's content right before a change, and the digest it was to get. No digest means that there is no file."""

    checkpoint_id: str
    principal: PrincipalId
    session_id: SessionId
    run_id: RunId | None
    """The run and the call that changed the file; None if a person restored an earlier version."""
    call_id: CallId | None
    what: str
    """The tool that changed it, or `restore`."""
    root: str
    """The workspace folder that contains the file."""
    path: str
    """The absolute path of the file."""
    before_digest: str | None
    before_mode: int | None
    after_digest: str | None
    restores: str | None = None
    """The file checkpoint that this change restored."""
    at: datetime


class FileState(StrEnum):
    """How a file compares to one of its file checkpoints: as that change made it, as before it, or changed since."""

    AS_CHANGED = "as_changed"
    AS_BEFORE = "as_before"
    CHANGED_SINCE = "changed_since"
