"""The error family."""

from datetime import timedelta

import pytest

from palyra.core.errors import Conflict, Denied, Internal, Invalid, NotFound, PalyraError, Unavailable

FAMILIES = {
    "invalid": Invalid,
    "not_found": NotFound,
    "conflict": Conflict,
    "denied": Denied,
    "unavailable": Unavailable,
    "internal": Internal,
}


class TeapotTooSmall(Invalid):
    """The teapot
    is too small."""


class Unexplained(Internal):
    pass


@pytest.mark.parametrize(("code", "family"), FAMILIES.items())
def test_the_families_have_these_codes(code: str, family: type[PalyraError]) -> None:
    assert family.code == code
    assert issubclass(family, PalyraError)


def test_the_code_is_the_class_name_in_snake_case() -> None:
    assert TeapotTooSmall.code == "teapot_too_small"
    assert TeapotTooSmall("no").code == "teapot_too_small"


def test_the_docstring_is_the_default_message_on_one_line() -> None:
    assert TeapotTooSmall().detail == "The teapot is too small."


def test_a_detail_takes_the_place_of_the_docstring() -> None:
    error = TeapotTooSmall("It holds 0.2 l.")
    assert error.detail == "It holds 0.2 l."
    assert str(error) == "It holds 0.2 l."


def test_an_empty_detail_is_none() -> None:
    assert TeapotTooSmall("").detail == "The teapot is too small."


def test_an_error_without_a_docstring_still_has_its_family_and_code() -> None:
    assert Unexplained.code == "unexplained"
    assert str(Unexplained("why")) == "why"


def test_what_is_unavailable_says_when_to_come_back() -> None:
    assert Unavailable().retry_after == timedelta(seconds=1)
    later = Unavailable("Busy.", retry_after=timedelta(minutes=5))
    assert (later.detail, later.retry_after) == ("Busy.", timedelta(minutes=5))
