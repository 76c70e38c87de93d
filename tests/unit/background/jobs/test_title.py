"""The title of a session is the first thing that was said, cut short."""

import pytest

from palyra.background.jobs.title import TITLE_CHARS, title_of


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Hello", "Hello"),
        ("Where is the milk? I need it.", "Where is the milk?"),
        ("Stop! Now.", "Stop!"),
        ("Version 3.11 is out", "Version 3.11 is out"),
        ("  Two\n\nlines\tand tabs  ", "Two lines and tabs"),
        ("Wo ist die Milch? Im Kühlschrank.", "Wo ist die Milch?"),
        ("牛奶在哪里?", "牛奶在哪里?"),
    ],
)
def test_it_is_the_first_sentence_in_one_line(text: str, title: str) -> None:
    assert title_of(text) == title


def test_a_long_sentence_is_cut_at_a_word() -> None:
    title = title_of("Please tell me all that you know about the history of the city of Lisbon and its seven hills")
    assert title == "Please tell me all that you know about the history of the…"
    assert len(title) <= TITLE_CHARS + 1


def test_no_comma_is_left_before_the_cut() -> None:
    title = title_of("bread, butter, cheese, eggs, flour, honey, jam, ketchup, lentils, milk, noodles")
    assert title == "bread, butter, cheese, eggs, flour, honey, jam, ketchup…"


def test_a_word_that_is_longer_than_a_title_is_cut_in_the_middle() -> None:
    assert title_of("x" * 100) == "x" * TITLE_CHARS + "…"
    assert title_of("a " + "x" * 100) == ("a " + "x" * 100)[:TITLE_CHARS] + "…"


def test_a_text_of_exactly_the_length_is_left_as_it_is() -> None:
    assert title_of("x" * TITLE_CHARS) == "x" * TITLE_CHARS
