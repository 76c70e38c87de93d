"""Builders for events and run states: each says what the test cares about, and fills in the rest.

`fold` turns events into a state. `a_run` folds onto a run that is accepted and started. `a_turn` gives the events
of a whole model turn, `a_history` those of a short life that leaves the run in a given status.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import reduce

from palyra.core.event import ParentRun
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
    Reissue,
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
from palyra.core.ids import AgentId, CallId, PrincipalId, RunId, SessionId
from palyra.core.limits import LimitKind, Limits
from palyra.core.model.prompt import GenerationOptions, Role, StopReason
from palyra.core.model.request_options import NO_REQUEST_OPTIONS, ClientTool, RequestOptions
from palyra.core.run.machine import begin, evolve
from palyra.core.run.state import RunState, RunStatus
from palyra.core.session_events import EmbeddingsEnded, EmbeddingsOutcome, EmbeddingsStarted
from palyra.core.spending.budget import BudgetAction, BudgetOverrun, BudgetPeriod, BudgetWarning, Reservation
from palyra.core.spending.usage import Usage
from palyra.core.tool import CallOutcome, Risk, Verdict

AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
RUN = RunId("01JGKK8F5E000000000000000R")
SESSION = SessionId("01JGKK8F5E000000000000000S")
ANA = PrincipalId("user:ana")
AGENT = AgentId("01JGKK8F5E000000000000000A")


def fold(events: Iterable[RunEvent]) -> RunState:
    """Return the state that the events add up to. The first must be the acceptance."""
    first, *rest = events
    assert isinstance(first, RunAccepted)
    return reduce(evolve, rest, begin(RUN, SESSION, first))


def a_run(*events: RunEvent, limits: Limits | None = None, brief: RequestOptions | None = None) -> RunState:
    """Return a run that was accepted and started, and to which then the events happened.

    If a call is handed over, it is of a tool that the caller has.
    """
    if brief is None and any(isinstance(event, CallHandedOver) for event in events):
        brief = a_brief(*(event.tool for event in events if isinstance(event, ToolProposed)))
    return fold([an_accepted(limits=limits, brief=brief or NO_REQUEST_OPTIONS), a_start(), *events])


def a_history(status: RunStatus) -> list[RunEvent]:
    """Return the events of a run that stands at that status."""
    started: list[RunEvent] = [an_accepted(), a_start()]
    match status:
        case RunStatus.ACCEPTED:
            return [an_accepted()]
        case RunStatus.IN_PROGRESS:
            return [*started, *a_turn(1, "c1")]
        case RunStatus.WAITING:
            return [*started, *a_turn(1, "c1"), a_verdict("c1", Verdict.ASK), a_question("c1")]
        case RunStatus.DONE:
            return [*started, *a_turn(1), a_completion()]
        case RunStatus.FAILED:
            return [*started, a_failure()]
        case RunStatus.CANCELLED:
            return [*started, a_cancel(), a_cancellation()]


def a_turn(turn: int, *calls: str, text: str = "Well.", inputs: int = 1, last: bool = False) -> list[RunEvent]:
    """Return the events of a whole model turn: what it was shown, its text (if any), the calls it proposes, its end."""
    said: list[RunEvent] = [a_text(turn, text)] if text else []
    proposed: list[RunEvent] = [a_proposal(turn, call) for call in calls]
    return [a_context(inputs), a_turn_start(turn, last=last), *said, *proposed, a_turn_end(turn)]


def an_accepted(
    *,
    limits: Limits | None = None,
    parent: ParentRun | None = None,
    reissue: Reissue | None = None,
    origin: str = "api",
    channels: tuple[str, ...] = (),
    brief: RequestOptions = NO_REQUEST_OPTIONS,
    carried_ms: int = 0,
) -> RunAccepted:
    return RunAccepted(
        at=AT,
        text="Hello.",
        principal=ANA,
        agent_id=AGENT,
        limits=limits or Limits(),
        parent=parent,
        reissue=reissue,
        channel=origin,
        source_channels=channels,
        options=brief,
        active_ms=carried_ms,
    )


def a_brief(*tools: str, most_tokens: int | None = None) -> RequestOptions:
    """Return what a caller asks for that has tools of its own."""
    options = GenerationOptions(max_output_tokens=most_tokens)
    return RequestOptions(tools=tuple(ClientTool(name=name) for name in tools), generation=options)


def a_given(text: str = "Before.", role: Role = Role.USER, *, call_id: str | None = None) -> HistoryAttached:
    return HistoryAttached(at=AT, role=role, text=text, call_id=CallId(call_id) if call_id else None)


def a_hand_over(call: str, *, carried_ms: int = 0) -> CallHandedOver:
    return CallHandedOver(at=AT, call_id=CallId(call), active_ms=carried_ms)


def a_reissue(tool: str = "shell") -> Reissue:
    return Reissue(approval_id="a question of then", tool=tool, arguments={}, labels=("web",))


def a_start(*, carried_ms: int = 0) -> RunStarted:
    return RunStarted(at=AT, active_ms=carried_ms)


def a_resume(*, carried_ms: int = 0) -> RunResumed:
    return RunResumed(at=AT, active_ms=carried_ms)


def a_steer(text: str = "And then?", *, origin: str = "api") -> InputSteered:
    return InputSteered(at=AT, text=text, channel=origin)


def a_context(inputs: int = 1, *, carried_ms: int = 0) -> ContextAssembled:
    return ContextAssembled(
        at=AT,
        inputs=inputs,
        first_seq=1,
        last_seq=1,
        messages=1,
        dropped=0,
        estimated_tokens=10,
        window_tokens=8_000,
        digest="00",
        active_ms=carried_ms,
    )


def a_turn_start(turn: int = 1, *, last: bool = False, carried_ms: int = 0) -> ModelTurnStarted:
    return ModelTurnStarted(at=AT, turn=turn, provider="scripted", model="small", last=last, active_ms=carried_ms)


def a_text(turn: int = 1, text: str = "Well.", *, carried_ms: int = 0) -> ModelText:
    return ModelText(at=AT, turn=turn, text=text, active_ms=carried_ms)


def a_thought(turn: int = 1, text: str = "Hm.", *, carried_ms: int = 0) -> ModelReasoning:
    return ModelReasoning(at=AT, turn=turn, text=text, active_ms=carried_ms)


def a_proposal(turn: int, call: str, *, tool: str = "shell", malformed: str = "", carried_ms: int = 0) -> ToolProposed:
    return ToolProposed(
        at=AT,
        turn=turn,
        call_id=CallId(call),
        tool=tool,
        arguments={},
        malformed=malformed,
        active_ms=carried_ms,
    )


def a_turn_end(turn: int = 1, *, stop: StopReason = StopReason.END, carried_ms: int = 0) -> ModelTurnEnded:
    return ModelTurnEnded(at=AT, turn=turn, stop=stop, usage=Usage(), active_ms=carried_ms)


def a_void(turn: int = 1, *, carried_ms: int = 0) -> ModelTurnDiscarded:
    return ModelTurnDiscarded(at=AT, turn=turn, reason="the stream broke", active_ms=carried_ms)


def a_verdict(call: str, verdict: Verdict = Verdict.ALLOW, *, carried_ms: int = 0) -> PolicyDecided:
    return PolicyDecided(
        at=AT, call_id=CallId(call), verdict=verdict, risk=Risk.LOW, reason="so says the policy", active_ms=carried_ms
    )


def a_question(call: str, approval: str = "a1", *, carried_ms: int = 0) -> ApprovalRequested:
    return ApprovalRequested(
        at=AT, call_id=CallId(call), approval_id=approval, expires_at=AT + timedelta(hours=24), active_ms=carried_ms
    )


def an_overdraft(budget: str = "daily", *, action: BudgetAction = BudgetAction.ASK) -> BudgetOverrun:
    """Return a budget that is not enough."""
    return BudgetOverrun(
        budget=budget,
        whose="everything",
        per=BudgetPeriod.DAY,
        action=action,
        unit="USD",
        cap=2_000_000,
        spent=1_990_000,
        requested=50_000,
        model="acme/large",
        resets_at=AT + timedelta(days=1),
    )


def a_budget_question(approval: str = "a1", *budgets: str, carried_ms: int = 0) -> ApprovalRequested:
    return ApprovalRequested(
        at=AT,
        call_id=CallId(""),
        approval_id=approval,
        expires_at=AT + timedelta(hours=24),
        budgets=tuple(an_overdraft(budget) for budget in budgets or ("daily",)),
        active_ms=carried_ms,
    )


def a_warning(*, carried_ms: int = 0) -> BudgetWarned:
    over = an_overdraft(action=BudgetAction.WARN)
    return BudgetWarned(at=AT, overrun=over, scope="everything", period="2026-01-02", active_ms=carried_ms)


def embeddings_started(request: str = "r1", *, warned: bool = True) -> EmbeddingsStarted:
    over = BudgetWarning(overrun=an_overdraft(action=BudgetAction.WARN), scope="everything", period="2026-01-02")
    return EmbeddingsStarted(
        at=AT,
        actor=ANA,
        request_id=RunId(request),
        principal=ANA,
        agent_id=AGENT,
        provider="acme",
        model="vectors-1",
        texts=2,
        bytes=90,
        digest="d1ge57",
        reserved=Reservation(input_tokens=20, output_tokens=0, cost_micros=40),
        warned=(over,) if warned else (),
    )


def embeddings_ended(came: EmbeddingsOutcome = EmbeddingsOutcome.ANSWERED, request: str = "r1") -> EmbeddingsEnded:
    answered = came is EmbeddingsOutcome.ANSWERED
    return EmbeddingsEnded(
        at=AT,
        request_id=RunId(request),
        outcome=came,
        usage=Usage(input_tokens=20, estimated=not answered),
        cost_micros=40,
        vectors=2 if answered else 0,
        reason="" if answered else "the daemon ended",
    )


def an_answer(
    call: str, decision: ApprovalDecision = ApprovalDecision.ALLOWED, approval: str = "a1"
) -> ApprovalResolved:
    return ApprovalResolved(at=AT, call_id=CallId(call), approval_id=approval, decision=decision)


def a_tool_start(call: str, attempt: int = 1, *, carried_ms: int = 0) -> ToolStarted:
    return ToolStarted(at=AT, call_id=CallId(call), attempt=attempt, active_ms=carried_ms)


def a_result(call: str, outcome: CallOutcome = CallOutcome.OK, *, carried_ms: int = 0) -> ToolFinished:
    return ToolFinished(at=AT, call_id=CallId(call), outcome=outcome, text="so it went", active_ms=carried_ms)


def a_child(call: str, child: str = "child", *, carried_ms: int = 0) -> ChildStarted:
    return ChildStarted(
        at=AT,
        call_id=CallId(call),
        child_run_id=RunId(child),
        child_session_id=SessionId(f"session-of-{child}"),
        text="Do this for me.",
        limits=Limits(),
        active_ms=carried_ms,
    )


def a_child_end(call: str, child: str = "child", outcome: CallOutcome = CallOutcome.OK) -> ChildEnded:
    return ChildEnded(at=AT, call_id=CallId(call), child_run_id=RunId(child), outcome=outcome, text="Here it is.")


def a_limit(limit: LimitKind = LimitKind.MODEL_TURNS, *, carried_ms: int = 0) -> LimitReached:
    return LimitReached(at=AT, limit=limit, active_ms=carried_ms)


def a_cancel(reason: str = "asked to") -> CancelRequested:
    return CancelRequested(at=AT, reason=reason)


def a_completion(limit_reached: LimitKind | None = None) -> RunCompleted:
    return RunCompleted(at=AT, limit_reached=limit_reached)


def a_failure(reason: str = "it broke") -> RunFailed:
    return RunFailed(at=AT, code="broken", reason=reason)


def a_cancellation(reason: str = "asked to") -> RunCancelled:
    return RunCancelled(at=AT, reason=reason)
