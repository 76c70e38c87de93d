"""A candidate set of policies that judges beside the one in force and decides nothing: where the two differ."""

from datetime import datetime

from msgspec import Struct

from palyra.core.ids import CallId, PrincipalId, RunId, SessionId
from palyra.core.tool import Risk, Verdict


class PolicyFile(Struct, frozen=True, kw_only=True):
    """A policy file, by the name under which faults in it are told."""

    name: str
    text: str


class Flip(Struct, frozen=True, kw_only=True):
    """A call about which the two sets differ. What the call was about is on its tape, and nowhere else."""

    call_id: CallId
    tool: str
    risk: Risk
    principal: PrincipalId
    session_id: SessionId
    run_id: RunId
    at: datetime
    was: Verdict
    was_by: tuple[str, ...]
    was_reason: str
    was_hash: str
    """The policies that were in force."""
    would: Verdict
    would_by: tuple[str, ...]
    would_reason: str


class Clause(Struct, frozen=True, kw_only=True):
    """Calls that come out otherwise in the same way, by the same policies."""

    was: Verdict
    was_by: tuple[str, ...]
    """The policies in force that decided; none of either if these are calls for which there was no further room."""
    would: Verdict
    would_by: tuple[str, ...]
    """The candidate's policies that would have."""
    calls: int
    first_at: datetime
    last_at: datetime
    examples: tuple[Flip, ...] = ()
    """The latest of them, the last one first."""


class Shadow(Struct, frozen=True, kw_only=True):
    """A candidate, and how often it was asked."""

    shadow_id: str
    hash: str
    files: tuple[str, ...]
    started_at: datetime
    started_by: str
    stopped_at: datetime | None = None
    stopped_by: str | None = None
    judged: int = 0
    """Calls that both sets have judged."""
    flipped: int = 0
    """Those that come out otherwise."""
    failed: int = 0
    """Those that the candidate could not judge at all."""
    failure: str = ""
    """Why not, the last time."""


class Report(Struct, frozen=True, kw_only=True):
    """What a candidate would have decided otherwise."""

    shadow: Shadow
    clauses: list[Clause]
    """The ways in which it differs, the most frequent first."""
