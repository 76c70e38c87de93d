"""The next step of a run: a value computed from its state alone; the loop executes it."""

from dataclasses import dataclass

from palyra.core.limits import LimitKind
from palyra.core.run.state import SETTLED, CallStage, CallState, RunState, RunStatus
from palyra.core.tool import ToolCall

MAX_INTERRUPTED_TURNS = 10
"""How many turns in a row may be interrupted by the daemon's end: a run must end even if its turns cause that."""

TURNS_INTERRUPTED = "model_turns_interrupted"
"""The error code of a run that fails for that reason."""

BUDGET_DENIED = "budget_denied"
"""The error code of a run that needs more than its budget and may not exceed it."""


@dataclass(frozen=True, slots=True)
class CallModel:
    """Assemble the context and call the model; without tools if it is the last turn."""

    last: bool = False


@dataclass(frozen=True, slots=True)
class CheckPolicy:
    """Decide which of the proposed calls may run."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class AskApproval:
    """Request a person's approval for the calls."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class ExecuteTools:
    """Execute the calls; interrupted ones only if their tool may be repeated."""

    calls: tuple[CallState, ...]


@dataclass(frozen=True, slots=True)
class HandOver:
    """Hand the calls of client tools over to the caller: this ends the run."""

    calls: tuple[CallState, ...]


@dataclass(frozen=True, slots=True)
class RefuseCalls:
    """Settle calls that exceed a limit, or that a further message made obsolete."""

    calls: tuple[CallState, ...]
    limit: LimitKind | None


@dataclass(frozen=True, slots=True)
class Resume:
    """Close what a worker that is gone had opened."""


@dataclass(frozen=True, slots=True)
class NoteLimit:
    """Record that a limit was reached."""

    limit: LimitKind


@dataclass(frozen=True, slots=True)
class Suspend:
    """Do nothing until someone else writes to the run."""


@dataclass(frozen=True, slots=True)
class Finish:
    """End the run."""

    status: RunStatus
    reason: str = ""
    limit: LimitKind | None = None
    code: str = "model_answer_missing"
    """The error code of a run that fails."""


Step = (
    CallModel
    | CheckPolicy
    | AskApproval
    | ExecuteTools
    | HandOver
    | RefuseCalls
    | Resume
    | NoteLimit
    | Suspend
    | Finish
)


def next_step(state: RunState) -> Step:
    """Return what must be done now, given all events so far. The run must not have ended."""
    if not state.started:
        return Suspend()
    if state.cancel is not None:
        return Finish(RunStatus.CANCELLED, reason=state.cancel)
    if state.turn is not None or any(c.stage is CallStage.STARTED for c in state.calls):
        return Resume()
    if state.question is not None:
        return Suspend()
    if state.refused is not None:
        return Finish(
            RunStatus.FAILED, reason=f"the run may not exceed its budget: {state.refused}", code=BUDGET_DENIED
        )
    settled = all(c.stage in SETTLED for c in state.calls)
    if settled and state.last_turn:
        return _finish_at_limit(state)
    if settled and (state.is_answered or state.is_handed_over):
        return Finish(RunStatus.DONE, limit=state.limit)
    if state.active_ms >= state.limits.wall_clock_ms + state.limits.last_turn_timeout_ms:
        return Finish(RunStatus.CANCELLED, reason="timeout")
    if state.limit is None and (kind := _limit_met(state, settled=settled)):
        return NoteLimit(kind)
    if not settled:
        return _next_for_calls(state)
    if state.interrupted_in_a_row >= MAX_INTERRUPTED_TURNS:
        reason = f"the daemon ended {MAX_INTERRUPTED_TURNS} times in a row during a model turn"
        return Finish(RunStatus.FAILED, reason=reason, code=TURNS_INTERRUPTED)
    return CallModel(last=state.limit is not None)


def _limit_met(state: RunState, *, settled: bool) -> LimitKind | None:
    if state.active_ms >= state.limits.wall_clock_ms:
        return LimitKind.WALL_CLOCK
    stages = {c.stage for c in state.calls}
    if (
        stages & {CallStage.ALLOWED, CallStage.NEEDS_APPROVAL}
        and CallStage.INTERRUPTED not in stages
        and _room(state) <= 0
    ):
        return LimitKind.TOOL_CALLS
    if settled and state.repetition.is_stuck:
        return LimitKind.REPEATED_FAILURE
    if settled and state.counted_turns >= state.limits.model_turns:
        return LimitKind.MODEL_TURNS
    return None


def _room(state: RunState) -> int:
    """Return how many further calls may start."""
    return state.limits.tool_calls - state.executed


def _next_for_calls(state: RunState) -> Step:
    theirs = tuple(c for c in state.calls if c.stage is CallStage.PROPOSED and state.is_callers(c))
    if state.limit is not None:
        refused = tuple(c for c in state.calls if c.stage not in SETTLED and c.stage is not CallStage.WAITING)
        if not state.last_turn:
            refused = tuple(c for c in refused if c not in theirs)
        return RefuseCalls(refused, state.limit) if refused else _after_ours(state, theirs)
    if proposed := tuple(c.call for c in state.calls if c.stage is CallStage.PROPOSED and c not in theirs):
        return CheckPolicy(proposed)
    room = max(0, _room(state))
    # Interrupted calls were counted when they first started.
    allowed = [c for c in state.calls if c.stage is CallStage.ALLOWED][:room]
    if runnable := tuple(c for c in state.calls if c.stage is CallStage.INTERRUPTED or c in allowed):
        return ExecuteTools(runnable)
    ask = tuple(c for c in state.calls if c.stage is CallStage.NEEDS_APPROVAL)
    if len(ask) > room:
        # No approval is requested for a call that could not run anyway.
        return RefuseCalls(ask[room:], LimitKind.TOOL_CALLS)
    return AskApproval(tuple(c.call for c in ask)) if ask else _after_ours(state, theirs)


def _after_ours(state: RunState, theirs: tuple[CallState, ...]) -> Step:
    """Return the step for calls of client tools, once there is nothing to do about the others."""
    if not theirs or any(c.stage is CallStage.WAITING for c in state.calls):
        return Suspend()
    # A message that came meanwhile may change the model's plan, and a run that hands over no longer reads it.
    return RefuseCalls(theirs, None) if state.inputs > state.inputs_shown else HandOver(theirs)


def _finish_at_limit(state: RunState) -> Finish:
    if state.has_text:
        return Finish(RunStatus.DONE, limit=state.limit)
    return Finish(RunStatus.FAILED, reason="the run reached a limit, and the model gave no final answer")
