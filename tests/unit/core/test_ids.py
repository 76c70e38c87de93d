"""ULIDs as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.ids import ALPHABET, IdInvalid, parse_ulid, time_of, ulid

EXAMPLE = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
LATEST_MS = 2**48 - 1

moments = st.integers(0, LATEST_MS)
random_bytes = st.binary(min_size=10, max_size=10)


@given(moments, random_bytes)
def test_a_new_id_is_canonical(at_ms: int, randomness: bytes) -> None:
    made = ulid(at_ms, randomness)
    assert parse_ulid(made) == made


@given(moments, random_bytes)
def test_an_id_knows_when_it_was_given(at_ms: int, randomness: bytes) -> None:
    assert time_of(ulid(at_ms, randomness)) == at_ms


@given(st.tuples(moments, random_bytes), st.tuples(moments, random_bytes))
def test_ids_sort_by_time_and_then_by_their_random_part(one: tuple[int, bytes], other: tuple[int, bytes]) -> None:
    assert (ulid(*one) < ulid(*other)) == (one < other)


def test_an_id_is_written_as_the_standard_says() -> None:
    assert ulid(0, bytes(10)) == "0" * 26
    assert ulid(LATEST_MS, b"\xff" * 10) == "7" + "Z" * 25
    assert ulid(1_469_918_176_385, bytes(10)) == "01ARYZ6S41" + "0" * 16


def test_only_ten_random_bytes_are_used() -> None:
    assert ulid(5, b"0123456789") == ulid(5, b"0123456789 and more")


def test_lower_case_is_read_as_upper_case() -> None:
    assert parse_ulid(EXAMPLE.lower()) == EXAMPLE


@pytest.mark.parametrize(
    "text",
    [
        "",
        EXAMPLE[:-1],
        EXAMPLE + "0",
        " " + EXAMPLE[1:],
        EXAMPLE[:-1] + "\n",
        "8" + EXAMPLE[1:],
        *(EXAMPLE[:-1] + letter for letter in "ILOU-_é\0"),
        "x" * 1_000_000,
    ],
    ids=lambda text: repr(text[:30]),
)
def test_garbage_is_no_id(text: str) -> None:
    with pytest.raises(IdInvalid):
        parse_ulid(text)


@pytest.mark.parametrize("text", ["0\u00df" + "0" * 23, "0\u017f" + "0" * 24])
def test_letters_that_only_look_like_an_id_in_upper_case_are_no_id(text: str) -> None:
    with pytest.raises(IdInvalid):
        parse_ulid(text)


@given(st.text(max_size=40))
def test_whatever_is_read_is_canonical_or_refused(text: str) -> None:
    try:
        read = parse_ulid(text)
    except IdInvalid:
        return
    assert len(read) == 26
    assert set(read) <= set(ALPHABET)


def test_the_message_says_what_was_given_what_it_was_for_and_what_an_id_looks_like() -> None:
    with pytest.raises(IdInvalid) as refused:
        parse_ulid("nonsense", "run id")
    assert refused.value.detail == (
        "'nonsense' is not a valid run id. An id has 26 characters, as in 01ARZ3NDEKTSV4RRFFQ69G5FAV."
    )


def test_the_message_is_short_even_if_the_text_is_not() -> None:
    with pytest.raises(IdInvalid, match=r"'x{40}…' is not a valid id") as refused:
        parse_ulid("x" * 1_000_000)
    assert len(refused.value.detail) < 200


def test_the_message_shows_control_characters_escaped() -> None:
    with pytest.raises(IdInvalid, match=r"^'\\x1b\[2J' is not a valid id"):
        parse_ulid("\x1b[2J")
