"""What follows when no budget has room for a run's next turn: the owner is asked, or the run ends and says why."""

from collections.abc import Callable, Sequence
from datetime import timedelta

from palyra.core.clock import Clock
from palyra.core.display import escape_line
from palyra.core.effect import Effect
from palyra.core.events import ApprovalRequested, RunEvent, RunFailed
from palyra.core.ids import CallId, IdSource
from palyra.core.run import RunState
from palyra.core.step import BUDGET_DENIED
from palyra.core.tool import Risk
from palyra.runs.budgets import BudgetRefused, standing
from palyra.runs.channels import Channels

BUDGET_EXCEEDED = "budget_exceeded"
NOBODY = "Nobody is there to be asked whether the run may go beyond it."


class Overdraft:
    """Decides between the question and the end."""

    def __init__(self, channels: Channels, *, expires: Callable[[], timedelta], clock: Clock, ids: IdSource) -> None:
        """`expires` says how long a question stays open."""
        self._channels = channels
        self._expires = expires
        self._clock = clock
        self._ids = ids

    async def of(self, state: RunState, refusals: Sequence[BudgetRefused]) -> RunEvent:
        """Return the event that follows from it: the first refusal that may be asked about is, if anybody is there."""
        askable = next((refusal for refusal in refusals if refusal.may_be_asked), None)
        if askable is None or state.limit is not None:
            return RunFailed(at=self._clock.now(), code=BUDGET_EXCEEDED, reason=refusals[0].detail)
        # Whoever looks at the run that this one works for is told of its questions too.
        if not await self._channels.wait_for(state.principal, state.session_id, state.root_session_id):
            return RunFailed(at=self._clock.now(), code=BUDGET_DENIED, reason=f"{askable.detail} {NOBODY}")
        at = self._clock.now()
        told = "\n".join(escape_line(standing(one)) for one in askable.overdrawn)
        names = ", ".join(dict.fromkeys(escape_line(one.budget) for one in askable.overdrawn))
        return ApprovalRequested(
            at=at,
            call_id=CallId(""),
            approval_id=self._ids.new(),
            expires_at=at + self._expires(),
            effect=Effect(risk=Risk.MEDIUM, summary=f"go on beyond the budget {names}", detail=told),
            reason="the next turn of the model may take more than is left",
            budgets=askable.overdrawn,
        )
