"""Labels: where a text came from."""

from hypothesis import given
from hypothesis import strategies as st

from palyra.core.labels import OTHER, OWNER, TOOL, WEB, join

groups = st.lists(st.lists(st.sampled_from((OWNER, TOOL, OTHER, WEB))).map(tuple))


def test_the_most_trusted_comes_first() -> None:
    assert join((WEB,), (OTHER, TOOL), (OWNER,)) == (OWNER, TOOL, OTHER, WEB)


def test_a_label_is_named_once() -> None:
    assert join((TOOL, TOOL), (TOOL,)) == (TOOL,)


def test_nothing_joined_is_nothing() -> None:
    assert join() == ()
    assert join((), ()) == ()


@given(groups)
def test_no_label_is_lost_and_none_is_made_up(given_groups: list[tuple[str, ...]]) -> None:
    assert set(join(*given_groups)) == {label for group in given_groups for label in group}


@given(groups)
def test_joining_again_changes_nothing(given_groups: list[tuple[str, ...]]) -> None:
    once = join(*given_groups)
    assert join(once, *given_groups) == once


def test_a_label_that_is_not_known_is_kept_as_the_least_trusted() -> None:
    assert join(("mail",), (OWNER, WEB)) == (OWNER, WEB, "mail")
