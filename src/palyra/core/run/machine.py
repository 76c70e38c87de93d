"""The run machine: derives the state of a run, and its next step, from its events.

A run is a fold over its events. `evolve` applies one event to the state, or raises `RunEventInvalid` and changes
nothing. `next_step` says what the loop must do now. Both are pure, so any process can continue a run at any time:
replay the tape, get the next step, execute it, record the result.

Three rules explain the rest:

- *Only the lease holder calls `next_step`.* A run has one worker. So if a turn is open or a call is started at that
  time, no one works on it: its worker died or was interrupted. The answer is `Resume`, whose event discards the turn
  and marks the calls as interrupted. A crash needs no other treatment.
- *Others may write between any two commits of the worker:* a cancel, an approval, a further input. Their events are
  applied first; what the worker wanted to record is then checked again. An event that no longer fits is invalid, and
  the worker decides again.
- *A limit is an event.* After `LimitReached` no call runs, and the model gets one last turn without tools.
"""

from typing import assert_never

from msgspec.structs import replace

from palyra.core import channel
from palyra.core.events import (
    ApprovalRequested,
    ApprovalResolved,
    BudgetWarned,
    CallHandedOver,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    ContextAssembled,
    HistoryAttached,
    InputSteered,
    LimitReached,
    ModelReasoning,
    ModelText,
    ModelTurnDiscarded,
    ModelTurnEnded,
    ModelTurnStarted,
    PolicyDecided,
    RunAccepted,
    RunCancelled,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunResumed,
    RunStarted,
    ToolFinished,
    ToolProposed,
    ToolStarted,
)
from palyra.core.ids import RunId, SessionId
from palyra.core.model.prompt import Reasoning, StopReason
from palyra.core.run import calls
from palyra.core.run.repetition import NOTHING_FAILED
from palyra.core.run.state import (
    SETTLED,
    TERMINAL,
    CallStage,
    CallState,
    FailedAttempt,
    RunEventInvalid,
    RunState,
    RunStatus,
    require,
)


def begin(run_id: RunId, session_id: SessionId, event: RunAccepted) -> RunState:
    """Return the state of a run that was just accepted."""
    return RunState(
        run_id=run_id,
        session_id=session_id,
        principal=event.principal,
        agent_id=event.agent_id,
        limits=event.limits,
        parent=event.parent,
        reissue=event.reissue,
        options=event.options,
        channel=event.channel,
        channels=event.source_channels or (event.channel,),
        # It was discovered when it was first proposed.
        discovered_tools=(event.reissue.tool,) if event.reissue is not None else (),
        active_ms=event.active_ms,
    )


def evolve(state: RunState, event: RunEvent) -> RunState:
    """Apply one event to the state, or raise `RunEventInvalid`."""
    if state.status in TERMINAL:
        raise RunEventInvalid(f"the run is {state.status}, so {type(event).__name__} comes too late")
    after = _apply(state, event)
    return replace(
        after,
        run_seq=state.run_seq + 1,
        active_ms=state.active_ms + event.active_ms,
        status=_status(after),
    )


def _status(state: RunState) -> RunStatus:
    if state.status in TERMINAL:
        return state.status
    if state.question is not None:
        return RunStatus.WAITING
    if state.turns == 0 and not state.calls:
        return RunStatus.IN_PROGRESS if state.status is RunStatus.WAITING else state.status
    waits = any(c.stage is CallStage.WAITING for c in state.calls)
    idle = SETTLED | {CallStage.WAITING}
    works = any(c.stage not in idle and not _comes_last(state, c) for c in state.calls)
    return RunStatus.WAITING if waits and not works else RunStatus.IN_PROGRESS


def _comes_last(state: RunState, call: CallState) -> bool:
    """Return whether a call is of a client tool; those are handed over when all others are settled."""
    return call.stage is CallStage.PROPOSED and state.is_callers(call)


def _apply(state: RunState, event: RunEvent) -> RunState:
    match event:
        case HistoryAttached():
            require(not state.started, "attached history must come before the run's own message")
            return state
        case RunStarted():
            require(not state.started, "the run was already started")
            return replace(state, started=True)
        case RunResumed():
            return _resume(state)
        case InputSteered(channel=came_by):
            takes = state.started and state.limit is None and state.cancel is None and state.refused is None
            takes = takes and not state.is_handed_over
            require(takes, "the run accepts no further input")
            channels = channel.join(state.channels, (came_by,))
            return replace(
                state, inputs=state.inputs + 1, assembled=False, channels=channels, repetition=NOTHING_FAILED
            )
        case (
            ContextAssembled()
            | BudgetWarned()
            | ModelTurnStarted()
            | ModelReasoning()
            | ModelText()
            | ToolProposed()
            | ModelTurnEnded()
            | ModelTurnDiscarded()
        ):
            return _apply_turn(state, event)
        case PolicyDecided() | ApprovalRequested() | ApprovalResolved():
            return calls.decide(state, event)
        case ToolStarted() | ToolFinished() | ChildStarted() | ChildEnded():
            return calls.execute(state, event)
        case CallHandedOver(call_id=call_id):
            return calls.hand_over(state, call_id)
        case LimitReached(limit=limit):
            require(state.limit is None and state.turn is None, "the limit was already recorded, or a turn is open")
            return replace(state, limit=limit, assembled=False)
        case CancelRequested(reason=reason):
            return replace(state, cancel=state.cancel or reason)
        case RunCompleted():
            settled = state.turn is None and all(c.stage in SETTLED for c in state.calls)
            answered = state.has_text if state.last_turn else state.is_answered or state.is_handed_over
            require(settled and answered, "there is no answer yet")
            require(state.cancel is None, "the run is being cancelled")
            require(state.refused is None, "the run may not exceed its budget")
            return replace(state, status=RunStatus.DONE)
        case RunFailed():
            require(state.cancel is None, "the run is being cancelled")
            return _cut_off(state, RunStatus.FAILED)
        case RunCancelled():
            return _cut_off(state, RunStatus.CANCELLED)
        case RunAccepted():
            raise RunEventInvalid("the run was already accepted")
        case _ as never:
            assert_never(never)


