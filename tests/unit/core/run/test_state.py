"""The run machine, one behaviour at a time. Random lives of it are in `tests/property/test_run_machine.py`."""

import msgspec
import pytest

from palyra.core.errors import Internal
from palyra.core.event import ParentRun
from palyra.core.events import ApprovalDecision, RunEvent
from palyra.core.ids import CallId, RunId, SessionId
from palyra.core.limits import LimitKind, Limits
from palyra.core.run.machine import begin, evolve
from palyra.core.run.state import CallStage, RunEventInvalid, RunState, RunStatus
from palyra.core.run.steps import (
    MAX_INTERRUPTED_TURNS,
    AskApproval,
    CallModel,
    CheckPolicy,
    ExecuteTools,
    Finish,
    NoteLimit,
    RefuseCalls,
    Resume,
    Suspend,
    next_step,
)
from palyra.core.tool import CallOutcome, ToolCall, Verdict
from tests.support.builders import (
    AGENT,
    ANA,
    RUN,
    SESSION,
    a_budget_question,
    a_cancel,
    a_cancellation,
    a_child,
    a_child_end,
    a_completion,
    a_context,
    a_failure,
    a_hand_over,
    a_history,
    a_limit,
    a_proposal,
    a_question,
    a_reissue,
    a_result,
    a_resume,
    a_run,
    a_start,
    a_steer,
    a_text,
    a_tool_start,
    a_turn,
    a_turn_end,
    a_turn_start,
    a_verdict,
    a_void,
    a_warning,
    an_accepted,
    an_answer,
    fold,
)

C1, C2, C3 = CallId("c1"), CallId("c2"), CallId("c3")

ALLOWED: list[RunEvent] = [*a_turn(1, C1), a_verdict(C1)]
ASKED: list[RunEvent] = [*a_turn(1, C1), a_verdict(C1, Verdict.ASK)]
AT_STAGE: dict[CallStage, list[RunEvent]] = {
    CallStage.PROPOSED: a_turn(1, C1),
    CallStage.ALLOWED: ALLOWED,
    CallStage.NEEDS_APPROVAL: ASKED,
    CallStage.WAITING: [*ASKED, a_question(C1)],
    CallStage.STARTED: [*ALLOWED, a_tool_start(C1)],
    CallStage.INTERRUPTED: [*ALLOWED, a_tool_start(C1), a_resume()],
    CallStage.DENIED: [*a_turn(1, C1), a_verdict(C1, Verdict.DENY)],
    CallStage.FINISHED: [*ALLOWED, a_tool_start(C1), a_result(C1)],
    CallStage.HANDED_OVER: [*a_turn(1, C1), a_hand_over(C1)],
}
"""How the only call of a run comes to each stage."""


def refuse(state: RunState, event: RunEvent, because: str) -> None:
    """Assert that the event is illegal, for that reason."""
    with pytest.raises(RunEventInvalid, match=because):
        evolve(state, event)


def evolve_all(state: RunState, *events: RunEvent) -> RunState:
    for event in events:
        state = evolve(state, event)
    return state


def stage_of(state: RunState, call_id: CallId) -> CallStage:
    return state.call(call_id).stage


def ids_of(calls: tuple[ToolCall, ...]) -> list[CallId]:
    return [call.call_id for call in calls]


# -- the beginning


def test_a_run_begins_with_what_was_accepted() -> None:
    parent = ParentRun(run_id=RunId("above"), session_id=SessionId("theirs"), call_id=C1, depth=1)
    limits = Limits(model_turns=2)
    state = begin(RUN, SESSION, an_accepted(limits=limits, parent=parent, carried_ms=5))
    assert (state.run_id, state.session_id, state.principal, state.agent_id) == (RUN, SESSION, ANA, AGENT)
    assert (state.limits, state.parent, state.active_ms) == (limits, parent, 5)
    assert (state.status, state.run_seq, state.inputs, state.inputs_shown) == (RunStatus.ACCEPTED, 1, 1, 0)


def test_a_run_suspends_until_it_is_its_turn() -> None:
    assert next_step(fold([an_accepted()])) == Suspend()


def test_a_started_run_asks_the_model() -> None:
    assert next_step(a_run()) == CallModel()


def test_a_run_starts_once() -> None:
    refuse(a_run(), a_start(), "already started")


def test_a_run_is_accepted_once() -> None:
    refuse(a_run(), an_accepted(), "already accepted")


def test_a_run_is_accepted_until_its_first_turn_starts() -> None:
    assembled = a_run(a_context())
    assert assembled.status is RunStatus.ACCEPTED
    assert evolve(assembled, a_turn_start()).status is RunStatus.IN_PROGRESS


def test_every_event_counts_and_adds_its_time() -> None:
    state = fold([an_accepted(carried_ms=1), a_start(carried_ms=20), a_context(carried_ms=300)])
    assert (state.run_seq, state.active_ms) == (3, 321)


@pytest.mark.parametrize("status", RunStatus)
def test_a_history_leaves_the_run_where_it_says(status: RunStatus) -> None:
    assert fold(a_history(status)).status is status


# -- turns


def test_no_context_is_assembled_before_the_start() -> None:
    refuse(fold([an_accepted()]), a_context(), "no model turn may start now")


@pytest.mark.parametrize("inputs", [0, 2])
def test_a_context_must_have_seen_every_input(inputs: int) -> None:
    refuse(a_run(), a_context(inputs), "an input arrived in between")


def test_a_turn_needs_a_context() -> None:
    refuse(a_run(), a_turn_start(), "not assembled")


def test_a_context_serves_one_turn() -> None:
    refuse(a_run(*a_turn(1)), a_turn_start(2), "not assembled")


