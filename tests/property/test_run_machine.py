"""Random lives of a run: a carrier that dies at any moment, and others who write whenever they like.

The carrier does what the loop does: it replays, asks for the next step, and records the events of that step one by one.
It vanishes after any of them. Between any two of them others write: a cancel, an answer, a child's end, a further
input. When an event of the carrier no longer fits, it drops the step and asks anew.

The laws below must hold for each such life: for some thousand that are the same at each run, and for those that
hypothesis draws, which it can shrink. What a law judges by is worked out from the tape alone wherever that is
possible, so that a fault of the machine can't hide itself.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import get_args

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from palyra.core.events import (
    ApprovalDecision,
    ApprovalRequested,
    ApprovalResolved,
    CallHandedOver,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    ContextAssembled,
    InputSteered,
    LimitReached,
    ModelText,
    ModelTurnDiscarded,
    ModelTurnEnded,
    ModelTurnStarted,
    PolicyDecided,
    RunCancelled,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunResumed,
    ToolFinished,
    ToolProposed,
    ToolStarted,
    decode,
    encode,
)
from palyra.core.limits import LimitKind, Limits
from palyra.core.run.machine import begin, evolve
from palyra.core.run.state import TERMINAL, CallStage, CallState, RunEventInvalid, RunState, RunStatus
from palyra.core.run.steps import (
    MAX_INTERRUPTED_TURNS,
    AskApproval,
    CallModel,
    CheckPolicy,
    ExecuteTools,
    Finish,
    HandOver,
    NoteLimit,
    RefuseCalls,
    Resume,
    Step,
    Suspend,
    next_step,
)
from palyra.core.tool import CallOutcome, Verdict
from tests.support.builders import (
    RUN,
    SESSION,
    a_brief,
    a_budget_question,
    a_cancel,
    a_cancellation,
    a_child,
    a_child_end,
    a_completion,
    a_context,
    a_failure,
    a_given,
    a_hand_over,
    a_history,
    a_limit,
    a_proposal,
    a_question,
    a_reissue,
    a_result,
    a_resume,
    a_start,
    a_steer,
    a_text,
    a_thought,
    a_tool_start,
    a_turn_end,
    a_turn_start,
    a_verdict,
    a_void,
    a_warning,
    an_accepted,
    an_answer,
    fold,
)

SEEDS = range(2_000)
# Explaining a failure traces every line, and takes longer than a test may; the story of the life says more.
DRAWN = settings(max_examples=60, deadline=None, phases=set(Phase) - {Phase.explain})

MAX_DECISIONS = 150
"""Far more than the longest life needs: at most 5 + 4 turns of 3 calls, 5 crashes, 8 writes by others."""

CRASHES = 5
INTERRUPTIONS = 8
BUDGET = "daily"

REPEATABLE, SINGLE, DELEGATE, CALLERS = "read", "send", "delegate", "paint"
DECISIONS = (ApprovalDecision.ALLOWED, ApprovalDecision.ALLOWED, ApprovalDecision.DENIED, ApprovalDecision.TIMED_OUT)
VERDICTS = (Verdict.ALLOW, Verdict.ALLOW, Verdict.ALLOW, Verdict.ASK, Verdict.ASK, Verdict.DENY)


@dataclass
class Refusal:
    """An event of the carrier that no longer fitted."""

    event: RunEvent
    foreign_write: bool
    """Somebody else had written since the carrier decided."""


@dataclass
class Life:
    """All that happened to one run, and what the carrier decided on the way."""

    limits: Limits
    tape: list[RunEvent]
    states: list[RunState]
    decisions: list[tuple[RunState, Step]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def __str__(self) -> str:
        """The story of the run, to be read when a law is broken."""
        lines = (f"{state.run_seq:3} {encode(event)}" for event, state in zip(self.tape, self.states, strict=True))
        return "\n".join((f"{self.limits}", *lines, f"the run is {self.state.status}"))

    @property
    def state(self) -> RunState:
        return self.states[-1]

    def has_ended(self) -> bool:
        return self.state.status in TERMINAL

    def record(self, event: RunEvent) -> bool:
        """Put the event on the tape, if it fits."""
        before, shown = self.state, repr(self.state)
        try:
            after = evolve(before, event)
        except RunEventInvalid:
            return False
        finally:
            assert repr(before) == shown, "evolve changed the state that it was given"
        self.tape.append(event)
        self.states.append(after)
        return True


# -- the carrier


def carry_out(step: Step, state: RunState, dice: random.Random) -> Iterator[RunEvent]:
    """Yield what the loop would record for the step, one by one, with an outcome that the dice decide."""
    match step:
        case Resume():
            yield a_resume(carried_ms=_work(dice))
        case CallModel(last=last):
            yield from _ask_model(state, dice, last=last)
        case CheckPolicy(calls=calls):
            for call in calls:
                yield a_verdict(call.call_id, dice.choice(VERDICTS), carried_ms=_work(dice))
        case AskApproval(calls=calls):
            for call in calls:
                yield a_question(call.call_id, approval=f"about {call.call_id}", carried_ms=_work(dice))
        case ExecuteTools(calls=runnable):
            yield from _execute(runnable, dice)
        case HandOver(calls=theirs):
            for each in theirs:
                # The caller can do nothing with arguments that can not be read.
                bad = _once_in(4, dice)
                yield a_result(each.call.call_id, CallOutcome.ERROR) if bad else a_hand_over(each.call.call_id)
        case RefuseCalls(calls=refused):
            for each in refused:
                yield a_result(each.call.call_id, CallOutcome.SKIPPED, carried_ms=_work(dice))
        case NoteLimit(limit=kind):
            yield a_limit(kind, carried_ms=_work(dice))
        case Finish(status=RunStatus.DONE, limit=limit):
            yield a_completion(limit)
        case Finish(status=RunStatus.FAILED):
            yield a_failure()
        case Finish(status=RunStatus.CANCELLED, reason=reason):
            yield a_cancellation(reason)
        case _:
            raise AssertionError(f"there is nothing to carry out in {step}")


def _ask_model(state: RunState, dice: random.Random, *, last: bool) -> Iterator[RunEvent]:
    turn = state.turns + 1
    if not last and BUDGET not in state.lifted and _once_in(10, dice):
        yield a_budget_question(f"about the budget before {state.run_seq}", BUDGET, carried_ms=_work(dice))
        return
    if _once_in(10, dice):
        yield a_warning()
    yield a_context(state.inputs, carried_ms=_work(dice))
    yield a_turn_start(turn, last=last, carried_ms=_work(dice))
    if _once_in(4, dice):
        yield a_thought(turn, carried_ms=_work(dice))
    for _ in range(dice.randint(0, 2)):
        yield a_text(turn, carried_ms=_work(dice))
    for number in range(dice.randint(0, 3)):  # also in a last turn: models propose what they were not offered
        tool = dice.choice((SINGLE, REPEATABLE, DELEGATE, CALLERS))
        yield a_proposal(turn, f"{turn}.{number}", tool=tool, carried_ms=_work(dice))
    if _once_in(6, dice):
        yield a_void(turn, carried_ms=_work(dice))
    else:
        yield a_turn_end(turn, carried_ms=_work(dice))


def _execute(runnable: tuple[CallState, ...], dice: random.Random) -> Iterator[RunEvent]:
    running: list[str] = []
    for each in runnable:
        call_id, tool = each.call.call_id, each.call.tool
        if each.stage is CallStage.INTERRUPTED and tool != REPEATABLE:
            yield a_result(call_id, CallOutcome.INTERRUPTED, carried_ms=_work(dice))
            continue
        yield a_tool_start(call_id, attempt=each.attempts + 1, carried_ms=_work(dice))
        if tool == DELEGATE and not _once_in(4, dice):
            yield a_child(call_id, child=f"child of {call_id}", carried_ms=_work(dice))
        else:
            running.append(call_id)
        while running and _once_in(2, dice):
            yield _end_one(running, dice)
    while running:
        yield _end_one(running, dice)


def _end_one(running: list[str], dice: random.Random) -> RunEvent:
    call_id = running.pop(dice.randint(0, len(running) - 1))
    return a_result(
        call_id, dice.choice((CallOutcome.OK, CallOutcome.ERROR, CallOutcome.TIMEOUT)), carried_ms=_work(dice)
    )


def _work(dice: random.Random) -> int:
    return dice.choice((0, 0, 0, 7, 60))


def _once_in(times: int, dice: random.Random) -> bool:
    return dice.randint(1, times) == times


# -- the others


def interfere(life: Life, dice: random.Random) -> bool:
    """Let somebody else write something sensible, and say whether it was taken."""
    move = dice.choice((_steer, _steer, _answer_someone, _answer_someone, _answer_someone, _answer_again, _cancel))
    return move(life, dice)


def _cancel(life: Life, dice: random.Random) -> bool:
    return _once_in(2, dice) and life.record(a_cancel())


def _steer(life: Life, dice: random.Random) -> bool:
    """Steering first withdraws the questions that are open, as the intake does."""
    state = life.state
    ends = state.limit is not None or state.cancel is not None or state.refused is not None
    if not state.started or ends or state.is_handed_over:
        assert not life.record(a_steer()), "an input was taken that nobody will see"
        return False
    for call_id, approval_id in state.open_questions:
        life.record(an_answer(call_id, ApprovalDecision.WITHDRAWN, approval=approval_id))
    return life.record(a_steer())


def _answer_someone(life: Life, dice: random.Random) -> bool:
    """Answer one of the open questions, or let one of the children end."""
    if life.state.question is not None:
        return life.record(an_answer("", dice.choice(DECISIONS), approval=life.state.question))
    if not (waiting := _waiting(life.state)):
        return False
    each = dice.choice(waiting)
    return life.record(_answer(each, dice))


def _answer(each: CallState, dice: random.Random) -> RunEvent:
    if each.for_child:
        return a_child_end(each.call.call_id, each.waits_for or "", dice.choice((CallOutcome.OK, CallOutcome.ERROR)))
    decision = dice.choice(DECISIONS)
    return an_answer(each.call.call_id, decision, approval=each.waits_for or "")


def _answer_again(life: Life, dice: random.Random) -> bool:
    """A second answer to a question comes too late, and is refused."""
    answers = [event for event in life.tape if event.__struct_config__.tag in ("approval_resolved", "child_ended")]
    if answers:
        assert not life.record(dice.choice(answers)), "a question was answered twice"
    return False


def _waiting(state: RunState) -> list[CallState]:
    return [each for each in state.calls if each.stage is CallStage.WAITING]


# -- whole lives


def live(dice: random.Random, others: Callable[[Life, random.Random], bool] = interfere) -> Life:
    """Lead a run from its acceptance to its end, or give up after far too many decisions."""
    life = a_new_life(dice)
    crashes, interruptions = CRASHES, INTERRUPTIONS
    while not life.has_ended() and len(life.decisions) < MAX_DECISIONS:
        decided = life.state
        step = next_step(decided)
        life.decisions.append((decided, step))
        if isinstance(step, Suspend):
            if interruptions and _once_in(4, dice):
                interruptions -= 1
                others(life, dice)
            else:
                _wake(life, dice)
            continue
        foreign_write = False
        for event in carry_out(step, decided, dice):
            while interruptions and _once_in(6, dice):
                interruptions -= 1
                foreign_write |= others(life, dice)
            if not life.record(event):
                life.refusals.append(Refusal(event, foreign_write))
                break
            if life.has_ended():
                break
            if crashes and _once_in(12, dice):
                crashes -= 1
                break
    return life


def a_new_life(dice: random.Random) -> Life:
    limits = some_limits(dice)
    again = a_reissue(dice.choice((SINGLE, REPEATABLE, DELEGATE))) if _once_in(4, dice) else None
    # A call that is proposed once more is never one of the caller's.
    brief = a_brief(CALLERS) if again is None and _once_in(2, dice) else a_brief()
    accepted = an_accepted(limits=limits, reissue=again, brief=brief)
    return Life(limits, [accepted], [begin(RUN, SESSION, accepted)])


def _wake(life: Life, dice: random.Random) -> None:
    """Do what a suspended run waits for: let it have its turn, or answer."""
    if not life.state.started:
        for _ in range(dice.choice((0, 0, 1, 2))):
            assert life.record(a_given())
        # In one commit with the call that the run may begin with.
        life.record(a_start())
        if (again := life.state.reissue) is not None:
            assert life.record(a_proposal(0, "0.0", tool=again.tool))
    else:
        _answer_someone(life, dice)


def some_limits(dice: random.Random) -> Limits:
    return Limits(
        model_turns=dice.randint(1, 5),
        tool_calls=dice.randint(0, 6),
        wall_clock_ms=dice.choice((100_000, 100_000, 300)),
        last_turn_timeout_ms=dice.choice((60_000, 100)),
    )


# -- the laws


Law = Callable[[Life], None]


def every_run_comes_to_an_end(life: Life) -> None:
    assert life.has_ended(), f"still {life.state.status} after {len(life.decisions)} decisions"


def every_beginning_of_the_stored_tape_replays_to_the_state_of_then(life: Life) -> None:
    stored = [encode(event) for event in life.tape]
    replayed = [event for content in stored if isinstance(event := decode(content), RunEvent)]
    state = fold(replayed[:1])
    assert state == life.states[0]
    for event, then in zip(replayed[1:], life.states[1:], strict=True):
        state = evolve(state, event)
        assert state == then


def events_are_counted_and_the_time_they_took_adds_up(life: Life) -> None:
    carried_ms = 0
    for count, (event, state) in enumerate(zip(life.tape, life.states, strict=True), start=1):
        carried_ms += event.active_ms
        assert state.run_seq == count
        assert state.active_ms == carried_ms


def no_call_starts_again_unless_it_was_interrupted(life: Life) -> None:
    running: set[str] = set()
    for event in life.tape:
        match event:
            case ToolStarted(call_id=call_id):
                assert call_id not in running
                running.add(call_id)
            case ToolFinished(call_id=call_id):
                running.discard(call_id)
            case RunResumed():
                running.clear()
            case _:
                pass


def a_call_that_may_not_be_repeated_starts_once(life: Life) -> None:
    single = {event.call_id for event in life.tape if isinstance(event, ToolProposed) and event.tool != REPEATABLE}
    for kind in (ToolStarted, ChildStarted):
        begun = [event.call_id for event in life.tape if isinstance(event, kind) and event.call_id in single]
        assert len(begun) == len(set(begun))


def no_call_starts_after_a_limit_or_a_cancel(life: Life) -> None:
    stopped = False
    for event in life.tape:
        stopped |= isinstance(event, LimitReached | CancelRequested)
        assert not (stopped and isinstance(event, ToolStarted | ChildStarted))


def the_model_is_not_asked_after_a_cancel(life: Life) -> None:
    cancelled = False
    for event in life.tape:
        cancelled |= isinstance(event, CancelRequested)
        assert not (cancelled and isinstance(event, ContextAssembled | ModelTurnStarted))


def the_model_is_not_asked_beyond_a_budget_without_a_word(life: Life) -> None:
    asked, refused = False, False
    for event in life.tape:
        match event:
            case ApprovalRequested(budgets=budgets) if budgets:
                asked = True
            case ApprovalResolved(call_id="", decision=decision):
                asked, refused = False, decision in (ApprovalDecision.DENIED, ApprovalDecision.TIMED_OUT)
            case ContextAssembled() | ModelTurnStarted() | InputSteered() if refused:
                raise AssertionError("the run went on beyond its budget")
            case ContextAssembled() | ModelTurnStarted():
                assert not asked
            case RunCompleted():
                assert not refused
            case _:
                pass


def no_more_calls_run_than_the_limit_allows(life: Life) -> None:
    begun = {event.call_id for event in life.tape if isinstance(event, ToolStarted)}
    assert len(begun) <= life.limits.tool_calls
    assert life.state.executed == len(begun)


def the_model_is_asked_no_more_often_than_the_limit_allows(life: Life) -> None:
    ended = {event.turn for event in life.tape if isinstance(event, ModelTurnEnded)}
    # The run goes on as if a turn that its provider failed in, or that a crash cut off, had not been.
    turns = [event for event in life.tape if isinstance(event, ModelTurnStarted) and event.turn in ended]
    assert sum(not turn.last for turn in turns) <= life.limits.model_turns
    assert sum(turn.last for turn in turns) <= 1
    assert life.state.interrupted_in_a_row <= MAX_INTERRUPTED_TURNS


def no_turn_begins_when_its_time_is_up(life: Life) -> None:
    for before, event in zip(life.states, life.tape[1:], strict=False):
        if isinstance(event, ContextAssembled):
            grace = life.limits.last_turn_timeout_ms if before.limit else 0
            assert before.active_ms < life.limits.wall_clock_ms + grace


def every_call_has_an_outcome_before_the_model_is_asked_again(life: Life) -> None:
    unsettled: set[str] = set()
    for event in without_void_turns(life.tape):
        match event:
            case ToolProposed(call_id=call_id):
                unsettled.add(call_id)
            case ToolFinished(call_id=call_id) | ChildEnded(call_id=call_id):
                unsettled.remove(call_id)
            case CallHandedOver(call_id=call_id):
                unsettled.remove(call_id)
            case PolicyDecided(call_id=call_id, verdict=Verdict.DENY):
                unsettled.remove(call_id)
            case ApprovalResolved(call_id=call_id, decision=decision) if (
                call_id and decision is not ApprovalDecision.ALLOWED
            ):
                unsettled.remove(call_id)
            case ContextAssembled() | RunCompleted():
                assert not unsettled
            case _:
                pass


def a_completed_run_has_an_answer_that_saw_every_input(life: Life) -> None:
    if life.state.status is not RunStatus.DONE:
        return
    tape = without_void_turns(life.tape)
    begun = max(place for place, event in enumerate(tape) if isinstance(event, ModelTurnStarted))
    turn = [type(event) for event in tape[begun:]]
    assert ModelTurnEnded in turn
    assert InputSteered not in turn
    if life.state.last_turn:
        assert ModelText in turn
    elif CallHandedOver not in turn:
        assert ToolProposed not in turn


def only_calls_of_the_callers_tools_are_handed_over_and_nothing_runs_after_one(life: Life) -> None:
    tools = {event.call_id: event.tool for event in life.tape if isinstance(event, ToolProposed)}
    handed_over = False
    for event in life.tape:
        if isinstance(event, CallHandedOver):
            assert tools[event.call_id] == CALLERS
            handed_over = True
        assert not (handed_over and isinstance(event, ContextAssembled | ToolStarted | InputSteered))


def no_call_of_the_callers_tools_is_carried_out_here(life: Life) -> None:
    if life.state.options.tools:
        theirs = {event.call_id for event in life.tape if isinstance(event, ToolProposed) and event.tool == CALLERS}
        for event in life.tape:
            assert not (isinstance(event, PolicyDecided | ToolStarted | ChildStarted) and event.call_id in theirs)


def a_steered_input_is_shown_to_the_model_before_the_run_completes(life: Life) -> None:
    inputs, assembled, shown = 1, 0, 0
    for event in without_void_turns(life.tape):
        match event:
            case InputSteered():
                inputs += 1
            case ContextAssembled(inputs=seen):
                assembled = seen
            case ModelTurnStarted():
                shown = assembled
            case RunCompleted():
                assert shown == inputs
            case _:
                pass


def a_run_that_is_cancelled_ends_cancelled(life: Life) -> None:
    if any(isinstance(event, CancelRequested) for event in life.tape):
        assert life.state.status is RunStatus.CANCELLED


def the_carrier_is_refused_only_if_somebody_else_wrote_in_between(life: Life) -> None:
    for refusal in life.refusals:
        assert refusal.foreign_write, f"{refusal.event} was asked for, and refused"


def a_started_run_suspends_only_while_somebody_else_can_wake_it(life: Life) -> None:
    for state, step in life.decisions:
        if isinstance(step, Suspend) and state.started:
            assert state.status is RunStatus.WAITING
            assert _waiting(state) or state.question is not None


def a_waiting_run_leaves_the_carrier_nothing_to_do_but_to_end_it(life: Life) -> None:
    for state, step in life.decisions:
        if state.status is RunStatus.WAITING:
            assert isinstance(step, Suspend | NoteLimit | Finish)


def a_step_is_never_without_work(life: Life) -> None:
    for _, step in life.decisions:
        if isinstance(step, CheckPolicy | AskApproval | ExecuteTools | HandOver | RefuseCalls):
            assert step.calls


def without_void_turns(tape: list[RunEvent]) -> list[RunEvent]:
    """Return the tape without the turns that broke off: what they said and proposed does not count."""
    counted: list[RunEvent] = []
    opened: int | None = None
    for event in tape:
        counted.append(event)
        match event:
            case ModelTurnStarted():
                opened = len(counted) - 1
            case ModelTurnEnded():
                opened = None
            case ModelTurnDiscarded() | RunResumed() if opened is not None:
                void = ModelTurnStarted | ModelText | ToolProposed | ModelTurnDiscarded
                counted[opened:] = [each for each in counted[opened:] if not isinstance(each, void)]
                opened = None
            case _:
                pass
    return counted


LAWS: tuple[Law, ...] = (
    every_run_comes_to_an_end,
    every_beginning_of_the_stored_tape_replays_to_the_state_of_then,
    events_are_counted_and_the_time_they_took_adds_up,
    no_call_starts_again_unless_it_was_interrupted,
    a_call_that_may_not_be_repeated_starts_once,
    no_call_starts_after_a_limit_or_a_cancel,
    the_model_is_not_asked_after_a_cancel,
    the_model_is_not_asked_beyond_a_budget_without_a_word,
    no_more_calls_run_than_the_limit_allows,
    the_model_is_asked_no_more_often_than_the_limit_allows,
    no_turn_begins_when_its_time_is_up,
    every_call_has_an_outcome_before_the_model_is_asked_again,
    a_completed_run_has_an_answer_that_saw_every_input,
    only_calls_of_the_callers_tools_are_handed_over_and_nothing_runs_after_one,
    no_call_of_the_callers_tools_is_carried_out_here,
    a_steered_input_is_shown_to_the_model_before_the_run_completes,
    a_run_that_is_cancelled_ends_cancelled,
    the_carrier_is_refused_only_if_somebody_else_wrote_in_between,
    a_started_run_suspends_only_while_somebody_else_can_wake_it,
    a_waiting_run_leaves_the_carrier_nothing_to_do_but_to_end_it,
    a_step_is_never_without_work,
)


@pytest.fixture(scope="module")
def many_lives() -> list[Life]:
    return [live(random.Random(seed)) for seed in SEEDS]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_some_thousand_lives_keep_the_law(law: Law, many_lives: list[Life]) -> None:
    for life in many_lives:
        judge(life, law)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@given(dice=st.randoms(use_true_random=False))
@DRAWN
def test_any_life_keeps_the_law(law: Law, dice: random.Random) -> None:
    judge(live(dice), law)


def judge(life: Life, law: Law) -> None:
    try:
        law(life)
    except AssertionError as broken:
        raise AssertionError(f"{broken}\n{life}") from None


def test_the_lives_meet_every_event_step_end_and_limit(many_lives: list[Life]) -> None:
    """Guard the laws: what the dice never bring about is not tested."""
    events = {type(event) for life in many_lives for event in life.tape}
    steps = {type(step) for life in many_lives for _, step in life.decisions}
    refused = {type(refusal.event) for life in many_lives for refusal in life.refusals}
    assert events == set(get_args(RunEvent))
    assert steps == set(get_args(Step))
    assert {life.state.status for life in many_lives} == TERMINAL
    assert {life.state.limit for life in many_lives} == {None, *LimitKind}
    assert refused >= {ContextAssembled, ModelTurnStarted, ToolStarted, ChildStarted, RunCompleted}


# -- garbage


def any_event(dice: random.Random) -> RunEvent:
    """Return any event at all, about few enough turns and calls to fit now and then."""
    turn, call, last = dice.randint(0, 4), f"{dice.randint(1, 3)}.{dice.randint(0, 1)}", dice.choice((False, True))
    question, child = f"about {call}", f"child of {call}"
    make = dice.choice(
        (
            lambda: an_accepted(),
            lambda: a_start(),
            lambda: a_resume(carried_ms=dice.choice((0, 50, 100_000))),
            lambda: a_steer(),
            lambda: a_context(dice.randint(0, 4)),
            lambda: a_turn_start(turn, last=last),
            lambda: a_text(turn, dice.choice(("", "Well."))),
            lambda: a_proposal(turn, call, tool=dice.choice((SINGLE, REPEATABLE, DELEGATE))),
            lambda: a_turn_end(turn),
            lambda: a_void(turn),
            lambda: a_verdict(call, dice.choice(VERDICTS)),
            lambda: a_question(call, question),
            lambda: a_budget_question("about the budget"),
            lambda: an_answer("", dice.choice(list(ApprovalDecision)), "about the budget"),
            lambda: a_warning(),
            lambda: an_answer(call, dice.choice(list(ApprovalDecision)), question),
            lambda: a_tool_start(call, dice.randint(0, 3)),
            lambda: a_result(call, dice.choice(list(CallOutcome))),
            lambda: a_hand_over(call),
            lambda: a_given(),
            lambda: a_child(call, child),
            lambda: a_child_end(call, child),
            lambda: a_limit(dice.choice(list(LimitKind))),
            lambda: a_cancel(),
            lambda: a_completion(),
            lambda: a_failure(),
            lambda: a_cancellation(),
        )
    )
    return make()


def write_anything(life: Life, dice: random.Random) -> bool:
    """Write what comes to mind, as a second carrier would that does not know of the first."""
    for _ in range(20):
        event = any_event(dice)
        ends = isinstance(event, CancelRequested | RunCancelled | RunFailed)
        if (not ends or _once_in(10, dice)) and life.record(event):
            return True
    return False


WILD_LAWS: tuple[Law, ...] = (
    every_run_comes_to_an_end,
    every_beginning_of_the_stored_tape_replays_to_the_state_of_then,
    events_are_counted_and_the_time_they_took_adds_up,
    no_call_starts_again_unless_it_was_interrupted,
    no_call_starts_after_a_limit_or_a_cancel,
    the_model_is_not_asked_after_a_cancel,
    the_model_is_not_asked_beyond_a_budget_without_a_word,
    every_call_has_an_outcome_before_the_model_is_asked_again,
    a_completed_run_has_an_answer_that_saw_every_input,
    a_steered_input_is_shown_to_the_model_before_the_run_completes,
    the_carrier_is_refused_only_if_somebody_else_wrote_in_between,
    a_started_run_suspends_only_while_somebody_else_can_wake_it,
    a_waiting_run_leaves_the_carrier_nothing_to_do_but_to_end_it,
    a_step_is_never_without_work,
)
"""What the machine guarantees whoever writes. The rest it guarantees to carriers that do as it says."""


@pytest.fixture(scope="module")
def wild_lives() -> list[Life]:
    return [live(random.Random(seed), others=write_anything) for seed in SEEDS]


@pytest.mark.parametrize("law", WILD_LAWS, ids=lambda law: law.__name__)
def test_whatever_is_written_into_a_life_it_keeps_the_law(law: Law, wild_lives: list[Life]) -> None:
    for life in wild_lives:
        judge(life, law)


@given(dice=st.randoms(use_true_random=False))
@DRAWN
def test_any_event_is_taken_or_refused_and_breaks_nothing(dice: random.Random) -> None:
    life = a_new_life(dice)
    for _ in range(60):
        life.record(any_event(dice))
        if not life.has_ended():
            assert isinstance(next_step(life.state), Step)


@given(status=st.sampled_from(sorted(TERMINAL)), dice=st.randoms(use_true_random=False))
@DRAWN
def test_nothing_happens_to_a_run_that_has_ended(status: RunStatus, dice: random.Random) -> None:
    with pytest.raises(RunEventInvalid, match=f"the run is {status}"):
        evolve(fold(a_history(status)), any_event(dice))
