"""The run machine: what has happened decides what happens next.

A run is a fold over its events. `evolve` takes one event into the state, or raises `IllegalTransition` and changes
nothing. `next_step` says what the loop must do now. Both are pure, so a run can be picked up by any process at
any time: replay the tape, ask for the next step, carry it out, record what came of it.

Three ideas carry the rest:

- *Whoever asks is the only one who acts.* A run has one carrier. So when `next_step` is asked while a turn is open or a
  call is started, nobody is at work on them: their carrier died or was interrupted. The answer is `Resume`, whose event
  voids the turn and marks the calls interrupted. A crash needs no other treatment.
- *Others may write between any two of the carrier's commits:* a cancel, an answer, a further input. They are folded in
  first; what the carrier wanted to record is then judged anew. An event that no longer fits is illegal, and the
  carrier decides again.
- *A limit is an event.* From `LimitReached` on no call runs any more, and the model gets one last turn without tools.
"""

from typing import assert_never

from msgspec.structs import replace

from palyra.core import channel, found
from palyra.core.events import (
    ApprovalRequested,
    ApprovalResolved,
    BudgetWarned,
    CallHandedOver,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    ContextAssembled,
    Decision,
    InputSteered,
    LimitReached,
    MessageGiven,
    ModelReasoning,
    ModelText,
    ModelTurnEnded,
    ModelTurnStarted,
    ModelTurnVoided,
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
from palyra.core.prompt import Reasoning, StopReason
from palyra.core.repetition import NOTHING_FAILED
from palyra.core.run import (
    RUNNABLE,
    SETTLED,
    TERMINAL,
    CallState,
    Failure,
    IllegalTransition,
    RunState,
    RunStatus,
    Stage,
)
from palyra.core.tool import Outcome, ToolCall, Verdict


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
        brief=event.brief,
        origin=event.origin,
        channels=event.channels or (event.origin,),
        # It was found when it was first proposed.
        found=(event.reissue.tool,) if event.reissue is not None else (),
        carried_ms=event.carried_ms,
    )


def evolve(state: RunState, event: RunEvent) -> RunState:
    """Take one event into the state, or raise `IllegalTransition`."""
    if state.status in TERMINAL:
        raise IllegalTransition(f"the run is {state.status}; {type(event).__name__} comes too late")
    after = _apply(state, event)
    return replace(
        after,
        run_seq=state.run_seq + 1,
        carried_ms=state.carried_ms + event.carried_ms,
        status=_status(after),
    )


def _status(state: RunState) -> RunStatus:
    if state.status in TERMINAL:
        return state.status
    if state.question is not None:
        return RunStatus.WAITING
    if state.turns == 0 and not state.calls:
        return RunStatus.IN_PROGRESS if state.status is RunStatus.WAITING else state.status
    waits = any(c.stage is Stage.WAITING for c in state.calls)
    idle = SETTLED | {Stage.WAITING}
    works = any(c.stage not in idle and not _comes_last(state, c) for c in state.calls)
    return RunStatus.WAITING if waits and not works else RunStatus.IN_PROGRESS


def _comes_last(state: RunState, call: CallState) -> bool:
    """Tell whether a call is the caller's, which is left to him when all others are settled."""
    return call.stage is Stage.PROPOSED and state.is_callers(call)