@pytest.mark.parametrize("turn", [0, 1, 3])
def test_turns_are_counted_without_gaps(turn: int) -> None:
    refuse(a_run(*a_turn(1), a_steer(), a_context(2)), a_turn_start(turn), "must not have gaps")


def test_the_model_is_not_asked_while_a_turn_is_open() -> None:
    refuse(a_run(a_context(), a_turn_start()), a_context(), "no model turn may start now")


@pytest.mark.parametrize("stage", sorted(set(CallStage) - {CallStage.DENIED, CallStage.FINISHED}))
def test_the_model_is_not_asked_while_a_call_is_unsettled(stage: CallStage) -> None:
    refuse(a_run(*AT_STAGE[stage]), a_context(), "no model turn may start now")


@pytest.mark.parametrize("event", [a_text(2), a_proposal(2, C1), a_turn_end(2), a_void(2)])
def test_what_belongs_to_another_turn_is_refused(event: RunEvent) -> None:
    refuse(a_run(a_context(), a_turn_start(1)), event, "turn 2 is not open")


@pytest.mark.parametrize("event", [a_text(1), a_proposal(1, C1), a_turn_end(1), a_void(1)])
def test_what_comes_after_the_end_of_its_turn_is_refused(event: RunEvent) -> None:
    refuse(a_run(*a_turn(1)), event, "turn 1 is not open")


def test_the_pieces_of_an_answer_are_kept_in_order() -> None:
    state = a_run(a_context(), a_turn_start(), a_text(1, "Good "), a_text(1, "evening."))
    assert state.text == ("Good ", "evening.")


def test_a_call_is_kept_as_the_model_proposed_it() -> None:
    state = a_run(a_context(), a_turn_start(), a_proposal(1, C1, tool="read", malformed="no JSON"))
    assert state.call(C1).call == ToolCall(call_id=C1, tool="read", arguments={}, malformed="no JSON")
    assert stage_of(state, C1) is CallStage.PROPOSED


def test_a_call_is_proposed_once_in_a_turn() -> None:
    refuse(a_run(a_context(), a_turn_start(), a_proposal(1, C1)), a_proposal(1, C1), "already proposed")


def test_a_call_of_then_is_the_first_step_of_the_run_that_was_accepted_for_it() -> None:
    state = fold([an_accepted(reissue=a_reissue("read")), a_start()])
    assert state.status is RunStatus.ACCEPTED
    proposed = evolve(state, a_proposal(0, C1, tool="read"))
    assert (proposed.status, proposed.turns) == (RunStatus.IN_PROGRESS, 0)
    assert next_step(proposed) == CheckPolicy((proposed.call(C1).call,))
    waiting = evolve_all(proposed, a_verdict(C1, Verdict.ASK), a_question(C1))
    assert waiting.status is RunStatus.WAITING
    denied = evolve(waiting, an_answer(C1, ApprovalDecision.DENIED))
    assert next_step(denied) == CallModel()
    answered = evolve_all(denied, *a_turn(1))
    assert next_step(answered) == Finish(RunStatus.DONE)


@pytest.mark.parametrize(
    ("before", "event", "because"),
    [
        ([an_accepted(), a_start()], a_proposal(0, C1), "not the call"),
        ([an_accepted(reissue=a_reissue()), a_start()], a_proposal(0, C1, tool="other"), "not the call"),
        ([an_accepted(reissue=a_reissue())], a_proposal(0, C1), "before the first turn"),
        ([an_accepted(reissue=a_reissue()), a_start(), a_proposal(0, C1)], a_proposal(0, C2), "before the first turn"),
        ([an_accepted(reissue=a_reissue()), a_start(), *a_turn(1, C1)], a_proposal(0, C2), "before the first turn"),
        ([an_accepted(reissue=a_reissue()), a_start(), a_context()], a_proposal(0, C1), "before the first turn"),
    ],
)
def test_no_other_call_is_proposed_outside_of_a_turn(before: list[RunEvent], event: RunEvent, because: str) -> None:
    refuse(fold(before), event, because)


def test_a_turn_without_calls_ends_the_run() -> None:
    answered = a_run(*a_turn(1))
    assert next_step(answered) == Finish(RunStatus.DONE)
    assert evolve(answered, a_completion()).status is RunStatus.DONE


def test_a_turn_with_calls_is_no_answer() -> None:
    state = a_run(*AT_STAGE[CallStage.FINISHED])
    assert next_step(state) == CallModel()
    refuse(state, a_completion(), "no answer yet")


def test_the_next_turn_starts_with_nothing_of_the_one_before() -> None:
    state = a_run(*AT_STAGE[CallStage.FINISHED], a_context(), a_turn_start(2))
    assert (state.text, state.calls, state.turn) == ((), (), 2)


def test_a_void_turn_leaves_nothing_and_is_counted() -> None:
    state = a_run(a_context(), a_turn_start(), a_text(), a_proposal(1, C1), a_void())
    assert (state.turn, state.text, state.calls, state.turns) == (None, (), (), 1)
    assert next_step(state) == CallModel()


def test_a_run_is_not_completed_while_its_turn_is_open() -> None:
    refuse(a_run(a_context(), a_turn_start(), a_text()), a_completion(), "no answer yet")


def test_a_run_is_not_completed_by_a_void_turn() -> None:
    refuse(a_run(a_context(), a_turn_start(), a_text(), a_void()), a_completion(), "no answer yet")


# -- policy and approvals


def test_proposed_calls_are_checked_in_the_order_of_the_model() -> None:
    step = next_step(a_run(*a_turn(1, C2, C1)))
    assert isinstance(step, CheckPolicy)
    assert ids_of(step.calls) == [C2, C1]


