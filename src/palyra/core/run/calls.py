"""The calls of a run: how events move each of them from its proposal to its result."""

from typing import assert_never

from msgspec.structs import replace

from palyra.core.events import (
    ApprovalDecision,
    ApprovalRequested,
    ApprovalResolved,
    ChildEnded,
    ChildStarted,
    PolicyDecided,
    ToolFinished,
    ToolProposed,
    ToolStarted,
)
from palyra.core.ids import CallId
from palyra.core.run import discovered_tools
from palyra.core.run.state import RUNNABLE, CallStage, CallState, RunState, require
from palyra.core.tool import CallOutcome, ToolCall, Verdict


def propose(state: RunState, event: ToolProposed) -> RunState:
    """Add a call to the current turn."""
    call = ToolCall(call_id=event.call_id, tool=event.tool, arguments=event.arguments, malformed=event.malformed)
    return replace(state, calls=(*state.calls, CallState(call, CallStage.PROPOSED)))


def interrupt(state: RunState) -> RunState:
    """Mark the started calls as interrupted: their worker is gone."""
    calls = (replace(c, stage=CallStage.INTERRUPTED) if c.stage is CallStage.STARTED else c for c in state.calls)
    return replace(state, calls=tuple(calls))


def decide(state: RunState, event: PolicyDecided | ApprovalRequested | ApprovalResolved) -> RunState:
    """Apply what policies or a person decided."""
    require(state.turn is None, "the turn is still open")
    match event:
        case PolicyDecided(call_id=call_id, verdict=verdict):
            stage = {
                Verdict.ALLOW: CallStage.ALLOWED,
                Verdict.ASK: CallStage.NEEDS_APPROVAL,
                Verdict.DENY: CallStage.DENIED,
            }[verdict]
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
            require(state.may_ask_model and state.limit is None, "no approval about budgets may be requested now")
            names = tuple(one.budget for one in budgets)
            return replace(state, question=event.approval_id, at_stake=names, assembled=False)
        case ApprovalResolved(approval_id=approval_id) if state.question is not None:
            require(approval_id == state.question, "this approval request is not open")
            return _answer(replace(state, question=None, at_stake=()), event, state.at_stake)
        case ApprovalRequested(call_id=call_id, approval_id=approval_id):
            require(state.limit is None and state.cancel is None, "no approval may be requested any more")
            return _move(state, call_id, {CallStage.NEEDS_APPROVAL}, CallStage.WAITING, waits_for=approval_id)
        case ApprovalResolved(call_id=call_id, approval_id=approval_id, decision=decision):
            call_state = state.call(call_id)
            require(
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


def execute(state: RunState, event: ToolStarted | ToolFinished | ChildStarted | ChildEnded) -> RunState:
    """Apply the start or the end of an execution."""
    require(state.turn is None, "the turn is still open")
    match event:
        case ToolStarted(call_id=call_id, attempt=attempt):
            require(state.limit is None and state.cancel is None, "no call may start any more")
            before = state.call(call_id)
            require(attempt == before.attempts + 1, "attempt numbers must not have gaps")
            counted = replace(state, executed=state.executed + (attempt == 1))
            begun = _move(counted, call_id, RUNNABLE, CallStage.STARTED, attempts=attempt)
            return _change(begun, call_id, started=event)
        case ToolFinished(call_id=call_id):
            # A call that never started is settled this way too: refused at a limit, or not repeatable.
            from_stages = {
                CallStage.PROPOSED,
                CallStage.ALLOWED,
                CallStage.NEEDS_APPROVAL,
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
            require(state.limit is None and state.cancel is None, "no child may start any more")
            counted = replace(state, children=state.children + 1)
            return _move(counted, call_id, {CallStage.STARTED}, CallStage.WAITING, waits_for=child, for_child=True)
        case ChildEnded(call_id=call_id, child_run_id=child):
            awaited = state.call(call_id)
            require(awaited.waits_for == child and awaited.for_child, "the run does not wait for this child")
            return _settled(_move(state, call_id, {CallStage.WAITING}, CallStage.FINISHED), call_id, event.outcome)
        case _ as never:
            assert_never(never)


def _settled(state: RunState, call_id: CallId, outcome: CallOutcome) -> RunState:
    """Record how a call ended, for the count of repeated failures."""
    return replace(state, repetition=state.repetition.with_result(state.call(call_id).call, outcome))


def hand_over(state: RunState, call_id: CallId) -> RunState:
    """Leave a call of a client tool to the caller."""
    require(state.turn is None and not state.last_turn, "the turn is still open, or had no tools")
    require(state.cancel is None, "the run is being cancelled")
    require(state.inputs == state.inputs_shown, "an input arrived in between")
    require(state.is_callers(state.call(call_id)), f"call {call_id} is not of a client tool")
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
    require(before.stage in allowed, f"call {call_id} is {before.stage}")
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
