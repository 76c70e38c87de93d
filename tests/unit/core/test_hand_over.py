"""Calls of tools that the caller has, and what the caller brings along: how the run machine treats them."""

import pytest

from palyra.core.events import ApprovalDecision, RunEvent
from palyra.core.ids import CallId
from palyra.core.limits import LimitKind
from palyra.core.model.prompt import StopReason
from palyra.core.run.machine import evolve
from palyra.core.run.state import CallStage, RunEventInvalid, RunState, RunStatus
from palyra.core.run.steps import (
    AskApproval,
    CheckPolicy,
    ExecuteTools,
    Finish,
    HandOver,
    RefuseCalls,
    Suspend,
    next_step,
)
from palyra.core.tool import Verdict
from tests.support import builders as b

OURS, THEIRS, ALSO = CallId("ours"), CallId("theirs"), CallId("also")


def a_run(*events: RunEvent) -> RunState:
    """Return a run whose caller has a tool, after a turn that called one of ours and one of theirs."""
    turn: list[RunEvent] = [
        b.a_context(),
        b.a_turn_start(),
        b.a_proposal(1, OURS, tool="read"),
        b.a_proposal(1, THEIRS, tool="paint"),
        b.a_proposal(1, ALSO, tool="paint"),
        b.a_turn_end(),
    ]
    return b.fold([b.an_accepted(brief=b.a_brief("paint")), b.a_start(), *turn, *events])


def refuse(state: RunState, event: RunEvent, because: str) -> None:
    with pytest.raises(RunEventInvalid, match=because):
        evolve(state, event)


def calls_of(step: object) -> list[str]:
    assert isinstance(step, HandOver | RefuseCalls | ExecuteTools)
    return [call.call.call_id for call in step.calls]


def test_only_our_calls_are_put_before_the_policy() -> None:
    step = next_step(a_run())
    assert isinstance(step, CheckPolicy)
    assert [call.call_id for call in step.calls] == [OURS]


def test_theirs_wait_until_ours_are_settled() -> None:
    assert isinstance(next_step(a_run(b.a_verdict(OURS))), ExecuteTools)
    asked = a_run(b.a_verdict(OURS, Verdict.ASK))
    assert isinstance(next_step(asked), AskApproval)
    waiting = evolve(asked, b.a_question(OURS))
    assert waiting.status is RunStatus.WAITING, "else somebody would look at it again and again"
    assert next_step(waiting) == Suspend()
    step = next_step(evolve(waiting, b.an_answer(OURS, ApprovalDecision.DENIED)))
    assert isinstance(step, HandOver)
    assert calls_of(step) == [THEIRS, ALSO]


def test_the_run_ends_with_what_was_handed_over() -> None:
    settled = a_run(b.a_result(OURS))
    one = evolve(settled, b.a_hand_over(THEIRS))
    assert calls_of(next_step(one)) == [ALSO]
    both = evolve(one, b.a_hand_over(ALSO))
    assert both.call(THEIRS).stage is CallStage.HANDED_OVER
    assert next_step(both) == Finish(RunStatus.DONE)
    refuse(both, b.a_context(), "no model turn may start now")
    refuse(both, b.a_steer(), "accepts no further input")
    assert evolve(both, b.a_completion()).status is RunStatus.DONE


def test_if_none_could_be_handed_over_the_model_is_asked_again() -> None:
    state = a_run(b.a_result(OURS), b.a_result(THEIRS), b.a_result(ALSO))
    assert type(next_step(state)).__name__ == "CallModel"


def test_what_was_said_meanwhile_comes_first() -> None:
    state = a_run(b.a_result(OURS), b.a_steer())
    refuse(state, b.a_hand_over(THEIRS), "an input arrived in between")
    step = next_step(state)
    assert isinstance(step, RefuseCalls)
    assert (calls_of(step), step.limit) == ([THEIRS, ALSO], None)


def test_a_limit_keeps_nothing_from_being_handed_over() -> None:
    """Nothing is done here for it. Only in a last turn, which has no tools, there is nothing to hand over."""
    state = a_run(b.a_limit(LimitKind.WALL_CLOCK))
    assert calls_of(next_step(state)) == [OURS]
    step = next_step(evolve(state, b.a_result(OURS)))
    assert isinstance(step, HandOver)
    last = b.fold(
        [
            b.an_accepted(brief=b.a_brief("paint")),
            b.a_start(),
            b.a_limit(LimitKind.WALL_CLOCK),
            b.a_context(),
            b.a_turn_start(1, last=True),
            b.a_proposal(1, THEIRS, tool="paint"),
            b.a_turn_end(),
        ]
    )
    assert isinstance(next_step(last), RefuseCalls)
    refuse(last, b.a_hand_over(THEIRS), "had no tools")


@pytest.mark.parametrize(
    ("events", "because"),
    [
        ((b.a_result(OURS), b.a_cancel()), "being cancelled"),
        ((b.a_result(THEIRS),), "theirs is finished"),
        ((b.a_hand_over(THEIRS),), "theirs is handed_over"),
    ],
)
def test_what_is_settled_or_cancelled_is_not_handed_over(events: tuple[RunEvent, ...], because: str) -> None:
    refuse(a_run(*events), b.a_hand_over(THEIRS), because)


def test_our_own_calls_are_never_handed_over() -> None:
    refuse(a_run(), b.a_hand_over(OURS), "not of a client tool")


def test_what_comes_along_comes_before_the_run_starts() -> None:
    accepted = b.fold([b.an_accepted(), b.a_given("One."), b.a_given("Two.")])
    assert (accepted.run_seq, accepted.status) == (3, RunStatus.ACCEPTED)
    refuse(evolve(accepted, b.a_start()), b.a_given(), "before the run's own message")


@pytest.mark.parametrize(
    ("most_tokens", "stop", "malformed", "ends"),
    [
        (16, StopReason.LENGTH, "half", True),
        (None, StopReason.LENGTH, "half", False),
        (16, StopReason.CALLS, "half", False),
    ],
)
def test_a_call_that_the_callers_own_bound_cut_off_ends_the_run(
    most_tokens: int | None, stop: StopReason, malformed: str, ends: bool
) -> None:
    """Else it would be asked for, and paid for, again and again."""
    state = b.fold(
        [
            b.an_accepted(brief=b.a_brief("paint", most_tokens=most_tokens)),
            b.a_start(),
            b.a_context(),
            b.a_turn_start(),
            b.a_proposal(1, THEIRS, tool="paint", malformed=malformed),
            b.a_turn_end(stop=stop),
        ]
    )
    assert calls_of(next_step(state)) == [THEIRS]
    settled = evolve(state, b.a_result(THEIRS))
    assert isinstance(next_step(settled), Finish) is ends
    if ends:
        assert evolve(settled, b.a_completion()).status is RunStatus.DONE