def test_only_calls_that_are_not_decided_yet_are_checked() -> None:
    step = next_step(a_run(*a_turn(1, C1, C2), a_verdict(C1)))
    assert isinstance(step, CheckPolicy)
    assert ids_of(step.calls) == [C2]


@pytest.mark.parametrize(
    ("verdict", "stage"),
    [(Verdict.ALLOW, CallStage.ALLOWED), (Verdict.ASK, CallStage.NEEDS_APPROVAL), (Verdict.DENY, CallStage.DENIED)],
)
def test_the_verdict_decides_the_stage(verdict: Verdict, stage: CallStage) -> None:
    assert stage_of(a_run(*a_turn(1, C1), a_verdict(C1, verdict)), C1) is stage


@pytest.mark.parametrize("stage", sorted(set(CallStage) - {CallStage.PROPOSED}))
def test_a_call_is_decided_once(stage: CallStage) -> None:
    refuse(a_run(*AT_STAGE[stage]), a_verdict(C1), f"c1 is {stage}")


def test_a_call_of_no_turn_is_refused() -> None:
    refuse(a_run(*a_turn(1, C1)), a_verdict(C2), "no call c2")


@pytest.mark.parametrize("event", [a_verdict(C1), a_question(C1), an_answer(C1), a_tool_start(C1), a_result(C1)])
def test_nothing_is_done_about_a_call_while_its_turn_is_open(event: RunEvent) -> None:
    refuse(a_run(a_context(), a_turn_start(), a_proposal(1, C1)), event, "the turn is still open")


def test_a_denied_call_goes_back_to_the_model() -> None:
    assert next_step(a_run(*AT_STAGE[CallStage.DENIED])) == CallModel()


def test_allowed_calls_run_before_anybody_is_asked() -> None:
    state = a_run(*a_turn(1, C1, C2), a_verdict(C1, Verdict.ASK), a_verdict(C2))
    assert next_step(state) == ExecuteTools((state.call(C2),))


def test_a_person_is_asked_when_nothing_else_is_to_be_done() -> None:
    step = next_step(a_run(*ASKED))
    assert isinstance(step, AskApproval)
    assert ids_of(step.calls) == [C1]


def test_a_run_suspends_while_a_question_is_open() -> None:
    state = a_run(*ASKED, a_question(C1, "a1"))
    assert (state.call(C1).waits_for, state.call(C1).for_child) == ("a1", False)
    assert state.status is RunStatus.WAITING
    assert next_step(state) == Suspend()


@pytest.mark.parametrize("stage", sorted(set(CallStage) - {CallStage.NEEDS_APPROVAL}))
def test_a_question_is_about_a_call_that_policy_wants_asked(stage: CallStage) -> None:
    refuse(a_run(*AT_STAGE[stage]), a_question(C1, "a2"), f"c1 is {stage}")


@pytest.mark.parametrize(
    ("decision", "stage"),
    [
        (ApprovalDecision.ALLOWED, CallStage.ALLOWED),
        (ApprovalDecision.DENIED, CallStage.DENIED),
        (ApprovalDecision.TIMED_OUT, CallStage.DENIED),
        (ApprovalDecision.WITHDRAWN, CallStage.DENIED),
    ],
)
def test_the_answer_decides_the_stage(decision: ApprovalDecision, stage: CallStage) -> None:
    state = a_run(*ASKED, a_question(C1), an_answer(C1, decision))
    assert stage_of(state, C1) is stage
    assert state.status is RunStatus.IN_PROGRESS


def test_an_answer_to_another_question_is_refused() -> None:
    refuse(a_run(*ASKED, a_question(C1, "a1")), an_answer(C1, approval="a2"), "not open")


def test_the_first_answer_wins() -> None:
    answered = a_run(*ASKED, a_question(C1), an_answer(C1, ApprovalDecision.DENIED))
    refuse(answered, an_answer(C1, ApprovalDecision.ALLOWED), "not open")


def test_an_answer_comes_not_before_the_question() -> None:
    refuse(a_run(*ASKED), an_answer(C1), "not open")


def test_a_run_works_on_while_only_some_of_its_calls_wait() -> None:
    asked = a_run(*a_turn(1, C1, C2), a_verdict(C1, Verdict.ASK), a_verdict(C2, Verdict.ASK), a_question(C1, "a1"))
    assert asked.status is RunStatus.IN_PROGRESS
    waiting = evolve(asked, a_question(C2, "a2"))
    assert waiting.status is RunStatus.WAITING
    allowed = evolve(waiting, an_answer(C2, approval="a2"))
    assert allowed.status is RunStatus.IN_PROGRESS
    assert next_step(allowed) == ExecuteTools((allowed.call(C2),))


def test_a_run_waits_again_when_the_allowed_calls_are_done() -> None:
    both = (a_verdict(C1, Verdict.ASK), a_verdict(C2, Verdict.ASK), a_question(C1, "a1"), a_question(C2, "a2"))
    state = a_run(*a_turn(1, C1, C2), *both, an_answer(C1, approval="a1"), a_tool_start(C1), a_result(C1))
    assert state.status is RunStatus.WAITING
    assert next_step(state) == Suspend()


# -- execution


def test_a_started_call_is_counted() -> None:
    state = a_run(*ALLOWED, a_tool_start(C1))
    assert (stage_of(state, C1), state.call(C1).attempts, state.executed) == (CallStage.STARTED, 1, 1)