def _apply(state: RunState, event: RunEvent) -> RunState:
    match event:
        case MessageGiven():
            _require(not state.started, "what the caller brings along comes before the run's own message")
            return state
        case RunStarted():
            _require(not state.started, "the run was started before")
            return replace(state, started=True)
        case RunResumed():
            return _resume(state)
        case InputSteered(origin=origin):
            takes = state.started and state.limit is None and state.cancel is None and state.refused is None
            takes = takes and not state.is_handed_over
            _require(takes, "the run takes no further input")
            channels = channel.join(state.channels, (origin,))
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
            | ModelTurnVoided()
        ):
            return _apply_turn(state, event)
        case PolicyDecided() | ApprovalRequested() | ApprovalResolved():
            return _apply_decision(state, event)
        case ToolStarted() | ToolFinished() | ChildStarted() | ChildEnded():
            return _apply_execution(state, event)
        case CallHandedOver(call_id=call_id):
            return _hand_over(state, call_id)
        case LimitReached(limit=limit):
            _require(state.limit is None and state.turn is None, "the limit was noted before, or a turn is open")
            return replace(state, limit=limit, assembled=False)
        case CancelRequested(reason=reason):
            return replace(state, cancel=state.cancel or reason)
        case RunCompleted():
            settled = state.turn is None and all(c.stage in SETTLED for c in state.calls)
            answered = state.said_something if state.last_turn else state.is_answered or state.is_handed_over
            _require(settled and answered, "there is no answer yet")
            _require(state.cancel is None, "the run is being cancelled")
            _require(state.refused is None, "the run may not go beyond its budget")
            return replace(state, status=RunStatus.DONE)
        case RunFailed():
            _require(state.cancel is None, "the run is being cancelled")
            return _cut_off(state, RunStatus.FAILED)
        case RunCancelled():
            return _cut_off(state, RunStatus.CANCELLED)
        case RunAccepted():
            raise IllegalTransition("the run was accepted before")
        case _ as never:
            assert_never(never)


def _resume(state: RunState) -> RunState:
    started = any(c.stage is Stage.STARTED for c in state.calls)
    _require(state.turn is not None or started, "nothing was left open")
    calls = tuple(replace(c, stage=Stage.INTERRUPTED) if c.stage is Stage.STARTED else c for c in state.calls)
    if state.turn is None:
        return replace(state, calls=calls)
    return replace(
        _void_turn(state),
        interrupted_turns=state.interrupted_turns + 1,
        interrupted_in_a_row=state.interrupted_in_a_row + 1,
    )


def _cut_off(state: RunState, status: RunStatus) -> RunState:
    """End the run where it stands. The text of a turn that had ended is part of the conversation already."""
    return replace(state, status=status, turn=None, text=state.text if state.turn is not None else ())


def _void_turn(state: RunState) -> RunState:
    return replace(
        state,
        turn=None,
        last_turn=False,
        text=(),
        reasoning=(),
        thinks=False,
        calls=(),
        answered=False,
        inputs_seen=0,
        assembled=False,
    )


def _think(state: RunState, event: ModelReasoning) -> RunState:
    """Add a piece to the thought that is open, or begin one; a dialect closes it."""
    before = state.reasoning[:-1] if state.thinks else state.reasoning
    known = state.reasoning[-1].text if state.thinks else ""
    thought = Reasoning(text=known + event.text, dialect=event.dialect, data=event.data)
    return replace(state, reasoning=(*before, thought), thinks=not event.dialect)


TurnEvent = (
    ContextAssembled
    | BudgetWarned
    | ModelTurnStarted
    | ModelReasoning
    | ModelText
    | ToolProposed
    | ModelTurnEnded
    | ModelTurnVoided
)


