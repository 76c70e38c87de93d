"""Decides what follows when no budget covers a run's next turn: an approval request, or the end with a reason."""

from collections.abc import Callable, Sequence
from datetime import timedelta

from palyra.core.clock import Clock
from palyra.core.events import ApprovalRequested, RunEvent, RunFailed
from palyra.core.ids import CallId, IdSource
from palyra.core.policy.effect import Effect
from palyra.core.run.state import RunState
from palyra.core.run.steps import BUDGET_DENIED
from palyra.core.text.escaping import escape_line
from palyra.core.tool import Risk
from palyra.runs.services.approvers import ApproverPresence
from palyra.runs.services.budgets import BudgetExceeded, describe_overrun

BUDGET_EXCEEDED = "budget_exceeded"
NO_APPROVER = "No approver is reachable who could let the run exceed it."


class OverdraftPolicy:
    """Decides between requesting approval and ending the run."""

    def __init__(
        self, channels: ApproverPresence, *, expires: Callable[[], timedelta], clock: Clock, ids: IdSource
    ) -> None:
        """`expires` says how long an approval request stays open."""
        self._channels = channels
        self._expires = expires
        self._clock = clock
        self._ids = ids

    async def of(self, state: RunState, refusals: Sequence[BudgetExceeded]) -> RunEvent:
        """Return the next event: an approval request for the first refusal that allows one, if one can be answered."""
        askable = next((refusal for refusal in refusals if refusal.can_ask), None)
        if askable is None or state.limit is not None:
            return RunFailed(at=self._clock.now(), code=BUDGET_EXCEEDED, reason=refusals[0].detail)
        # Watchers of the parent run also get the approval requests of this one.
        if not await self._channels.wait_for(state.principal, state.session_id, state.root_session_id):
            return RunFailed(at=self._clock.now(), code=BUDGET_DENIED, reason=f"{askable.detail} {NO_APPROVER}")
        at = self._clock.now()
        text = "\n".join(escape_line(describe_overrun(one)) for one in askable.overdrawn)
        names = ", ".join(dict.fromkeys(escape_line(one.budget) for one in askable.overdrawn))
        return ApprovalRequested(
            at=at,
            call_id=CallId(""),
            approval_id=self._ids.new(),
            expires_at=at + self._expires(),
            effect=Effect(risk=Risk.MEDIUM, summary=f"exceed the budget {names}", detail=text),
            reason="the next model turn may need more than is left",
            budgets=askable.overdrawn,
        )