@pytest.mark.parametrize("stage", sorted(set(CallStage) - {CallStage.ALLOWED, CallStage.INTERRUPTED}))
def test_only_what_is_allowed_may_start(stage: CallStage) -> None:
    state = a_run(*AT_STAGE[stage])
    refuse(state, a_tool_start(C1, state.call(C1).attempts + 1), f"c1 is {stage}")


@pytest.mark.parametrize("attempt", [0, 2])
def test_attempts_are_counted_without_gaps(attempt: int) -> None:
    refuse(a_run(*ALLOWED), a_tool_start(C1, attempt), "must not have gaps")


@pytest.mark.parametrize("stop", [a_cancel(), a_limit(LimitKind.WALL_CLOCK)])
def test_nothing_starts_after_a_cancel_or_a_limit(stop: RunEvent) -> None:
    refuse(a_run(*ALLOWED, stop), a_tool_start(C1), "no call may start any more")
    refuse(a_run(*ALLOWED, a_tool_start(C1), stop), a_child(C1), "no child may start any more")


@pytest.mark.parametrize("stop", [a_cancel(), a_limit(LimitKind.WALL_CLOCK)])
def test_what_runs_at_a_cancel_or_a_limit_may_still_finish(stop: RunEvent) -> None:
    assert stage_of(a_run(*ALLOWED, a_tool_start(C1), stop, a_result(C1)), C1) is CallStage.FINISHED


@pytest.mark.parametrize(
    "stage", [CallStage.PROPOSED, CallStage.ALLOWED, CallStage.NEEDS_APPROVAL, CallStage.STARTED, CallStage.INTERRUPTED]
)
def test_a_call_can_be_settled_while_it_is(stage: CallStage) -> None:
    assert stage_of(a_run(*AT_STAGE[stage], a_result(C1, CallOutcome.SKIPPED)), C1) is CallStage.FINISHED


@pytest.mark.parametrize("stage", [CallStage.WAITING, CallStage.DENIED, CallStage.FINISHED])
def test_a_call_can_not_be_settled_while_it_is(stage: CallStage) -> None:
    refuse(a_run(*AT_STAGE[stage]), a_result(C1), f"c1 is {stage}")


def test_results_go_back_to_the_model_when_all_are_there() -> None:
    one = a_run(*a_turn(1, C1, C2), a_verdict(C1), a_verdict(C2), a_tool_start(C1), a_tool_start(C2), a_result(C2))
    assert next_step(one) != CallModel()
    assert next_step(evolve(one, a_result(C1))) == CallModel()


def test_a_run_suspends_while_a_child_works() -> None:
    state = a_run(*ALLOWED, a_tool_start(C1), a_child(C1, "child"))
    assert (stage_of(state, C1), state.call(C1).waits_for, state.call(C1).for_child) == (
        CallStage.WAITING,
        "child",
        True,
    )
    assert (state.executed, state.children) == (1, 1)
    assert state.status is RunStatus.WAITING
    assert next_step(state) == Suspend()


@pytest.mark.parametrize("stage", sorted(set(CallStage) - {CallStage.STARTED}))
def test_only_a_call_that_runs_can_go_on_as_a_child(stage: CallStage) -> None:
    refuse(a_run(*AT_STAGE[stage]), a_child(C1), f"c1 is {stage}")


def test_the_end_of_a_child_settles_its_call() -> None:
    state = a_run(*ALLOWED, a_tool_start(C1), a_child(C1, "child"), a_child_end(C1, "child"))
    assert stage_of(state, C1) is CallStage.FINISHED
    assert next_step(state) == CallModel()


def test_the_end_of_another_child_is_refused() -> None:
    refuse(
        a_run(*ALLOWED, a_tool_start(C1), a_child(C1, "child")),
        a_child_end(C1, "other"),
        "does not wait for this child",
    )


def test_a_child_is_not_answered_and_a_question_does_not_end() -> None:
    refuse(a_run(*ALLOWED, a_tool_start(C1), a_child(C1, "child")), an_answer(C1, approval="child"), "not open")
    refuse(a_run(*ASKED, a_question(C1, "a1")), a_child_end(C1, "a1"), "does not wait for this child")


def test_a_child_ends_once() -> None:
    ended = a_run(*ALLOWED, a_tool_start(C1), a_child(C1, "child"), a_child_end(C1, "child"))
    refuse(ended, a_child_end(C1, "child"), "does not wait for this child")


# -- crashes


def test_a_turn_that_nobody_carries_is_resumed() -> None:
    assert next_step(a_run(a_context(), a_turn_start(), a_text())) == Resume()


def test_resuming_voids_the_open_turn() -> None:
    state = a_run(a_context(), a_turn_start(), a_text(), a_proposal(1, C1), a_resume())
    assert (state.turn, state.text, state.calls, state.inputs_shown) == (None, (), (), 0)
    assert next_step(state) == CallModel()
    refuse(state, a_text(1), "turn 1 is not open")


def test_a_call_that_nobody_carries_is_resumed() -> None:
    assert next_step(a_run(*AT_STAGE[CallStage.STARTED])) == Resume()


def test_resuming_interrupts_what_was_started_and_nothing_else() -> None:
    calls = (a_verdict(C1), a_verdict(C2), a_verdict(C3), a_tool_start(C1), a_tool_start(C2), a_result(C1))
    state = a_run(*a_turn(1, C1, C2, C3), *calls, a_resume())
    assert [each.stage for each in state.calls] == [CallStage.FINISHED, CallStage.INTERRUPTED, CallStage.ALLOWED]
    assert next_step(state) == ExecuteTools((state.call(C2), state.call(C3)))


def test_an_interrupted_call_that_starts_again_is_counted_once() -> None:
    state = a_run(*AT_STAGE[CallStage.INTERRUPTED], a_tool_start(C1, 2))
    assert (stage_of(state, C1), state.call(C1).attempts, state.executed) == (CallStage.STARTED, 2, 1)


