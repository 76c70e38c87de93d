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
    ApprovalDecision,
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
from palyra.core.ids import CallId, RunId, SessionId
from palyra.core.model.prompt import Reasoning, StopReason
from palyra.core.run import discovered_tools
from palyra.core.run.repetition import NOTHING_FAILED
from palyra.core.run.state import (
    RUNNABLE,
    SETTLED,
    TERMINAL,
    CallStage,
    CallState,
    FailedAttempt,
    RunEventInvalid,
    RunState,
    RunStatus,
)
from palyra.core.tool import CallOutcome, ToolCall, Verdict


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
            _require(not state.started, "attached history must come before the run's own message")
            return state
        case RunStarted():
            _require(not state.started, "the run was already started")
            return replace(state, started=True)
        case RunResumed():
            return _resume(state)
        case InputSteered(channel=came_by):
            takes = state.started and state.limit is None and state.cancel is None and state.refused is None
            takes = takes and not state.is_handed_over
            _require(takes, "the run accepts no further input")
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
            return _apply_decision(state, event)
        case ToolStarted() | ToolFinished() | ChildStarted() | ChildEnded():
            return _apply_execution(state, event)
        case CallHandedOver(call_id=call_id):
            return _hand_over(state, call_id)
        case LimitReached(limit=limit):
            _require(state.limit is None and state.turn is None, "the limit was already recorded, or a turn is open")
            return replace(state, limit=limit, assembled=False)
        case CancelRequested(reason=reason):
            return replace(state, cancel=state.cancel or reason)
        case RunCompleted():
            settled = state.turn is None and all(c.stage in SETTLED for c in state.calls)
            answered = state.has_text if state.last_turn else state.is_answered or state.is_handed_over
            _require(settled and answered, "there is no answer yet")
            _require(state.cancel is None, "the run is being cancelled")
            _require(state.refused is None, "the run may not exceed its budget")
            return replace(state, status=RunStatus.DONE)
        case RunFailed():
            _require(state.cancel is None, "the run is being cancelled")
            return _cut_off(state, RunStatus.FAILED)
        case RunCancelled():
            return _cut_off(state, RunStatus.CANCELLED)
        case RunAccepted():
            raise RunEventInvalid("the run was already accepted")
        case _ as never:
            assert_never(never)


def _resume(state: RunState) -> RunState:
    started = any(c.stage is CallStage.STARTED for c in state.calls)
    _require(state.turn is not None or started, "nothing was interrupted")
    calls = tuple(replace(c, stage=CallStage.INTERRUPTED) if c.stage is CallStage.STARTED else c for c in state.calls)
    if state.turn is None:
        return replace(state, calls=calls)
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
            _require(_may_ask_model(state), "no model turn may start now")
            return state
        case ContextAssembled(inputs=inputs):
            _require(_may_ask_model(state), "no model turn may start now")
            _require(inputs == state.inputs, "an input arrived in between")
            return replace(state, assembled=True)
        case ModelTurnStarted(turn=turn, last=last):
            _require(state.assembled and state.cancel is None, "the context is not assembled")
            _require(last == (state.limit is not None), "only the turn after a limit is the last one")
            _require(turn == state.turns + 1, "turn numbers must not have gaps")
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
            _require(first, "only a reissued call may come before the first turn")
            same = state.reissue is not None and (state.reissue.tool, state.reissue.arguments) == (tool, arguments)
            _require(same, "this is not the call that the run was accepted for")
            return _propose(state, event)
        case _ if event.turn != state.turn:
            raise RunEventInvalid(f"turn {event.turn} is not open")
        case ModelText(text=text):
            return replace(state, text=(*state.text, text))
        case ModelReasoning():
            return _think(state, event)
        case ToolProposed():
            fresh = all(c.call.call_id != event.call_id for c in state.calls)
            _require(fresh, f"call {event.call_id} was already proposed")
            return _propose(state, event)
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


def _may_ask_model(state: RunState) -> bool:
    free = state.turn is None and state.question is None and state.refused is None and state.cancel is None
    # A handed-over call is the caller's to execute: the model sees its result in another run.
    free = free and not state.is_handed_over
    return free and state.started and all(c.stage in SETTLED for c in state.calls)


def _propose(state: RunState, event: ToolProposed) -> RunState:
    call = ToolCall(call_id=event.call_id, tool=event.tool, arguments=event.arguments, malformed=event.malformed)
    return replace(state, calls=(*state.calls, CallState(call, CallStage.PROPOSED)))


