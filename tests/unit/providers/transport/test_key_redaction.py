"""A key that was sent is kept out of whatever comes back, however it is cut, and nothing else waits for it."""

import pytest

from palyra.core.model.prompt import CallProposed, ModelEvent, ReasoningDelta, StopReason, TextDelta, TurnDone
from palyra.core.spending.usage import Usage
from palyra.providers.transport.key_redaction import KeyRedactor

KEY = "sk-proj-0123456789abcdefghij"
DONE = TurnDone(stop=StopReason.END, usage=Usage(input_tokens=1, output_tokens=1))


@pytest.fixture
def hidden() -> KeyRedactor:
    hidden = KeyRedactor()
    hidden.add(KEY, "env:KEY")
    return hidden


def shown(hidden: KeyRedactor, *events: ModelEvent) -> list[ModelEvent]:
    return [seen for event in events for seen in hidden.out_of_event(event)]


def text_of(events: list[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@pytest.mark.parametrize("place", range(1, len(KEY)))
def test_it_does_not_matter_where_it_is_cut(hidden: KeyRedactor, place: int) -> None:
    seen = shown(hidden, TextDelta(f"It is {KEY[:place]}"), TextDelta(f"{KEY[place:]}!"), DONE)
    assert text_of(seen) == "It is [redacted]!"


def test_what_can_be_no_key_does_not_wait(hidden: KeyRedactor) -> None:
    for text in ("All is well. ", "Ask", "sky", "a disk-", "sk-prod"):
        assert text_of(shown(hidden, TextDelta(text + "."))) == text + "."


def test_what_began_like_a_key_and_was_none_is_said(hidden: KeyRedactor) -> None:
    seen = shown(
        hidden, TextDelta("This is"), TextDelta(" it: sk-proj-"), TextDelta("0 and sk"), TextDelta("ies"), DONE
    )
    assert text_of(seen) == "This is it: sk-proj-0 and skies"


def test_the_end_of_an_answer_is_said_before_its_end(hidden: KeyRedactor) -> None:
    assert shown(hidden, TextDelta("the"), TextDelta("s"), DONE) == [TextDelta("the"), TextDelta("s"), DONE]


def test_a_key_that_is_broken_off_is_not_shown_but_for_a_few_letters(hidden: KeyRedactor) -> None:
    assert text_of(shown(hidden, TextDelta(f"It is {KEY[:-1]}"), DONE)) == "It is [redacted]"
    assert text_of(shown(hidden, TextDelta("It is sk-"), DONE)) == "It is sk-"


def test_a_thought_is_no_part_of_what_is_said(hidden: KeyRedactor) -> None:
    events: list[ModelEvent] = [
        ReasoningDelta(f"I saw {KEY[:9]}"),
        ReasoningDelta(KEY[9:]),
        TextDelta("a s"),
        ReasoningDelta("k-"),
    ]
    assert shown(hidden, *events, DONE) == [
        ReasoningDelta("I saw "),
        ReasoningDelta("[redacted]"),
        TextDelta("a "),
        TextDelta("s"),
        ReasoningDelta("k-"),
        DONE,
    ]


def test_a_thought_that_ends_has_all_of_it(hidden: KeyRedactor) -> None:
    ended = ReasoningDelta("s", "anthropic", {"signature": f"x{KEY}", "n": 1})
    assert shown(hidden, ReasoningDelta("It i"), ended) == [
        ReasoningDelta("It i"),
        ReasoningDelta("s", "anthropic", {"signature": "x[redacted]", "n": 1}),
    ]


def test_a_call_has_no_key_in_its_arguments(hidden: KeyRedactor) -> None:
    call = CallProposed(call_id="1", tool="http.fetch", arguments={"url": f"https://x.y/?k={KEY}", "more": [{KEY: 1}]})
    (seen,) = shown(hidden, call)
    assert isinstance(seen, CallProposed)
    assert seen.arguments == {"url": "https://x.y/?k=[redacted]", "more": [{"[redacted]": 1}]}


def test_a_call_has_no_key_in_its_name(hidden: KeyRedactor) -> None:
    (seen,) = shown(hidden, CallProposed(call_id="1", tool=f"a{KEY}", arguments={}))
    assert isinstance(seen, CallProposed)
    assert seen.tool == "a[redacted]"


def test_without_a_key_nothing_is_touched() -> None:
    event = TextDelta("sk-proj-")
    assert shown(KeyRedactor(), event) == [event]