def test_an_interrupted_call_does_not_start_as_if_for_the_first_time() -> None:
    refuse(a_run(*AT_STAGE[CallStage.INTERRUPTED]), a_tool_start(C1, 1), "must not have gaps")


@pytest.mark.parametrize("events", [[], *(AT_STAGE[stage] for stage in sorted(set(CallStage) - {CallStage.STARTED}))])
def test_where_nothing_was_left_open_nothing_is_resumed(events: list[RunEvent]) -> None:
    refuse(a_run(*events), a_resume(), "nothing was interrupted")


# -- limits


ONE_TURN = Limits(model_turns=1)
TWO_CALLS = Limits(tool_calls=2)
SHORT = Limits(wall_clock_ms=1_000, last_turn_timeout_ms=500)


def at_the_last_turn(*events: RunEvent) -> RunState:
    """Return a run whose only ordinary turn is over, whose limit is noted, and to which then the events happened."""
    return a_run(*AT_STAGE[CallStage.FINISHED], a_limit(LimitKind.MODEL_TURNS), *events, limits=ONE_TURN)


def test_a_run_out_of_turns_notes_the_limit() -> None:
    assert next_step(a_run(*AT_STAGE[CallStage.FINISHED], limits=ONE_TURN)) == NoteLimit(LimitKind.MODEL_TURNS)


def test_a_run_does_not_note_that_it_is_out_of_turns_while_calls_are_to_be_done() -> None:
    state = a_run(*ALLOWED, limits=ONE_TURN)
    assert next_step(state) == ExecuteTools((state.call(C1),))


def test_an_answer_in_the_last_of_the_turns_meets_no_limit() -> None:
    assert next_step(a_run(*a_turn(1), limits=ONE_TURN)) == Finish(RunStatus.DONE)


def test_turns_that_a_provider_failed_in_do_not_count_towards_the_limit() -> None:
    state = a_run(a_context(), a_turn_start(), a_void(), limits=ONE_TURN)
    assert next_step(state) == CallModel()
    assert [failure.model for failure in state.failures] == ["scripted/small"]


def test_what_failed_is_forgotten_when_a_turn_comes_to_its_end() -> None:
    state = a_run(a_context(), a_turn_start(), a_void(), a_context(), a_turn_start(2), a_turn_end(2))
    assert not state.failures


def test_a_run_waits_for_a_word_on_its_budget_before_its_first_turn_and_goes_on() -> None:
    asked = a_run(a_budget_question("q", "daily", "run"))
    assert (asked.status, next_step(asked)) == (RunStatus.WAITING, Suspend())
    assert asked.open_questions == [("", "q")]
    allowed = evolve(asked, an_answer("", ApprovalDecision.ALLOWED, "q"))
    assert (allowed.status, allowed.lifted, next_step(allowed)) == (
        RunStatus.IN_PROGRESS,
        ("daily", "run"),
        CallModel(),
    )


@pytest.mark.parametrize("decision", [ApprovalDecision.DENIED, ApprovalDecision.TIMED_OUT])
def test_a_run_that_may_not_go_beyond_its_budget_fails(decision: ApprovalDecision) -> None:
    refused = a_run(a_budget_question("q"), an_answer("", decision, "q"))
    step = next_step(refused)
    assert isinstance(step, Finish)
    assert (step.status, step.code) == (RunStatus.FAILED, "budget_denied")
    for event in (a_steer(), a_context(), a_budget_question("again")):
        with pytest.raises(RunEventInvalid):
            evolve(refused, event)


def test_a_question_about_a_budget_that_is_withdrawn_leaves_it_open() -> None:
    withdrawn = a_run(a_budget_question("q"), an_answer("", ApprovalDecision.WITHDRAWN, "q"))
    assert (withdrawn.lifted, withdrawn.refused, next_step(withdrawn)) == ((), None, CallModel())


def test_the_model_is_not_asked_while_a_question_about_a_budget_is_open() -> None:
    asked = a_run(a_budget_question("q"))
    for event in (a_context(), a_warning(), a_budget_question("another"), an_answer("", approval="another")):
        with pytest.raises(RunEventInvalid):
            evolve(asked, event)


def test_nobody_is_asked_about_budgets_in_the_middle_of_a_turn_or_of_calls() -> None:
    for state in (a_run(a_context(), a_turn_start()), a_run(*a_turn(1, "c1"))):
        with pytest.raises(RunEventInvalid):
            evolve(state, a_budget_question("q"))


def test_a_child_works_for_the_run_at_the_top() -> None:
    top, near = RunId("top"), ParentRun(run_id=RunId("above"), session_id=SessionId("theirs"), call_id=C1, depth=1)
    state = fold([an_accepted(parent=near)])
    assert (state.root_run_id, state.root_session_id) == ("above", "theirs")
    deeper = msgspec.structs.replace(near, depth=2, root_run_id=top, root_session_id=SessionId("topmost"))
    state = fold([an_accepted(parent=deeper)])
    assert (state.root_run_id, state.root_session_id) == ("top", "topmost")
    assert a_run().root_run_id == RUN


def test_after_a_limit_the_model_gets_one_last_turn() -> None:
    assert next_step(at_the_last_turn()) == CallModel(last=True)


def test_the_turn_after_a_limit_must_be_the_last() -> None:
    refuse(at_the_last_turn(a_context()), a_turn_start(2, last=False), "only the turn after a limit")


def test_a_turn_is_not_the_last_without_a_limit() -> None:
    refuse(a_run(a_context()), a_turn_start(1, last=True), "only the turn after a limit")


