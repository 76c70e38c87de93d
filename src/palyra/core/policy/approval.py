"""Approvals: a request to a person about one call, the answer, and the grants that answers create."""

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from palyra.core.ids import AgentId, CallId, PrincipalId, RunId, SessionId
from palyra.core.policy.effect import Effect
from palyra.core.tool import JsonObject


class ApprovalScope(StrEnum):
    """How long an answer is valid."""

    ONCE = "once"
    SESSION = "session"
    TIMEBOXED = "timeboxed"
    ALWAYS = "always"


class Grant(Struct, frozen=True, kw_only=True):
    """A permission that a person gave for more than one call: for a class of calls, under one policy."""

    grant_id: str
    principal: PrincipalId
    agent_id: AgentId
    tool: str
    kind: str
    """The class of arguments, as `Effect.kind` names it."""
    policy_hash: str
    label: str
    """The least trusted label that it covers."""
    scope: ApprovalScope
    session_id: SessionId | None
    granted_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


class Approval(Struct, frozen=True, kw_only=True):
    """An approval request and, once there is one, its answer."""

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
    """Why the policy requires approval."""
    policies: tuple[str, ...]
    policy_hash: str
    labels: tuple[str, ...]
    requested_at: datetime
    expires_at: datetime
    decision: str | None = None
    scope: ApprovalScope | None = None
    answered_at: datetime | None = None
    answered_by: str | None = None
    answer: str = ""
    """The person's comment."""
    reissued_as: RunId | None = None
    """The latest run that proposes the same call again, because the request expired."""
    edited_arguments: JsonObject | None = None
    """The arguments that the person set in place of the proposed ones. They are on the tape, and are not known for an
    archived tape."""
    pattern: str = ""
    """The pattern with which the person allowed further commands; not known for an archived tape either."""
