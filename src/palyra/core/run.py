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

from enum import StrEnum
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from palyra.core import channel, found
from palyra.core.brief import NO_BRIEF, Brief
from palyra.core.budget import Reserved
from palyra.core.errors import Broken
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
    Parent,
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
from palyra.core.prompt import Reasoning
from palyra.core.tool import ToolCall, Verdict


class IllegalTransition(Broken):
    """The event does not fit the state of the run."""


class RunStatus(StrEnum):
    """Where a run stands, as the world sees it."""

    ACCEPTED = "accepted"
    IN_PROGRESS = "in_progress"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED})


class Stage(StrEnum):
    """Where a call of the present turn stands."""

    PROPOSED = "proposed"
    ALLOWED = "allowed"
    ASK = "ask"
    WAITING = "waiting"
    STARTED = "started"
    INTERRUPTED = "interrupted"
    DENIED = "denied"
    FINISHED = "finished"
    HANDED_OVER = "handed_over"


SETTLED = frozenset({Stage.DENIED, Stage.FINISHED, Stage.HANDED_OVER})
RUNNABLE = frozenset({Stage.ALLOWED, Stage.INTERRUPTED})


class CallState(Struct, frozen=True):
    """A call and its stage."""

    call: ToolCall
    stage: Stage
    attempts: int = 0
    waits_for: str | None = None
    """The approval, or the child run, that the call waits for."""
    for_child: bool = False
    """It waits for a child, not for a person."""
    approval_id: str | None = None
    """The approval under which it may run; what it does is compared with what was approved."""
    policy_hash: str = ""
    """The policies by which it was decided."""
    labels: tuple[str, ...] = ()
    """Where its arguments come from, as it was judged."""
    credentials: tuple[str, ...] = ()
    """The secrets that may go along: those that it was judged with."""
    grant_id: str | None = None
    """The earlier answer that covers it."""
    answered: str | None = None
    """The approval with which a person let it run, be it with arguments of his own."""
    started: ToolStarted | None = None
    """The beginning of its last attempt."""
    edited: bool = False
    """A person wrote the arguments. They are judged like any others, but nobody is asked about his own words."""


class Failure(Struct, frozen=True):
    """A try of the present turn that came to nothing."""

    model: str
    """`PROVIDER/MODEL`."""
    kind: str
    retry_ms: int = 0
    reason: str = ""
    refused: bool = False
    """It was turned down as it stood, and no work was done."""