def test_a_context_from_before_the_limit_does_not_serve_the_last_turn() -> None:
    refuse(a_run(a_context(), a_limit()), a_turn_start(1, last=True), "not assembled")


def test_a_last_turn_that_answers_ends_the_run_done() -> None:
    state = at_the_last_turn(*a_turn(2, text="Not all is done.", last=True))
    assert next_step(state) == Finish(RunStatus.DONE, limit=LimitKind.MODEL_TURNS)
    assert evolve(state, a_completion(LimitKind.MODEL_TURNS)).status is RunStatus.DONE


def test_a_last_turn_without_text_ends_the_run_failed() -> None:
    step = next_step(at_the_last_turn(*a_turn(2, text="", last=True)))
    assert isinstance(step, Finish)
    assert (step.status, step.reason) == (
        RunStatus.FAILED,
        "the run reached a limit, and the model gave no final answer",
    )


def test_calls_that_a_last_turn_proposes_all_the_same_are_refused() -> None:
    state = at_the_last_turn(*a_turn(2, C2, text="Not all is done.", last=True))
    assert next_step(state) == RefuseCalls((state.call(C2),), LimitKind.MODEL_TURNS)
    refused = evolve(state, a_result(C2, CallOutcome.SKIPPED))
    assert next_step(refused) == Finish(RunStatus.DONE, limit=LimitKind.MODEL_TURNS)


def test_a_run_is_not_completed_while_calls_of_its_last_turn_are_unsettled() -> None:
    refuse(at_the_last_turn(*a_turn(2, C2, last=True)), a_completion(LimitKind.MODEL_TURNS), "no answer yet")


def test_a_last_turn_that_broke_off_is_tried_again() -> None:
    state = at_the_last_turn(a_context(), a_turn_start(2, last=True), a_text(2), a_resume())
    assert next_step(state) == CallModel(last=True)


def test_a_run_whose_last_turn_always_breaks_off_fails() -> None:
    state = at_the_last_turn()
    for turn in range(2, 2 + MAX_INTERRUPTED_TURNS):
        assert next_step(state) == CallModel(last=True)
        state = evolve_all(state, a_context(), a_turn_start(turn, last=True), a_resume())
    step = next_step(state)
    assert isinstance(step, Finish)
    assert (step.status, step.code) == (RunStatus.FAILED, "model_turns_interrupted")


def test_turns_that_the_end_of_the_daemon_cut_off_do_not_count_for_the_limit() -> None:
    state = a_run(limits=Limits(model_turns=2))
    for ended in (10, 20):
        for turn in range(ended - MAX_INTERRUPTED_TURNS + 1, ended):
            state = evolve_all(state, a_context(), a_turn_start(turn), a_text(turn), a_resume())
            assert next_step(state) == CallModel()
        state = evolve_all(state, *a_turn(ended, C1), a_verdict(C1), a_tool_start(C1), a_result(C1))
    assert next_step(state) == NoteLimit(LimitKind.MODEL_TURNS)


def test_a_run_whose_turns_all_end_with_the_daemon_fails() -> None:
    state = a_run()
    for turn in range(1, 1 + MAX_INTERRUPTED_TURNS):
        assert next_step(state) == CallModel()
        state = evolve_all(state, a_context(), a_turn_start(turn), a_resume())
    step = next_step(state)
    assert isinstance(step, Finish)
    assert (step.status, step.code) == (RunStatus.FAILED, "model_turns_interrupted")


@pytest.mark.parametrize(("carried_ms", "step"), [(999, CallModel()), (1_000, NoteLimit(LimitKind.WALL_CLOCK))])
def test_a_run_out_of_time_notes_the_limit(carried_ms: int, step: object) -> None:
    assert next_step(a_run(a_context(carried_ms=carried_ms), limits=SHORT)) == step


def test_a_run_out_of_time_starts_no_further_call() -> None:
    state = a_run(*a_turn(1, C1), a_verdict(C1, carried_ms=1_000), limits=SHORT)
    assert next_step(state) == NoteLimit(LimitKind.WALL_CLOCK)
    assert next_step(evolve(state, a_limit(LimitKind.WALL_CLOCK))) == RefuseCalls(
        (state.call(C1),), LimitKind.WALL_CLOCK
    )


@pytest.mark.parametrize(
    ("carried_ms", "step"), [(499, CallModel(last=True)), (500, Finish(RunStatus.CANCELLED, reason="timeout"))]
)
def test_a_last_turn_that_takes_too_long_ends_the_run_cancelled(carried_ms: int, step: object) -> None:
    late = a_run(a_context(carried_ms=1_000), a_limit(LimitKind.WALL_CLOCK), a_context(), limits=SHORT)
    state = evolve_all(late, a_turn_start(1, last=True), a_void(1, carried_ms=carried_ms))
    assert next_step(state) == step


def test_the_default_grace_of_the_last_turn_is_a_minute() -> None:
    overdue = Limits().wall_clock_ms + 60_000
    assert next_step(a_run(a_context(carried_ms=overdue))) == Finish(RunStatus.CANCELLED, reason="timeout")


def test_an_open_turn_is_closed_before_the_run_times_out() -> None:
    state = a_run(a_context(), a_turn_start(1, carried_ms=1_500), limits=SHORT)
    assert next_step(state) == Resume()
    assert next_step(evolve(state, a_resume())) == Finish(RunStatus.CANCELLED, reason="timeout")


def test_no_more_calls_are_executed_than_there_is_room_for() -> None:
    state = a_run(*a_turn(1, C1, C2, C3), a_verdict(C1), a_verdict(C2), a_verdict(C3), limits=TWO_CALLS)
    assert next_step(state) == ExecuteTools((state.call(C1), state.call(C2)))


