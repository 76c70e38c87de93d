"""End the run, or note what keeps it from going on."""

from datetime import datetime

from palyra.core import labels
from palyra.core.clock import Clock
from palyra.core.events import LimitReached, RunResumed, ToolFinished
from palyra.core.limits import LimitKind
from palyra.core.run import CallState, RunState, Stage
from palyra.core.step import Finish, NoteLimit, RefuseCalls, Resume
from palyra.core.tool import Outcome
from palyra.runs.attestations import Attester
from palyra.runs.record import ending
from palyra.runs.steps.port import Emit


class FinishStep:
    """Carries out `Finish`, `NoteLimit`, `RefuseCalls` and `Resume`: steps that only record."""

    def __init__(self, *, attester: Attester, clock: Clock) -> None:
        self._attester = attester
        self._clock = clock

    async def perform(self, state: RunState, step: Finish | NoteLimit | RefuseCalls | Resume, emit: Emit) -> None:
        """Record what the step says."""
        at = self._clock.now()
        match step:
            case NoteLimit(limit=limit):
                await emit([LimitReached(at=at, limit=limit)])
            case Resume():
                await emit([RunResumed(at=at)])
            case RefuseCalls(calls=calls, limit=limit):
                await emit([self._attester.attest(state, _refused(call, limit, at=at)) for call in calls])
            case Finish():
                await emit([ending(step, at=at)])


def _refused(call: CallState, limit: LimitKind, *, at: datetime) -> ToolFinished:
    return ToolFinished(
        at=at,
        labels=(labels.TOOL,),
        call_id=call.call.call_id,
        outcome=Outcome.INTERRUPTED if call.stage is Stage.INTERRUPTED else Outcome.SKIPPED,
        text=f"not run: the run reached its limit ({limit.value.replace('_', ' ')})",
    )
