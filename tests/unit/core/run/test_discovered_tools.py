"""What searches have brought: kept in its order, within bounds, and read back from a tape."""

from hypothesis import given
from hypothesis import strategies as st

from palyra.core.events import ModelTurnStarted, TapeEvent, ToolFinished
from palyra.core.ids import CallId
from palyra.core.run.discovered_tools import MAX_DISCOVERED_TOOLS, discovered_before, join_tools
from palyra.core.tool import CallOutcome
from tests.support.builders import AT

names = st.lists(
    st.integers(0, 60).map(lambda number: f"tool.{number}"), max_size=MAX_DISCOVERED_TOOLS, unique=True
).map(tuple)


def turn(*found: str) -> TapeEvent:
    return ModelTurnStarted(at=AT, turn=1, provider="p", model="m", discovered_tools=found)


def finished(*found: str) -> TapeEvent:
    return ToolFinished(at=AT, call_id=CallId("c"), outcome=CallOutcome.OK, text="", discovered_tools=found)


@given(names, names)
def test_the_latest_are_all_there_and_the_rest_keeps_its_order(known: tuple[str, ...], more: tuple[str, ...]) -> None:
    both = join_tools(known, more)
    assert len(both) == len(set(both)) <= MAX_DISCOVERED_TOOLS
    assert set(more) <= set(both) <= {*known, *more}
    stayed = [name for name in known if name in both]
    assert list(both)[: len(stayed)] == stayed
    assert join_tools(both, more) == both


def test_the_oldest_goes_first() -> None:
    full = tuple(f"tool.{number}" for number in range(MAX_DISCOVERED_TOOLS))
    assert join_tools(full, ("new",)) == (*full[1:], "new")
    assert join_tools(full, ("tool.0", "new")) == (full[0], *full[2:], "new")


def test_a_session_is_read_back_to_the_last_turn_that_names_any() -> None:
    assert discovered_before([]) == ()
    assert discovered_before([turn(), finished(), turn()]) == ()
    assert discovered_before([finished("c"), turn("a", "b"), finished("z"), turn("y")]) == ("a", "b", "c")
    # Turns in between may have named none: nothing was to be searched then.
    assert discovered_before([turn(), finished("c"), turn(), finished("b"), turn("a")]) == ("a", "b", "c")
