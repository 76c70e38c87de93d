"""Labels: where a text came from."""

from hypothesis import given
from hypothesis import strategies as st

from palyra.core.policy.labels import OTHER, OWNER, TOOL, UNKNOWN, WEB, join, least_trusted, mixed_label, rank, reaches

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


def test_what_has_no_label_is_trusted_least() -> None:
    assert least_trusted(()) == UNKNOWN
    assert rank(least_trusted(())) > rank(WEB)
    assert mixed_label((OWNER,), ()) == (OWNER, UNKNOWN)
    assert mixed_label((OWNER,), (TOOL,)) == (OWNER, TOOL)


@given(st.sampled_from((OWNER, TOOL, OTHER, WEB)), st.sampled_from((OWNER, TOOL, OTHER, WEB)))
def test_what_was_allowed_up_to_a_label_covers_all_that_is_trusted_as_much(highest: str, label: str) -> None:
    assert reaches(highest, label) is (rank(label) <= rank(highest))


def test_what_was_allowed_for_an_unknown_source_covers_no_other() -> None:
    assert reaches("mail", "mail")
    assert not any(reaches("mail", label) for label in (OWNER, TOOL, OTHER, WEB, UNKNOWN, ""))
    assert not any(reaches(label, UNKNOWN) for label in (OWNER, TOOL, OTHER, WEB))
