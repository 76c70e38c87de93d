"""Approval requests and grants, as the events of a run derive them."""

from palyra.core.events import ApprovalRequested, ApprovalResolved
from palyra.core.policy import labels
from palyra.core.policy.approval import Approval, ApprovalScope, Grant
from palyra.core.policy.effect import Effect, class_of_pattern
from palyra.core.run.state import RunState
from palyra.core.tool import Risk

RUN_ENDED = "the run has ended"


def approval_of_event(state: RunState, event: ApprovalRequested) -> Approval:
    """Return the approval request of a run's event."""
    return Approval(
        approval_id=event.approval_id,
        principal=state.principal,
        session_id=state.session_id,
        run_id=state.run_id,
        call_id=event.call_id,
        agent_id=state.agent_id,
        tool=event.tool,
        arguments=event.arguments,
        effect=event.effect or Effect(risk=Risk.HIGH, summary=event.tool),
        reason=event.reason,
        policies=event.policies,
        policy_hash=event.policy_hash,
        labels=event.labels,
        requested_at=event.at,
        expires_at=event.expires_at,
    )


def grant_of_answer(approval: Approval, event: ApprovalResolved, grant_id: str) -> Grant:
    """Return the grant that follows from the answer to an approval request."""
    return Grant(
        grant_id=grant_id,
        principal=approval.principal,
        agent_id=approval.agent_id,
        tool=approval.tool,
        kind=class_of_pattern(approval.effect, event.pattern) if event.pattern else approval.effect.kind,
        policy_hash=approval.policy_hash,
        label=labels.least_trusted(approval.labels),
        scope=event.scope,
        session_id=approval.session_id if event.scope is ApprovalScope.SESSION else None,
        granted_at=event.at,
        expires_at=event.until,
    )