def _apply_turn(state: RunState, event: TurnEvent) -> RunState:
    match event:
        case BudgetWarned():
            _require(_may_ask_model(state), "the model can not be asked now")
            return state
        case ContextAssembled(inputs=inputs):
            _require(_may_ask_model(state), "the model can not be asked now")
            _require(inputs == state.inputs, "an input came in between")
            return replace(state, assembled=True)
        case ModelTurnStarted(turn=turn, last=last):
            _require(state.assembled and state.cancel is None, "the context is not assembled")
            _require(last == (state.limit is not None), "the last turn is the one after a limit")
            _require(turn == state.turns + 1, "turns are counted without gaps")
            return replace(
                state,
                status=RunStatus.IN_PROGRESS,
                turns=turn,
                turn=turn,
                last_turn=last,
                asked=f"{event.provider}/{event.model}",
                reserved=event.reserved,
                text=(),
                text_labels=event.labels,
                reasoning=(),
                thinks=False,
                calls=(),
                answered=False,
                inputs_seen=state.inputs,
                assembled=False,
                found=event.found,
            )
        case ToolProposed(turn=0, tool=tool, arguments=arguments):
            first = state.started and state.turns == 0 and not state.assembled and not state.calls
            _require(first, "only a run's first step can be a call of then")
            same = state.reissue is not None and (state.reissue.tool, state.reissue.arguments) == (tool, arguments)
            _require(same, "this is not the call that the run was accepted for")
            return _propose(state, event)
        case _ if event.turn != state.turn:
            raise IllegalTransition(f"turn {event.turn} is not open")
        case ModelText(text=text):
            return replace(state, text=(*state.text, text))
        case ModelReasoning():
            return _think(state, event)
        case ToolProposed():
            fresh = all(c.call.call_id != event.call_id for c in state.calls)
            _require(fresh, f"call {event.call_id} was proposed before")
            return _propose(state, event)
        case ModelTurnEnded(stop=stop):
            answered = not state.calls or (stop is StopReason.LENGTH and state.is_bounded)
            return replace(state, turn=None, answered=answered, failures=(), interrupted_in_a_row=0)
        case ModelTurnVoided():
            failure = Failure(state.asked, event.failure, event.retry_ms, event.reason, event.refused)
            return replace(
                _void_turn(state),
                failures=(*state.failures, failure),
                failed_turns=state.failed_turns + 1,
            )
        case _ as never:
            assert_never(never)


def _may_ask_model(state: RunState) -> bool:
    free = state.turn is None and state.question is None and state.refused is None and state.cancel is None
    # What was handed over is the caller's turn: the model sees its result in another run.
    free = free and not state.is_handed_over
    return free and state.started and all(c.stage in SETTLED for c in state.calls)


def _propose(state: RunState, event: ToolProposed) -> RunState:
    call = ToolCall(call_id=event.call_id, tool=event.tool, arguments=event.arguments, malformed=event.malformed)
    return replace(state, calls=(*state.calls, CallState(call, Stage.PROPOSED)))


def _apply_decision(state: RunState, event: PolicyDecided | ApprovalRequested | ApprovalResolved) -> RunState:
    _require(state.turn is None, "the turn is still open")
    match event:
        case PolicyDecided(call_id=call_id, verdict=verdict):
            stage = {Verdict.ALLOW: Stage.ALLOWED, Verdict.ASK: Stage.ASK, Verdict.DENY: Stage.DENIED}[verdict]
            decided = _move(state, call_id, {Stage.PROPOSED}, stage)
            if verdict is Verdict.DENY:
                decided = _settled(decided, call_id, Outcome.DENIED)
            return _change(
                decided,
                call_id,
                policy_hash=event.policy_hash,
                grant_id=event.grant_id,
                labels=event.labels,
                credentials=event.effect.credentials if event.effect is not None else (),
            )
        case ApprovalRequested(budgets=budgets) if budgets:
            _require(_may_ask_model(state) and state.limit is None, "nobody is asked about budgets now")
            names = tuple(one.budget for one in budgets)
            return replace(state, question=event.approval_id, at_stake=names, assembled=False)
        case ApprovalResolved(approval_id=approval_id) if state.question is not None:
            _require(approval_id == state.question, "that question is not open")
            return _answer(replace(state, question=None, at_stake=()), event, state.at_stake)
        case ApprovalRequested(call_id=call_id, approval_id=approval_id):
            _require(state.limit is None and state.cancel is None, "nobody is asked any more")
            return _move(state, call_id, {Stage.ASK}, Stage.WAITING, waits_for=approval_id)
        case ApprovalResolved(call_id=call_id, approval_id=approval_id, decision=decision):
            asked = state.call(call_id)
            _require(asked.waits_for == approval_id and not asked.for_child, "that question is not open")
            if decision is not Decision.ALLOWED:
                return _settled(_move(state, call_id, {Stage.WAITING}, Stage.DENIED), call_id, Outcome.DENIED)
            if event.arguments is None:
                allowed = _move(state, call_id, {Stage.WAITING}, Stage.ALLOWED, approval_id=approval_id)
                return _change(allowed, call_id, answered=approval_id)
            edited = replace(asked.call, arguments=event.arguments, malformed="")
            back = _move(state, call_id, {Stage.WAITING}, Stage.PROPOSED)
            return _change(back, call_id, call=edited, edited=True, answered=approval_id)
        case _ as never:
            assert_never(never)