def test_calls_beyond_the_limit_are_refused_in_the_middle_of_a_turn() -> None:
    ran = (a_tool_start(C1), a_tool_start(C2), a_result(C1), a_result(C2))
    verdicts = (a_verdict(C1), a_verdict(C2), a_verdict(C3))
    state = a_run(*a_turn(1, C1, C2, C3), *verdicts, *ran, limits=TWO_CALLS)
    assert next_step(state) == NoteLimit(LimitKind.TOOL_CALLS)
    limited = evolve(state, a_limit(LimitKind.TOOL_CALLS))
    assert next_step(limited) == RefuseCalls((state.call(C3),), LimitKind.TOOL_CALLS)
    assert next_step(evolve(limited, a_result(C3, CallOutcome.SKIPPED))) == CallModel(last=True)


def test_calls_that_exactly_fill_the_limit_do_not_meet_it() -> None:
    calls = (a_verdict(C1), a_verdict(C2), a_tool_start(C1), a_tool_start(C2), a_result(C1), a_result(C2))
    assert next_step(a_run(*a_turn(1, C1, C2), *calls, limits=TWO_CALLS)) == CallModel()


@pytest.mark.parametrize(
    "stage", [CallStage.PROPOSED, CallStage.ALLOWED, CallStage.NEEDS_APPROVAL, CallStage.INTERRUPTED]
)
def test_at_a_limit_a_call_is_refused_that_is(stage: CallStage) -> None:
    state = a_run(*AT_STAGE[stage], a_limit(LimitKind.WALL_CLOCK))
    assert next_step(state) == RefuseCalls((state.call(C1),), LimitKind.WALL_CLOCK)


def test_at_a_limit_what_waits_is_waited_for() -> None:
    state = a_run(*AT_STAGE[CallStage.WAITING], a_limit(LimitKind.WALL_CLOCK))
    assert next_step(state) == Suspend()
    assert next_step(evolve(state, an_answer(C1, ApprovalDecision.DENIED))) == CallModel(last=True)


def test_a_limit_is_noted_once() -> None:
    refuse(at_the_last_turn(), a_limit(LimitKind.WALL_CLOCK), "already recorded")


def test_a_limit_is_not_noted_while_a_turn_is_open() -> None:
    refuse(a_run(a_context(), a_turn_start()), a_limit(), "a turn is open")


@pytest.mark.parametrize("carried_ms", [1_000, 1_500])
def test_an_answer_that_is_there_counts_however_late_it_came(carried_ms: int) -> None:
    turn = a_turn(1)[:-1]
    state = a_run(*turn, a_turn_end(1, carried_ms=carried_ms), limits=SHORT)
    assert next_step(state) == Finish(RunStatus.DONE)


def test_a_crash_in_the_last_call_that_there_is_room_for_meets_no_limit() -> None:
    state = a_run(*AT_STAGE[CallStage.INTERRUPTED], limits=Limits(tool_calls=1))
    assert next_step(state) == ExecuteTools((state.call(C1),))
    assert next_step(evolve(state, a_result(C1, CallOutcome.INTERRUPTED))) == CallModel()


def test_nobody_is_asked_about_a_call_that_there_is_no_room_for() -> None:
    assert next_step(a_run(*ASKED, limits=Limits(tool_calls=0))) == NoteLimit(LimitKind.TOOL_CALLS)


def test_what_was_interrupted_goes_on_before_the_limit_is_noted() -> None:
    calls = (a_verdict(C1), a_verdict(C2), a_tool_start(C1), a_resume())
    state = a_run(*a_turn(1, C1, C2), *calls, limits=Limits(tool_calls=1))
    assert next_step(state) == ExecuteTools((state.call(C1),))
    settled = evolve(state, a_result(C1, CallOutcome.INTERRUPTED))
    assert next_step(settled) == NoteLimit(LimitKind.TOOL_CALLS)


def test_people_are_asked_about_no_more_calls_than_there_is_room_for() -> None:
    verdicts = (a_verdict(C1, Verdict.ASK), a_verdict(C2, Verdict.ASK))
    state = a_run(*a_turn(1, C1, C2), *verdicts, limits=Limits(tool_calls=1))
    assert next_step(state) == RefuseCalls((state.call(C2),), LimitKind.TOOL_CALLS)
    refused = evolve(state, a_result(C2, CallOutcome.SKIPPED))
    assert next_step(refused) == AskApproval((state.call(C1).call,))


def test_a_call_that_a_person_is_asked_about_has_its_place() -> None:
    verdicts = (a_verdict(C1, Verdict.ASK), a_verdict(C2, Verdict.ASK), a_question(C1, "a1"), a_question(C2, "a2"))
    asked = a_run(*a_turn(1, C1, C2), *verdicts, limits=TWO_CALLS)
    first = evolve_all(asked, an_answer(C2, approval="a2"))
    assert next_step(first) == ExecuteTools((first.call(C2),))
    second = evolve_all(first, a_tool_start(C2), a_result(C2), an_answer(C1, approval="a1"))
    assert next_step(second) == ExecuteTools((second.call(C1),))


def test_a_child_takes_one_place_and_no_more() -> None:
    verdicts = (a_verdict(C1), a_verdict(C2, Verdict.ASK), a_tool_start(C1), a_child(C1))
    state = a_run(*a_turn(1, C1, C2), *verdicts, limits=TWO_CALLS)
    assert next_step(state) == AskApproval((state.call(C2).call,))


