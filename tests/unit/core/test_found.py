"""What searches have brought: kept in its order, within bounds, and read back from a tape."""

from hypothesis import given
from hypothesis import strategies as st

from palyra.core.events import ModelTurnStarted, TapeEvent, ToolFinished
from palyra.core.found import MOST, carried, join
from palyra.core.ids import CallId
from palyra.core.tool import Outcome
from tests.support.builders import AT

names = st.lists(st.integers(0, 60).map(lambda number: f"tool.{number}"), max_size=MOST, unique=True).map(tuple)


def turn(*found: str) -> TapeEvent:
    return ModelTurnStarted(at=AT, turn=1, provider="p", model="m", found=found)


def finished(*found: str) -> TapeEvent:
    return ToolFinished(at=AT, call_id=CallId("c"), outcome=Outcome.OK, text="", found=found)


@given(names, names)
def test_the_latest_are_all_there_and_the_rest_keeps_its_order(known: tuple[str, ...], more: tuple[str, ...]) -> None:
    both = join(known, more)
    assert len(both) == len(set(both)) <= MOST
    assert set(more) <= set(both) <= {*known, *more}
    stayed = [name for name in known if name in both]
    assert list(both)[: len(stayed)] == stayed
    assert join(both, more) == both


def test_the_oldest_goes_first() -> None:
    full = tuple(f"tool.{number}" for number in range(MOST))
    assert join(full, ("new",)) == (*full[1:], "new")
    assert join(full, ("tool.0", "new")) == (full[0], *full[2:], "new")


def test_a_session_is_read_back_to_the_last_turn_that_names_any() -> None:
    assert carried([]) == ()
    assert carried([turn(), finished(), turn()]) == ()
    assert carried([finished("c"), turn("a", "b"), finished("z"), turn("y")]) == ("a", "b", "c")
    # Turns in between may have named none: nothing was to be searched then.
    assert carried([turn(), finished("c"), turn(), finished("b"), turn("a")]) == ("a", "b", "c")