def _answer(state: RunState, event: ApprovalResolved, budgets: tuple[str, ...]) -> RunState:
    """Take in whether the run may go beyond the budgets. Other words instead of an answer leave it open."""
    match event.decision:
        case Decision.ALLOWED:
            return replace(state, lifted=(*state.lifted, *budgets))
        case Decision.WITHDRAWN:
            return state
        case Decision.DENIED | Decision.TIMED_OUT:
            return replace(state, refused=event.reason or event.decision.value)


def _apply_execution(state: RunState, event: ToolStarted | ToolFinished | ChildStarted | ChildEnded) -> RunState:
    _require(state.turn is None, "the turn is still open")
    match event:
        case ToolStarted(call_id=call_id, attempt=attempt):
            _require(state.limit is None and state.cancel is None, "no call may start any more")
            before = state.call(call_id)
            _require(attempt == before.attempts + 1, "attempts are counted without gaps")
            counted = replace(state, executed=state.executed + (attempt == 1))
            begun = _move(counted, call_id, RUNNABLE, Stage.STARTED, attempts=attempt)
            return _change(begun, call_id, started=event)
        case ToolFinished(call_id=call_id):
            # A call that never started is settled this way too: refused at a limit, or not repeatable.
            from_stages = {Stage.PROPOSED, Stage.ALLOWED, Stage.ASK, Stage.STARTED, Stage.INTERRUPTED}
            finished = _settled(_move(state, call_id, from_stages, Stage.FINISHED), call_id, event.outcome)
            return replace(finished, found=found.join(state.found, event.found)) if event.found else finished
        case ChildStarted(call_id=call_id, child_run_id=child):
            _require(state.limit is None and state.cancel is None, "no child may start any more")
            counted = replace(state, children=state.children + 1)
            return _move(counted, call_id, {Stage.STARTED}, Stage.WAITING, waits_for=child, for_child=True)
        case ChildEnded(call_id=call_id, child_run_id=child):
            awaited = state.call(call_id)
            _require(awaited.waits_for == child and awaited.for_child, "that child is not awaited")
            return _settled(_move(state, call_id, {Stage.WAITING}, Stage.FINISHED), call_id, event.outcome)
        case _ as never:
            assert_never(never)


def _settled(state: RunState, call_id: CallId, outcome: Outcome) -> RunState:
    """Take in how a call ended, for the count of failures that repeat."""
    return replace(state, repetition=state.repetition.with_result(state.call(call_id).call, outcome))


def _hand_over(state: RunState, call_id: CallId) -> RunState:
    _require(state.turn is None and not state.last_turn, "the turn is still open, or had no tools")
    _require(state.cancel is None, "the run is being cancelled")
    _require(state.inputs == state.inputs_seen, "an input came in between")
    _require(state.is_callers(state.call(call_id)), f"call {call_id} is of no tool that the caller has")
    return _move(state, call_id, {Stage.PROPOSED}, Stage.HANDED_OVER)


def _move(
    state: RunState,
    call_id: CallId,
    allowed: set[Stage] | frozenset[Stage],
    stage: Stage,
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
        raise IllegalTransition(otherwise)
