"""Answers told from a tape."""

import pytest

from palyra.core.events import Entry, RunEvent, encode, kind_of
from palyra.gateway.http.openai.run_answer import (
    AnswerDelta,
    AnswerEnded,
    AttemptDiscardedPiece,
    Piece,
    ReasoningPiece,
    RunAnswer,
    discarded_turns,
)
from tests.support import builders as b


def entries(*events: RunEvent) -> list[Entry]:
    return [
        Entry(b.SESSION, number, b.RUN, number, kind_of(event), 0, encode(event))
        for number, event in enumerate(events, start=1)
    ]


def told(*events: RunEvent, void: frozenset[int] = frozenset()) -> tuple[RunAnswer, list[Piece]]:
    telling = RunAnswer(void=void)
    return telling, [piece for entry in entries(*events) for piece in telling.take(entry)]


def test_turns_are_told_with_an_empty_line_between_them() -> None:
    telling, pieces = told(
        *b.a_turn(1, "c1", text="One."), *b.a_turn(2, "c2", text=""), *b.a_turn(3, text="Two."), b.a_completion()
    )
    assert pieces == [AnswerDelta("One."), AnswerDelta("\n\nTwo."), AnswerEnded()]
    assert telling.text == "One.\n\nTwo."


def test_thoughts_are_told_apart() -> None:
    telling, pieces = told(b.a_context(), b.a_turn_start(), b.a_thought(text="Hm."), b.a_text(text="Yes."))
    assert pieces == [ReasoningPiece("Hm."), AnswerDelta("Yes.")]
    assert (telling.thoughts, telling.text) == ("Hm.", "Yes.")


@pytest.mark.parametrize("end", [b.a_void(), b.a_resume()])
def test_what_was_told_of_a_turn_that_does_not_count_is_torn(end: RunEvent) -> None:
    telling, pieces = told(b.a_turn_start(), b.a_text(text="Half an"), end, *b.a_turn(2, text="Whole."))
    assert [type(piece) for piece in pieces] == [AnswerDelta, AttemptDiscardedPiece, AnswerDelta]
    assert telling.text == "Whole."


@pytest.mark.parametrize("end", [b.a_void(), b.a_resume()])
@pytest.mark.parametrize("piece", [b.a_text(text="an answer"), b.a_thought(text="a thought")])
def test_the_rest_of_a_turn_is_torn_too_for_who_joined_in_its_middle(piece: RunEvent, end: RunEvent) -> None:
    telling, pieces = told(piece, end, *b.a_turn(2, text="Whole."))
    assert [type(piece) for piece in pieces][1:] == [AttemptDiscardedPiece, AnswerDelta]
    assert (telling.text, telling.thoughts) == ("Whole.", "")


@pytest.mark.parametrize("end", [b.a_void(), b.a_resume()])
def test_a_turn_of_which_nothing_was_told_leaves_no_trace(end: RunEvent) -> None:
    _, pieces = told(b.a_turn_start(), end, *b.a_turn(2, text="Whole."))
    assert pieces == [AnswerDelta("Whole.")]


def test_a_resume_between_turns_tears_nothing() -> None:
    _, pieces = told(*b.a_turn(1, "c1", text="One."), b.a_verdict("c1"), b.a_tool_start("c1"), b.a_resume())
    assert pieces == [AnswerDelta("One.")]


def test_who_comes_again_is_not_told_of_what_does_not_count() -> None:
    story = (b.a_turn_start(), b.a_text(text="Half an"), b.a_void(), *b.a_turn(2, text="Whole."))
    void = discarded_turns(entries(*story))
    assert void == {1}
    assert told(*story, void=void)[1] == [AnswerDelta("Whole.")]


def test_only_calls_that_were_handed_over_are_the_callers() -> None:
    telling, _ = told(*b.a_turn(1, "c1", "c2"), b.a_result("c1"), b.a_hand_over("c2"), b.a_completion())
    assert [call.call_id for call in telling.calls] == ["c2"]


def test_questions_are_known_until_they_are_answered() -> None:
    telling, _ = told(*b.a_turn(1, "c1"), b.a_question("c1"))
    assert telling.asked == {"a1"}
    telling, _ = told(*b.a_turn(1, "c1"), b.a_question("c1"), b.an_answer("c1"))
    assert not telling.asked
