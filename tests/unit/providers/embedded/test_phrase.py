"""Polite and punctuated words become plain ones, and remember what they were."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.providers.embedded.phrase import readings


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ("Could you please show me the contents of “My notes.txt”?", "show contents of @q"),
        ("Hey Palyra, what's in docs/plan.md?", "what is in @p"),
        ("read https://example.com", "read @u"),
        ("list files (please)", "list files"),
        ("ls .", "ls @p"),
        ("is 3/4 a path?", "is 3/4 path"),
        ("send mail to bob@home", "send mail to bobathome"),
    ],
)
def test_a_request_is_found_among_polite_words(message: str, plain: str) -> None:
    assert plain in [phrase.text for phrase in readings(message)]


def test_a_name_is_taken_as_it_was_written() -> None:
    (phrase,) = readings("Find `The Big  Plan.txt` In My Files")
    found = re.fullmatch(r"find (?P<what>@q) in my (?P<where>files)", phrase.text)
    assert found is not None
    assert phrase.value(found, "what") == "The Big  Plan.txt"
    assert phrase.value(found, "where") == "Files"


def test_several_words_are_taken_with_all_that_stood_between_them() -> None:
    phrase = next(readings("search for The Cat, and the Hat!"))
    found = re.fullmatch(r"search for (?P<what>.+)", phrase.text)
    assert found is not None
    assert phrase.value(found, "what") == "Cat, and the Hat"


@pytest.mark.parametrize("message", ["", "   ", "list\nfiles", "word " * 200])
def test_what_can_be_no_plain_request_is_not_read(message: str) -> None:
    assert list(readings(message)) == []


@given(st.text(max_size=400))
def test_reading_always_ends(message: str) -> None:
    assert len(list(readings(message))) <= len(message) ** 2 + 1
