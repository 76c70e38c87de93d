"""End the run, or record what keeps it from going on."""

from collections.abc import Iterator
from datetime import datetime

from palyra.core.clock import Clock
from palyra.core.events import CallHandedOver, LimitReached, RunEvent, RunResumed, ToolFinished
from palyra.core.ids import CallId
from palyra.core.limits import LimitKind
from palyra.core.policy import labels
from palyra.core.run.state import CallStage, CallState, RunState
from palyra.core.run.steps import Finish, HandOver, NoteLimit, RefuseCalls, Resume
from palyra.core.tool import CallOutcome
from palyra.runs.engine.attester import ExecutionAttester
from palyra.runs.recording.emit import Emit
from palyra.runs.recording.run_writer import ending_event

ONE_BY_ONE = "not executed: calls of this tool are executed one at a time; call it again if it is still needed"
OVERTAKEN = "not executed: another message came in first"


class FinishStep:
    """Executes `Finish`, `HandOver`, `NoteLimit`, `RefuseCalls` and `Resume`: steps that only record."""

    def __init__(self, *, attester: ExecutionAttester, clock: Clock) -> None:
        self._attester = attester
        self._clock = clock

    async def perform(
        self, state: RunState, step: Finish | HandOver | NoteLimit | RefuseCalls | Resume, emit: Emit
    ) -> None:
        """Record what the step says."""
        at = self._clock.now()
        match step:
            case NoteLimit(limit=limit):
                await emit([LimitReached(at=at, limit=limit)])
            case Resume():
                await emit([RunResumed(at=at)])
            case RefuseCalls(calls=calls, limit=limit):
                await emit([self._attester.attest(state, _refused(call, limit, at=at)) for call in calls])
            case HandOver(calls=calls):
                await emit(list(self._handed_over(state, calls, at=at)))
            case Finish():
                await emit([ending_event(step, at=at)])

    def _handed_over(self, state: RunState, calls: tuple[CallState, ...], *, at: datetime) -> Iterator[RunEvent]:
        """Yield the event for each call: the caller cannot use arguments that cannot be parsed."""
        handed_over = False
        for call in calls:
            call_id, tool = call.call.call_id, call.call.tool
            if call.call.malformed:
                why = f"{tool} was not called: {call.call.malformed}. Send one JSON object."
                yield self._attester.attest(state, _unmade(call_id, CallOutcome.ERROR, why, at=at))
            elif handed_over and state.options.one_by_one:
                yield self._attester.attest(state, _unmade(call_id, CallOutcome.SKIPPED, ONE_BY_ONE, at=at))
            else:
                yield CallHandedOver(at=at, actor=state.principal, call_id=call_id)
                handed_over = True


def _refused(call: CallState, limit: LimitKind | None, *, at: datetime) -> ToolFinished:
    outcome = CallOutcome.INTERRUPTED if call.stage is CallStage.INTERRUPTED else CallOutcome.SKIPPED
    why = (
        f"not executed: the run reached its limit ({limit.value.replace('_', ' ')})" if limit is not None else OVERTAKEN
    )
    return _unmade(call.call.call_id, outcome, why, at=at)


def _unmade(call_id: CallId, outcome: CallOutcome, text: str, *, at: datetime) -> ToolFinished:
    return ToolFinished(at=at, labels=(labels.TOOL,), call_id=call_id, outcome=outcome, text=text)