def _apply_decision(state: RunState, event: PolicyDecided | ApprovalRequested | ApprovalResolved) -> RunState:
    _require(state.turn is None, "the turn is still open")
    match event:
        case PolicyDecided(call_id=call_id, verdict=verdict):
            stage = {Verdict.ALLOW: CallStage.ALLOWED, Verdict.ASK: CallStage.ASK, Verdict.DENY: CallStage.DENIED}[
                verdict
            ]
            decided = _move(state, call_id, {CallStage.PROPOSED}, stage)
            if verdict is Verdict.DENY:
                decided = _settled(decided, call_id, CallOutcome.DENIED)
            return _change(
                decided,
                call_id,
                policy_hash=event.policy_hash,
                grant_id=event.grant_id,
                labels=event.labels,
                credentials=event.effect.credentials if event.effect is not None else (),
            )
        case ApprovalRequested(budgets=budgets) if budgets:
            _require(_may_ask_model(state) and state.limit is None, "no approval about budgets may be requested now")
            names = tuple(one.budget for one in budgets)
            return replace(state, question=event.approval_id, at_stake=names, assembled=False)
        case ApprovalResolved(approval_id=approval_id) if state.question is not None:
            _require(approval_id == state.question, "this approval request is not open")
            return _answer(replace(state, question=None, at_stake=()), event, state.at_stake)
        case ApprovalRequested(call_id=call_id, approval_id=approval_id):
            _require(state.limit is None and state.cancel is None, "no approval may be requested any more")
            return _move(state, call_id, {CallStage.ASK}, CallStage.WAITING, waits_for=approval_id)
        case ApprovalResolved(call_id=call_id, approval_id=approval_id, decision=decision):
            call_state = state.call(call_id)
            _require(
                call_state.waits_for == approval_id and not call_state.for_child, "this approval request is not open"
            )
            if decision is not ApprovalDecision.ALLOWED:
                return _settled(
                    _move(state, call_id, {CallStage.WAITING}, CallStage.DENIED), call_id, CallOutcome.DENIED
                )
            if event.arguments is None:
                allowed = _move(state, call_id, {CallStage.WAITING}, CallStage.ALLOWED, approval_id=approval_id)
                return _change(allowed, call_id, answered=approval_id)
            edited = replace(call_state.call, arguments=event.arguments, malformed="")
            back = _move(state, call_id, {CallStage.WAITING}, CallStage.PROPOSED)
            return _change(back, call_id, call=edited, edited=True, answered=approval_id)
        case _ as never:
            assert_never(never)


def _answer(state: RunState, event: ApprovalResolved, budgets: tuple[str, ...]) -> RunState:
    """Record whether the run may exceed the budgets. A further message in place of an answer leaves it open."""
    match event.decision:
        case ApprovalDecision.ALLOWED:
            return replace(state, lifted=(*state.lifted, *budgets))
        case ApprovalDecision.WITHDRAWN:
            return state
        case ApprovalDecision.DENIED | ApprovalDecision.TIMED_OUT:
            return replace(state, refused=event.reason or event.decision.value)


def _apply_execution(state: RunState, event: ToolStarted | ToolFinished | ChildStarted | ChildEnded) -> RunState:
    _require(state.turn is None, "the turn is still open")
    match event:
        case ToolStarted(call_id=call_id, attempt=attempt):
            _require(state.limit is None and state.cancel is None, "no call may start any more")
            before = state.call(call_id)
            _require(attempt == before.attempts + 1, "attempt numbers must not have gaps")
            counted = replace(state, executed=state.executed + (attempt == 1))
            begun = _move(counted, call_id, RUNNABLE, CallStage.STARTED, attempts=attempt)
            return _change(begun, call_id, started=event)
        case ToolFinished(call_id=call_id):
            # A call that never started is settled this way too: refused at a limit, or not repeatable.
            from_stages = {
                CallStage.PROPOSED,
                CallStage.ALLOWED,
                CallStage.ASK,
                CallStage.STARTED,
                CallStage.INTERRUPTED,
            }
            finished = _settled(_move(state, call_id, from_stages, CallStage.FINISHED), call_id, event.outcome)
            return (
                replace(
                    finished,
                    discovered_tools=discovered_tools.join_tools(state.discovered_tools, event.discovered_tools),
                )
                if event.discovered_tools
                else finished
            )
        case ChildStarted(call_id=call_id, child_run_id=child):
            _require(state.limit is None and state.cancel is None, "no child may start any more")
            counted = replace(state, children=state.children + 1)
            return _move(counted, call_id, {CallStage.STARTED}, CallStage.WAITING, waits_for=child, for_child=True)
        case ChildEnded(call_id=call_id, child_run_id=child):
            awaited = state.call(call_id)
            _require(awaited.waits_for == child and awaited.for_child, "the run does not wait for this child")
            return _settled(_move(state, call_id, {CallStage.WAITING}, CallStage.FINISHED), call_id, event.outcome)
        case _ as never:
            assert_never(never)


def _settled(state: RunState, call_id: CallId, outcome: CallOutcome) -> RunState:
    """Record how a call ended, for the count of repeated failures."""
    return replace(state, repetition=state.repetition.with_result(state.call(call_id).call, outcome))


def _hand_over(state: RunState, call_id: CallId) -> RunState:
    _require(state.turn is None and not state.last_turn, "the turn is still open, or had no tools")
    _require(state.cancel is None, "the run is being cancelled")
    _require(state.inputs == state.inputs_shown, "an input arrived in between")
    _require(state.is_callers(state.call(call_id)), f"call {call_id} is not of a client tool")
    return _move(state, call_id, {CallStage.PROPOSED}, CallStage.HANDED_OVER)


def _move(
    state: RunState,
    call_id: CallId,
    allowed: set[CallStage] | frozenset[CallStage],
    stage: CallStage,
    *,
    attempts: int | None = None,
    waits_for: str | None = None,
    for_child: bool = False,
    approval_id: str | None = None,
) -> RunState:
    before = state.call(call_id)
    _require(before.stage in allowed, f"call {call_id} is {before.stage}")
    after = replace(
        before,
        stage=stage,
        attempts=before.attempts if attempts is None else attempts,
        waits_for=waits_for,
        for_child=for_child,
        approval_id=approval_id or before.approval_id,
    )
    return replace(state, calls=tuple(after if c is before else c for c in state.calls))


def _change(state: RunState, call_id: CallId, **fields: object) -> RunState:
    before = state.call(call_id)
    after = replace(before, **fields)
    return replace(state, calls=tuple(after if c is before else c for c in state.calls))


def _require(fits: bool, otherwise: str) -> None:
    if not fits:
        raise RunEventInvalid(otherwise)
