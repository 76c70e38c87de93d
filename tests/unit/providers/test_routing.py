"""The plan of a turn: who is asked, and why not the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.model.catalog import Capabilities, Complexity, TaskClass
from palyra.core.model.routing_plan import RoutingMode, RoutingPlan
from palyra.core.run.state import FailedAttempt
from palyra.providers.base import FailureKind
from palyra.providers.routing import (
    FINAL,
    NARROWINGS,
    RoutingOption,
    RoutingPreference,
    RoutingRequest,
    TurnNeeds,
    complexity_of,
    narrowings,
    pause_seconds,
    plan,
)

SMALL = RoutingOption("a/small", Capabilities(window_tokens=8_000, max_output_tokens=1_000))
LARGE = RoutingOption("b/large", Capabilities(window_tokens=200_000, max_output_tokens=8_000, vision=True))
MUTE = RoutingOption("c/mute", Capabilities(window_tokens=8_000, max_output_tokens=1_000, tools=False))
OPTIONS = {option.name: option for option in (SMALL, LARGE, MUTE)}


def choose(
    *names: str,
    need: TurnNeeds | None = None,
    failures: tuple[FailedAttempt, ...] = (),
    refused: dict[str, str] | None = None,
    rules: tuple[str, ...] = (),
    mode: RoutingMode = RoutingMode.SUGGEST,
    options: dict[str, RoutingOption] = OPTIONS,
) -> RoutingPlan:
    turn = RoutingRequest(need or TurnNeeds(), TaskClass.INTERACTIVE, Complexity.NORMAL, failures, refused)
    by_rules = RoutingPreference(rules, "rule 1") if rules else None
    return plan(turn, options, ordered=RoutingPreference(names, "the default"), by_rules=by_rules, mode=mode)


def failed(name: str, kind: FailureKind, times: int = 1, *, retry_ms: int = 0) -> tuple[FailedAttempt, ...]:
    return (FailedAttempt(name, kind.value, retry_ms),) * times


def passed(made: RoutingPlan) -> dict[str, str]:
    return {candidate.model: candidate.passed_over for candidate in made.candidates if candidate.passed_over}


def test_the_first_that_nothing_speaks_against_is_asked() -> None:
    made = choose("a/small", "b/large")
    assert (made.choice, made.reason, passed(made)) == ("a/small", "the default", {})


def test_pictures_go_to_who_understands_them() -> None:
    made = choose("a/small", "b/large", need=TurnNeeds(vision=True))
    assert made.choice == "b/large"
    assert passed(made) == {"a/small": "it does not support images"}
    assert "a/small: it does not support images" in made.reason
    assert made.needs == ("vision",)


def test_pictures_are_not_given_to_the_blind() -> None:
    made = choose("a/small", need=TurnNeeds(vision=True))
    assert made.choice == ""
    assert made.reason == "no model can be used: a/small: it does not support images"


def test_tools_go_to_who_calls_them_and_are_done_without_if_nobody_does() -> None:
    assert choose("c/mute", "a/small", need=TurnNeeds(tools=True)).choice == "a/small"
    assert choose("c/mute", need=TurnNeeds(tools=True)).choice == "c/mute"


def test_a_long_prompt_goes_to_who_has_the_room_for_it() -> None:
    assert choose("a/small", "b/large", need=TurnNeeds(context_tokens=9_000)).choice == "b/large"
    assert choose("a/small", need=TurnNeeds(context_tokens=9_000)).choice == "a/small"


@pytest.mark.parametrize("kind", sorted(FINAL))
def test_what_a_second_try_does_not_mend_is_not_tried_twice(kind: FailureKind) -> None:
    assert choose("a/small", "b/large", failures=failed("a/small", kind)).choice == "b/large"
    assert choose("a/small", failures=failed("a/small", kind)).choice == ""


@pytest.mark.parametrize(
    "kind",
    [
        FailureKind.NETWORK,
        FailureKind.TIMEOUT,
        FailureKind.UNAVAILABLE,
        FailureKind.MALFORMED,
        FailureKind.RATE_LIMIT,
    ],
)
def test_what_may_pass_is_tried_again_at_the_same_place_and_then_at_the_next(kind: FailureKind) -> None:
    assert choose("a/small", "b/large", failures=failed("a/small", kind, 2)).choice == "a/small"
    made = choose("a/small", "b/large", failures=failed("a/small", kind, 3))
    assert made.choice == "b/large"
    assert made.attempt == 4
    assert "(3 attempts)" in passed(made)["a/small"]


def test_a_request_that_is_turned_down_as_it_stands_is_not_sent_again() -> None:
    turned_down = (FailedAttempt("a/small", FailureKind.MALFORMED.value, refused=True),)
    made = choose("a/small", "b/large", failures=turned_down)
    assert (made.choice, passed(made)) == ("b/large", {"a/small": "it rejects the request as it is"})


def test_what_is_refused_for_its_content_is_carried_to_nobody_else() -> None:
    made = choose("a/small", "b/large", failures=failed("a/small", FailureKind.CONTENT_POLICY))
    assert made.choice == ""


def test_a_conversation_that_is_too_long_is_shortened_a_few_times_first() -> None:
    kind = FailureKind.CONTEXT_TOO_LONG
    assert choose("a/small", "b/large", failures=failed("a/small", kind, NARROWINGS)).choice == "a/small"
    assert choose("a/small", "b/large", failures=failed("a/small", kind, NARROWINGS + 1)).choice == "b/large"
    assert narrowings(failed("a/small", kind, 2), "a/small") == 2
    assert narrowings(failed("a/small", kind, 2), "b/large") == 0
    assert pause_seconds("a/small", failed("a/small", kind)) == 0


def test_who_asks_for_a_long_rest_gets_it_if_there_is_another() -> None:
    busy = failed("a/small", FailureKind.RATE_LIMIT, retry_ms=20_000)
    assert choose("a/small", "b/large", failures=busy).choice == "b/large"
    assert choose("a/small", failures=busy).choice == "a/small", "there is no other: it is waited for"
    weary = failed("a/small", FailureKind.RATE_LIMIT, retry_ms=600_000)
    made = choose("a/small", failures=weary)
    assert made.choice == ""
    assert "asks to wait 600 s" in made.reason


def test_pauses_grow_and_are_never_shorter_than_what_is_asked_for() -> None:
    kind = FailureKind.UNAVAILABLE
    assert [pause_seconds("a/small", failed("a/small", kind, times)) for times in (0, 1, 2, 3)] == [0, 0.5, 1.0, 2.0]
    assert pause_seconds("a/small", failed("a/small", kind, retry_ms=3_000)) == 3.0
    assert pause_seconds("b/large", failed("a/small", kind, 3)) == 0


def test_who_has_failed_others_too_often_is_left_alone() -> None:
    unavailable = OPTIONS | {"a/small": RoutingOption("a/small", SMALL.capabilities, retry_in_seconds=12.0)}
    made = choose("a/small", "b/large", options=unavailable)
    assert made.choice == "b/large"
    assert "not used for 12 s" in passed(made)["a/small"]


def test_who_is_left_alone_is_asked_once_if_nobody_else_is_there() -> None:
    unavailable = {"a/small": RoutingOption("a/small", SMALL.capabilities, retry_in_seconds=12.0)}
    assert choose("a/small", options=unavailable).choice == "a/small"
    made = choose("a/small", options=unavailable, failures=failed("a/small", FailureKind.NETWORK))
    assert (made.choice, passed(made)) == ("", {"a/small": "it could not be reached (1 attempt)"})


def test_what_a_budget_does_not_allow_is_not_asked_and_the_plan_says_so() -> None:
    made = choose("b/large", "a/small", refused={"b/large": "the budget daily is used up"})
    assert made.choice == "a/small"
    assert made.budget == "the budget daily is used up"


def test_rules_that_suggest_change_nothing_but_the_plan() -> None:
    made = choose("a/small", rules=("b/large",))
    assert (made.choice, made.recommended) == ("a/small", "b/large")


def test_rules_that_are_enforced_choose() -> None:
    made = choose("a/small", rules=("b/large",), mode=RoutingMode.ENFORCE)
    assert (made.choice, made.reason, made.recommended) == ("b/large", "rule 1", "")
    down = failed("b/large", FailureKind.QUOTA)
    made = choose("a/small", rules=("b/large",), mode=RoutingMode.ENFORCE, failures=down)
    assert (made.choice, made.reason) == ("a/small", "the default; b/large: its quota is used up")


def test_complexity_is_guessed_from_what_was_said_and_how_long_it_goes_on() -> None:
    assert complexity_of(turns=0, input_chars=20, has_code=False) is Complexity.SIMPLE
    assert complexity_of(turns=2, input_chars=20, has_code=False) is Complexity.NORMAL
    assert complexity_of(turns=0, input_chars=500, has_code=True) is Complexity.HARD
    assert complexity_of(turns=6, input_chars=20, has_code=False) is Complexity.HARD


NAMES = sorted(OPTIONS)
FAILURES = st.builds(
    FailedAttempt,
    st.sampled_from(NAMES),
    st.sampled_from([kind.value for kind in FailureKind]),
    st.integers(0, 700_000),
)


@given(st.permutations(NAMES), st.lists(FAILURES, max_size=20), st.booleans(), st.booleans())
def test_every_turn_comes_to_its_end(names: list[str], before: list[FailedAttempt], tools: bool, vision: bool) -> None:
    """However a turn fails, it is tried a bounded number of times."""
    failures = tuple(before)
    for _ in range(40):
        made = choose(*names, need=TurnNeeds(tools=tools, vision=vision), failures=failures)
        if not made.choice:
            return
        assert not passed(made).get(made.choice)
        failures = (*failures, FailedAttempt(made.choice, FailureKind.NETWORK.value))
    raise AssertionError("the turn would be tried for ever")
