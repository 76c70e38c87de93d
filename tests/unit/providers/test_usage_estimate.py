"""Tokens are guessed where nobody counts them."""

from palyra.providers.usage_estimate import estimate
from tests.unit.providers.conversation import a_call, a_prompt, assistant


def test_prompt_and_answer_both_count() -> None:
    usage = estimate(a_prompt("a" * 40), "b" * 8)
    assert (usage.input_tokens, usage.output_tokens) == (10, 2)


def test_earlier_calls_count_as_part_of_the_prompt() -> None:
    call = a_call("files.read", {"path": "x" * 100})
    assert estimate(a_prompt("a", assistant(calls=(call,))), "").input_tokens > 25