class RunState(Struct, frozen=True):
    """All that the next decision depends on. A struct, because the fold makes a new one for every event."""

    run_id: RunId
    session_id: SessionId
    principal: PrincipalId
    agent_id: AgentId
    limits: Limits
    parent: Parent | None = None
    reissue: Reissue | None = None
    """The call that the run begins with."""
    brief: Brief = NO_BRIEF
    """How the caller wants to be answered."""
    origin: str = "api"
    """What led to the run: a client or channel by which a message came in, `run` for a task of another run."""
    channels: tuple[str, ...] = ()
    """By which channels the words came in that the run follows."""
    status: RunStatus = RunStatus.ACCEPTED
    run_seq: int = 1
    started: bool = False
    inputs: int = 1
    inputs_seen: int = 0
    assembled: bool = False
    turns: int = 0
    turn: int | None = None
    """The open turn: started, neither ended nor void."""
    last_turn: bool = False
    """The last turn at a limit has begun."""
    last_turns: int = 0
    """How often a last turn was begun."""
    text: tuple[str, ...] = ()
    """The pieces of the present turn's answer."""
    reasoning: tuple[Reasoning, ...] = ()
    """What the model thought in the present turn."""
    thinks: bool = False
    """The last thought is not at its end."""
    asked: str = ""
    """The model that was asked last, as `PROVIDER/MODEL`."""
    reserved: Reserved | None = None
    """What is set aside for the open turn."""
    question: str | None = None
    """The approval that the run waits for before it may go beyond a budget."""
    at_stake: tuple[str, ...] = ()
    """The budgets that the question is about, by their names."""
    lifted: tuple[str, ...] = ()
    """The budgets that the run may go beyond."""
    refused: str | None = None
    """Why it may not: somebody said so, or nobody answered."""
    failures: tuple[Failure, ...] = ()
    """The tries of the present turn that came to nothing, since the last one that did not."""
    failed_turns: int = 0
    """How many turns a provider has failed in. They do not count for the limit: the run goes on as if they were not."""
    calls: tuple[CallState, ...] = ()
    answered: bool = False
    executed: int = 0
    children: int = 0
    carried_ms: int = 0
    limit: LimitKind | None = None
    cancel: str | None = None
    found: tuple[str, ...] = ()
    """The tools that searches have brought so far."""

    @property
    def root_run_id(self) -> RunId:
        """The run that this one works for: itself, unless it is a child."""
        return self.run_id if self.parent is None else self.parent.root_run_id or self.parent.run_id

    @property
    def root_session_id(self) -> SessionId:
        """The session of that run."""
        return self.session_id if self.parent is None else self.parent.root_session_id or self.parent.session_id

    @property
    def open_questions(self) -> list[tuple[CallId, str]]:
        """What a person was asked and has not answered: each the call, empty if it is about budgets, and the id."""
        about_calls = [
            (call.call.call_id, call.waits_for)
            for call in self.calls
            if call.stage is Stage.WAITING and not call.for_child and call.waits_for is not None
        ]
        return about_calls if self.question is None else [*about_calls, (CallId(""), self.question)]

    @property
    def is_answered(self) -> bool:
        """Whether the model has answered, and to everything that was said."""
        return self.answered and self.inputs == self.inputs_seen

    @property
    def is_handed_over(self) -> bool:
        """Whether it is the caller's turn: a call of a tool of his was left to him."""
        return any(c.stage is Stage.HANDED_OVER for c in self.calls)

    def is_callers(self, call: CallState) -> bool:
        """Tell whether a call is of a tool that the caller has."""
        return any(tool.name == call.call.tool for tool in self.brief.tools)

    @property
    def said_something(self) -> bool:
        """Whether the present turn holds more than blanks."""
        return any(not piece.isspace() and piece for piece in self.text)

    def call(self, call_id: CallId) -> CallState:
        """Return the call of that id in the present turn."""
        for candidate in self.calls:
            if candidate.call.call_id == call_id:
                return candidate
        raise IllegalTransition(f"the present turn has no call {call_id}")


# -- the fold


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
            return replace(state, inputs=state.inputs + 1, assembled=False, channels=channels)
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
            return replace(state, status=RunStatus.DONE)
        case RunFailed():
            _require(state.cancel is None, "the run is being cancelled")
            return replace(state, status=RunStatus.FAILED, turn=None)
        case RunCancelled():
            return replace(state, status=RunStatus.CANCELLED, turn=None)
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
    return _void_turn(state)


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
                last_turns=state.last_turns + last,
                asked=f"{event.provider}/{event.model}",
                reserved=event.reserved,
                text=(),
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
        case ModelTurnEnded():
            return replace(state, turn=None, answered=not state.calls, failures=())
        case ModelTurnVoided():
            failure = Failure(state.asked, event.failure, event.retry_ms, event.reason, event.refused)
            return replace(
                _void_turn(state),
                failures=(*state.failures, failure),
                failed_turns=state.failed_turns + 1,
                last_turns=state.last_turns - state.last_turn,
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
                return _move(state, call_id, {Stage.WAITING}, Stage.DENIED)
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
            finished = _move(state, call_id, from_stages, Stage.FINISHED)
            return replace(finished, found=found.join(state.found, event.found)) if event.found else finished
        case ChildStarted(call_id=call_id, child_run_id=child):
            _require(state.limit is None and state.cancel is None, "no child may start any more")
            counted = replace(state, children=state.children + 1)
            return _move(counted, call_id, {Stage.STARTED}, Stage.WAITING, waits_for=child, for_child=True)
        case ChildEnded(call_id=call_id, child_run_id=child):
            awaited = state.call(call_id)
            _require(awaited.waits_for == child and awaited.for_child, "that child is not awaited")
            return _move(state, call_id, {Stage.WAITING}, Stage.FINISHED)
        case _ as never:
            assert_never(never)


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
