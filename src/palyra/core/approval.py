"""A question to a person about one call, the answer, and what an answer is good for later."""

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from palyra.core.effect import Effect
from palyra.core.ids import AgentId, CallId, PrincipalId, RunId, SessionId
from palyra.core.tool import JsonObject


class Scope(StrEnum):
    """For what an answer is good."""

    ONCE = "once"
    SESSION = "session"
    TIMEBOXED = "timeboxed"
    ALWAYS = "always"


class Grant(Struct, frozen=True, kw_only=True):
    """An allowance that a person gave beyond one call: for a class of calls, under one policy."""

    grant_id: str
    principal: PrincipalId
    agent_id: AgentId
    tool: str
    kind: str
    """The class of arguments, as `Effect.kind` names it."""
    policy_hash: str
    label: str
    """The least trusted label that it covers."""
    scope: Scope
    session_id: SessionId | None
    granted_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


class Approval(Struct, frozen=True, kw_only=True):
    """A question and, once there is one, its answer."""

    approval_id: str
    principal: PrincipalId
    session_id: SessionId
    run_id: RunId
    call_id: CallId
    agent_id: AgentId
    tool: str
    arguments: JsonObject
    effect: Effect
    reason: str
    """Why the policy asks."""
    policies: tuple[str, ...]
    policy_hash: str
    labels: tuple[str, ...]
    asked_at: datetime
    expires_at: datetime
    decision: str | None = None
    scope: Scope | None = None
    answered_at: datetime | None = None
    answered_by: str | None = None
    answer: str = ""
    """What the person said to it."""
    reissued_as: RunId | None = None
    """The latest run that proposes the same call once more, since nobody answered in time."""
    given: JsonObject | None = None
    """What the person had it called with instead of the arguments that were proposed. It stands on the tape, and is not
    known of a tape that is in the archive."""
    pattern: str = ""
    """The pattern by which the person allowed further commands; known as `given` is."""