def test_a_last_turn_is_tried_no_more_often_when_another_limit_was_met() -> None:
    state = a_run(a_limit(LimitKind.TOOL_CALLS), limits=Limits(model_turns=24))
    for turn in range(1, 1 + MAX_INTERRUPTED_TURNS):
        assert next_step(state) == CallModel(last=True)
        state = evolve_all(state, a_context(), a_turn_start(turn, last=True), a_resume())
    assert isinstance(next_step(state), Finish)


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_last_turn_that_says_nothing_ends_the_run_failed(text: str) -> None:
    state = at_the_last_turn(a_context(), a_turn_start(2, last=True), a_text(2, text), a_turn_end(2))
    step = next_step(state)
    assert isinstance(step, Finish)
    assert step.status is RunStatus.FAILED


def test_a_run_is_not_completed_by_a_last_turn_without_text() -> None:
    refuse(at_the_last_turn(*a_turn(2, text="", last=True)), a_completion(LimitKind.MODEL_TURNS), "no answer yet")


# -- further input


def test_a_run_takes_no_further_input_before_it_started() -> None:
    refuse(fold([an_accepted()]), a_steer(), "no further input")


def test_a_run_takes_no_further_input_at_a_limit() -> None:
    refuse(at_the_last_turn(), a_steer(), "no further input")


def test_an_input_that_comes_during_a_turn_is_seen_by_the_next() -> None:
    state = a_run(a_context(), a_turn_start(), a_steer(), a_turn_end())
    assert next_step(state) == CallModel()
    assert next_step(evolve_all(state, *a_turn(2, inputs=2))) == Finish(RunStatus.DONE)


def test_an_input_that_comes_after_the_answer_keeps_the_run_open() -> None:
    state = a_run(*a_turn(1), a_steer())
    assert next_step(state) == CallModel()
    refuse(state, a_completion(), "no answer yet")


def test_an_input_makes_the_assembled_context_stale() -> None:
    refuse(a_run(a_context(), a_steer()), a_turn_start(), "not assembled")


def test_an_input_after_the_last_of_the_turns_gets_the_last_turn() -> None:
    state = a_run(*a_turn(1), a_steer(), limits=ONE_TURN)
    assert next_step(state) == NoteLimit(LimitKind.MODEL_TURNS)
    assert next_step(evolve(state, a_limit())) == CallModel(last=True)


# -- the end


@pytest.mark.parametrize(
    "events",
    [
        [],
        [a_context()],
        [a_context(), a_turn_start()],
        a_turn(1),
        *AT_STAGE.values(),
        [a_limit(LimitKind.WALL_CLOCK)],
        [a_context(carried_ms=10**9)],
    ],
)
def test_a_cancel_ends_the_run_wherever_it_stands(events: list[RunEvent]) -> None:
    state = a_run(*events, a_cancel("enough"))
    assert next_step(state) == Finish(RunStatus.CANCELLED, reason="enough")
    assert evolve(state, a_cancellation("enough")).status is RunStatus.CANCELLED


def test_the_first_reason_to_cancel_stays() -> None:
    assert a_run(a_cancel("first"), a_cancel("second")).cancel == "first"


def test_the_model_is_not_asked_for_a_run_that_is_being_cancelled() -> None:
    refuse(a_run(a_cancel()), a_context(), "no model turn may start now")
    refuse(a_run(a_context(), a_cancel()), a_turn_start(), "not assembled")


def test_a_run_that_is_being_cancelled_is_not_completed() -> None:
    refuse(a_run(*a_turn(1), a_cancel()), a_completion(), "being cancelled")


def test_a_run_that_never_started_can_be_cancelled() -> None:
    assert fold([an_accepted(), a_cancel(), a_cancellation()]).status is RunStatus.CANCELLED


def test_a_run_that_is_being_cancelled_does_not_fail() -> None:
    refuse(a_run(a_cancel()), a_failure(), "being cancelled")


def test_a_run_that_is_being_cancelled_takes_no_further_input() -> None:
    refuse(a_run(a_cancel()), a_steer(), "no further input")


@pytest.mark.parametrize("stop", [a_cancel(), a_limit(LimitKind.WALL_CLOCK)])
def test_nobody_is_asked_after_a_cancel_or_a_limit(stop: RunEvent) -> None:
    refuse(a_run(*ASKED, stop), a_question(C1), "no approval may be requested any more")


@pytest.mark.parametrize(("end", "status"), [(a_failure(), RunStatus.FAILED), (a_cancellation(), RunStatus.CANCELLED)])
def test_an_end_closes_the_open_turn(end: RunEvent, status: RunStatus) -> None:
    state = a_run(a_context(), a_turn_start(), end)
    assert (state.turn, state.status) == (None, status)


@pytest.mark.parametrize("status", [RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED])
@pytest.mark.parametrize("event", [a_start(), a_steer(), a_cancel(), a_completion(), a_failure(), a_cancellation()])
def test_an_end_is_final(status: RunStatus, event: RunEvent) -> None:
    refuse(fold(a_history(status)), event, f"the run is {status}, so {type(event).__name__} comes too late")


def test_an_illegal_transition_is_our_own_fault() -> None:
    assert issubclass(RunEventInvalid, Internal)


def test_a_run_knows_by_which_channels_its_words_came_in() -> None:
    state = fold([an_accepted(origin="grpc"), a_start()])
    assert state.channels == ("grpc",)
    steered = evolve_all(state, a_steer(origin="grpc"), a_steer(origin="http"))
    assert steered.channels == ("grpc", "http")


def test_a_run_that_another_led_to_has_the_channels_of_that_one() -> None:
    assert fold([an_accepted(origin="run", channels=("http", "grpc"))]).channels == ("http", "grpc")
