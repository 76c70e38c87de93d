"""Words of others are shown without what could steer a terminal."""

from hypothesis import given
from hypothesis import strategies as st

from palyra.providers.embedded.quoting import printable, quote


def test_escape_sequences_lose_their_power() -> None:
    assert printable("a\x1b[31mred\x07\tb\nc") == "a[31mred\tb\nc"


def test_the_direction_of_writing_can_not_be_turned() -> None:
    assert printable("exe.\u202etxt") == "exe.txt"


def test_a_quote_is_one_line_and_not_long() -> None:
    assert quote("a\n b\t c") == "a b c"
    assert quote("x" * 1000) == "x" * 300 + "…"


@given(st.text())
def test_nothing_unprintable_is_ever_quoted(text: str) -> None:
    assert all(char == " " or char.isprintable() or not char.isascii() for char in quote(text))