def _resume(state: RunState) -> RunState:
    started = any(c.stage is CallStage.STARTED for c in state.calls)
    require(state.turn is not None or started, "nothing was interrupted")
    if state.turn is None:
        return calls.interrupt(state)
    return replace(
        _discard_turn(state),
        interrupted_turns=state.interrupted_turns + 1,
        interrupted_in_a_row=state.interrupted_in_a_row + 1,
    )


def _cut_off(state: RunState, status: RunStatus) -> RunState:
    """End the run in its current state. The text of a turn that had ended is already part of the conversation."""
    return replace(state, status=status, turn=None, text=state.text if state.turn is not None else ())


def _discard_turn(state: RunState) -> RunState:
    return replace(
        state,
        turn=None,
        last_turn=False,
        text=(),
        reasoning=(),
        thinks=False,
        calls=(),
        answered=False,
        inputs_shown=0,
        assembled=False,
    )


def _think(state: RunState, event: ModelReasoning) -> RunState:
    """Add a piece to the open reasoning block, or begin one; a dialect closes it."""
    before = state.reasoning[:-1] if state.thinks else state.reasoning
    known_name = state.reasoning[-1].text if state.thinks else ""
    thought = Reasoning(text=known_name + event.text, dialect=event.dialect, data=event.data)
    return replace(state, reasoning=(*before, thought), thinks=not event.dialect)


TurnEvent = (
    ContextAssembled
    | BudgetWarned
    | ModelTurnStarted
    | ModelReasoning
    | ModelText
    | ToolProposed
    | ModelTurnEnded
    | ModelTurnDiscarded
)


def _apply_turn(state: RunState, event: TurnEvent) -> RunState:
    match event:
        case BudgetWarned():
            require(state.may_ask_model, "no model turn may start now")
            return state
        case ContextAssembled(inputs=inputs):
            require(state.may_ask_model, "no model turn may start now")
            require(inputs == state.inputs, "an input arrived in between")
            return replace(state, assembled=True)
        case ModelTurnStarted(turn=turn, last=last):
            require(state.assembled and state.cancel is None, "the context is not assembled")
            require(last == (state.limit is not None), "only the turn after a limit is the last one")
            require(turn == state.turns + 1, "turn numbers must not have gaps")
            return replace(
                state,
                status=RunStatus.IN_PROGRESS,
                turns=turn,
                turn=turn,
                last_turn=last,
                last_model=f"{event.provider}/{event.model}",
                reserved=event.reserved,
                text=(),
                text_labels=event.labels,
                reasoning=(),
                thinks=False,
                calls=(),
                answered=False,
                inputs_shown=state.inputs,
                assembled=False,
                discovered_tools=event.discovered_tools,
            )
        case ToolProposed(turn=0, tool=tool, arguments=arguments):
            first = state.started and state.turns == 0 and not state.assembled and not state.calls
            require(first, "only a reissued call may come before the first turn")
            same = state.reissue is not None and (state.reissue.tool, state.reissue.arguments) == (tool, arguments)
            require(same, "this is not the call that the run was accepted for")
            return calls.propose(state, event)
        case _ if event.turn != state.turn:
            raise RunEventInvalid(f"turn {event.turn} is not open")
        case ModelText(text=text):
            return replace(state, text=(*state.text, text))
        case ModelReasoning():
            return _think(state, event)
        case ToolProposed():
            fresh = all(c.call.call_id != event.call_id for c in state.calls)
            require(fresh, f"call {event.call_id} was already proposed")
            return calls.propose(state, event)
        case ModelTurnEnded(stop=stop):
            answered = not state.calls or (stop is StopReason.LENGTH and state.is_bounded)
            return replace(state, turn=None, answered=answered, failures=(), interrupted_in_a_row=0)
        case ModelTurnDiscarded():
            failure = FailedAttempt(state.last_model, event.failure, event.retry_after_ms, event.reason, event.refused)
            return replace(
                _discard_turn(state),
                failures=(*state.failures, failure),
                failed_turns=state.failed_turns + 1,
            )
        case _ as never:
            assert_never(never)
