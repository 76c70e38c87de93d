"""Which events are messages, and in which words."""

import pytest

from palyra.core.events import ApprovalDecision, RunEvent
from palyra.core.ids import CallId
from palyra.core.model.prompt import Message, Role
from palyra.core.projection.transcript import message_of_event
from palyra.core.tool import CallOutcome, Verdict
from tests.support.builders import (
    a_cancel,
    a_cancellation,
    a_child,
    a_child_end,
    a_completion,
    a_context,
    a_failure,
    a_limit,
    a_proposal,
    a_question,
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
    an_accepted,
    an_answer,
)

C1 = CallId("c1")


def test_an_input_is_what_the_person_said() -> None:
    assert message_of_event(a_run(), an_accepted()) == Message(role=Role.USER, text="Hello.")
    assert message_of_event(a_run(), a_steer("And then?")) == Message(role=Role.USER, text="And then?")


def test_a_turn_is_one_message_of_all_its_text_and_its_calls() -> None:
    pieces: list[RunEvent] = [a_text(1, "One, "), a_text(1, "two."), a_proposal(1, "c1"), a_proposal(1, "c2")]
    state = a_run(a_context(), a_turn_start(1), *pieces, a_turn_end(1))
    message = message_of_event(state, a_turn_end(1))
    assert message is not None
    assert (message.role, message.text) == (Role.ASSISTANT, "One, two.")
    assert [call.call_id for call in message.calls] == ["c1", "c2"]


def test_a_result_answers_its_call() -> None:
    state = a_run(*a_turn(1, "c1"), a_verdict("c1"), a_tool_start("c1"), a_result("c1"))
    assert message_of_event(state, a_result("c1")) == Message(role=Role.TOOL, text="so it went", call_id=C1)
    assert message_of_event(state, a_child_end("c1")) == Message(role=Role.TOOL, text="Here it is.", call_id=C1)


@pytest.mark.parametrize("outcome", [outcome for outcome in CallOutcome if outcome is not CallOutcome.OK])
def test_a_result_that_is_not_good_says_so_first(outcome: CallOutcome) -> None:
    message = message_of_event(a_run(), a_result("c1", outcome))
    assert message == Message(role=Role.TOOL, text=f"[{outcome.value}] so it went", call_id=C1)


def test_a_denial_answers_its_call_with_the_reason() -> None:
    denied = message_of_event(a_run(), a_verdict("c1", Verdict.DENY))
    assert denied == Message(role=Role.TOOL, text="[denied] so says the policy", call_id=C1)


@pytest.mark.parametrize(
    "decision", [decision for decision in ApprovalDecision if decision is not ApprovalDecision.ALLOWED]
)
def test_a_question_that_was_not_allowed_answers_its_call(decision: ApprovalDecision) -> None:
    message = message_of_event(a_run(), an_answer("c1", decision))
    assert message == Message(role=Role.TOOL, text=f"[denied] {decision.value}", call_id=C1)


@pytest.mark.parametrize(
    "event",
    [
        a_start(),
        a_resume(),
        a_context(),
        a_turn_start(),
        a_text(),
        a_proposal(1, "c1"),
        a_void(),
        a_verdict("c1", Verdict.ALLOW),
        a_verdict("c1", Verdict.ASK),
        a_question("c1"),
        an_answer("c1", ApprovalDecision.ALLOWED),
        a_tool_start("c1"),
        a_child("c1"),
        a_limit(),
        a_cancel(),
        a_completion(),
        a_failure(),
        a_cancellation(),
    ],
    ids=lambda event: type(event).__name__,
)
def test_all_other_events_are_no_messages(event: RunEvent) -> None:
    assert message_of_event(a_run(), event) is None
