"""Text in pieces as rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.cli.terminal import wrapping
from palyra.cli.terminal.output import width_of
from palyra.cli.terminal.wrapping import LineWrapper, hang, wrap


def test_rows_break_between_words() -> None:
    assert wrap("the quick brown fox", 10) == ["the quick", "brown fox"]


def test_further_rows_stand_as_far_in_as_the_first() -> None:
    assert wrap("    the quick brown fox", 14) == ["    the quick", "    brown fox"]


def test_a_word_too_long_for_a_row_stays_whole() -> None:
    assert wrap("see https://example.org/a/long/address now", 12) == [
        "see",
        "https://example.org/a/long/address",
        "now",
    ]


def test_wide_characters_count_twice() -> None:
    assert wrap("日本 日本 日本", 9) == ["日本 日本", "日本"]


def test_the_last_row_grows() -> None:
    flow = LineWrapper()
    assert flow.feed("The qui", width=10) == []
    assert flow.partial == "The qui"
    assert flow.feed("ck brown\nfox", width=10) == ["The quick", "brown"]
    assert flow.partial == "fox"
    assert flow.finish() == ["fox"]
    assert flow.partial == ""


def test_a_line_end_in_two_pieces_is_one() -> None:
    flow = LineWrapper()
    assert flow.feed("one\r", width=10) == []
    assert flow.feed("\ntwo", width=10) == ["one"]


def test_controls_are_made_visible() -> None:
    flow = LineWrapper()
    flow.feed("a\x1b[31mb", width=40)
    assert flow.partial == "a⟨ESC⟩[31mb"


@given(st.lists(st.text("ab c\n", max_size=20)), st.integers(5, 30))
def test_no_word_is_lost_however_the_text_is_cut(pieces: list[str], width: int) -> None:
    flow = LineWrapper()
    rows = [row for piece in pieces for row in flow.feed(piece, width=width)] + flow.finish()
    assert " ".join(rows).split() == "".join(pieces).split()
    assert all(width_of(row) <= width or " " not in row.strip() for row in rows)


def test_a_hanging_text_goes_on_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapping, "screen_width", lambda: 30)
    assert hang("one two three four five six", indent=10) == "one two three four\n          five six"
    assert hang("short", indent=10) == "short"
