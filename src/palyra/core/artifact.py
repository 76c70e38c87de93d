"""What is kept of the work beside the tape: results that were too long for it, and files as they were before."""

from datetime import datetime

from msgspec import Struct

from palyra.core.ids import CallId, PrincipalId, RunId, SessionId

MAX_KEPT_BYTES = 8 * 1024 * 1024
"""How much of one thing is kept."""


class Artifact(Struct, frozen=True, kw_only=True):
    """A result that was too long to be given whole."""

    artifact_id: str
    principal: PrincipalId
    session_id: SessionId
    run_id: RunId
    call_id: CallId
    what: str
    """The tool that it came from."""
    digest: str
    size: int
    made_at: datetime


class Checkpoint(Struct, frozen=True, kw_only=True):
    """A file as it was right before it was changed, and what it was to become. No digest stands for no file."""

    checkpoint_id: str
    principal: PrincipalId
    session_id: SessionId
    run_id: RunId | None
    """The run and the call that changed it; none if a person brought back an earlier state."""
    call_id: CallId | None
    what: str
    """The tool that changed it, or `restore`."""
    root: str
    """The workspace folder that it lies in."""
    path: str
    """Where it lies, absolute."""
    before_digest: str | None
    before_mode: int | None
    after_digest: str | None
    restores: str | None = None
    """The checkpoint whose state this change brought back."""
    at: datetime
