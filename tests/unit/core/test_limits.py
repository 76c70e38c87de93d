"""How far a run may go."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.limits import LimitKind, Limits

left = st.integers(-5, 100)


def test_the_defaults_are_those_of_the_handbook() -> None:
    limits = Limits()
    assert (limits.model_turns, limits.tool_calls) == (24, 32)
    assert (limits.wall_clock_ms, limits.last_turn_timeout_ms, limits.tool_timeout_ms) == (900_000, 60_000, 30_000)
    assert (limits.max_depth, limits.max_children) == (3, 8)


def test_the_stored_names_of_the_kinds_never_change() -> None:
    assert [kind.value for kind in LimitKind] == ["model_turns", "tool_calls", "wall_clock", "repeated_failure"]


def test_a_child_gets_what_its_parent_has_left() -> None:
    assert Limits().within(model_turns=5, tool_calls=6, wall_clock_ms=7) == Limits(
        model_turns=5, tool_calls=6, wall_clock_ms=7
    )


def test_a_child_gets_no_more_than_its_own_limits() -> None:
    own = Limits(
        model_turns=1,
        tool_calls=2,
        wall_clock_ms=3,
        last_turn_timeout_ms=4,
        tool_timeout_ms=5,
        max_depth=6,
        max_children=7,
    )
    assert own.within(model_turns=100, tool_calls=100, wall_clock_ms=100) == own


@given(left, left, left)
def test_a_child_can_always_answer_and_never_calls_more_tools_than_are_left(turns: int, calls: int, ms: int) -> None:
    limits = Limits().within(model_turns=turns, tool_calls=calls, wall_clock_ms=ms)
    assert 1 <= limits.model_turns <= max(1, turns)
    assert 0 <= limits.tool_calls <= max(0, calls)
    assert 1 <= limits.wall_clock_ms <= max(1, ms)


def test_a_limit_that_a_later_version_wrote_is_passed_over() -> None:
    assert msgspec.json.decode(b'{"model_turns": 3, "moon_phases": 1}', type=Limits).model_turns == 3


def test_limits_are_stored_in_full_so_that_later_defaults_do_not_change_old_runs() -> None:
    assert msgspec.json.decode(msgspec.json.encode(Limits())) == {
        "model_turns": 24,
        "tool_calls": 32,
        "wall_clock_ms": 900_000,
        "last_turn_timeout_ms": 60_000,
        "tool_timeout_ms": 30_000,
        "max_depth": 3,
        "max_children": 8,
    }
