"""Shadow policies: a candidate set that is evaluated next to the one in force, to see where the two differ."""

from datetime import datetime

from msgspec import Struct

from palyra.core.ids import CallId, PrincipalId, RunId, SessionId
from palyra.core.tool import Risk, Verdict

MAX_POLICY_FILES = 64


class PolicyFile(Struct, frozen=True, kw_only=True):
    """A policy file, by the name that error reports use."""

    name: str
    text: str


class DecisionDifference(Struct, frozen=True, kw_only=True):
    """A call about which the two sets differ. The details of the call are only on its tape."""

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


class DifferenceGroup(Struct, frozen=True, kw_only=True):
    """Calls that differ in the same way, because of the same policies."""

    was: Verdict
    was_by: tuple[str, ...]
    """The policies in force that decided; both lists are empty for calls beyond the maximum number of groups."""
    would: Verdict
    would_by: tuple[str, ...]
    """The candidate's policies that would have decided."""
    calls: int
    first_at: datetime
    last_at: datetime
    examples: tuple[DecisionDifference, ...] = ()
    """The latest of them, newest first."""


class ShadowPolicy(Struct, frozen=True, kw_only=True):
    """A candidate, and how often it was evaluated."""

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
    """Calls with a different decision."""
    failed: int = 0
    """Calls that the candidate could not judge."""
    failure: str = ""
    """The reason of the last such failure."""


class ShadowReport(Struct, frozen=True, kw_only=True):
    """The decisions that a candidate would have changed."""

    shadow: ShadowPolicy
    clauses: list[DifferenceGroup]
    """The differences, most frequent first."""
