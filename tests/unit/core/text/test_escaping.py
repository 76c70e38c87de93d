"""Text of others is shown whole, and nothing in it passes for something else."""

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from palyra.core.text import escaping
from palyra.core.text.escaping import MARGIN, escape, escape_line, escape_start, printable, printable_row, quote

NAMES = {"NUL": "\0", "BEL": "\a", "BS": "\b", "TAB": "\t", "LF": "\n", "CR": "\r", "ESC": "\x1b", "DEL": "\x7f"}
HARMFUL = [
    "\r",
    "\x1b[2J",
    "\x9b31m",
    "\x85",
    "\u2028",
    "\u2029",
    "\x0b",
    "\x0c",
    "\x1c\x1d\x1e\x1f",
    "\u202e",
    "\u2066",
    "\u200e\u200f\u061c",
    "\u200b\u2060\ufeff",
    "\U000e0041\U000e007f",
    "\ud800",
    "\x7f",
    "\0",
]
LONG = "a" * 99 + "\n" + "b" * 50


def original(shown: str) -> str:
    """Return the text that an exact one shows."""

    def letter(match: re.Match[str]) -> str:
        return NAMES[match[1]] if match[1] in NAMES else chr(int(match[1].removeprefix("U+"), 16))

    return re.sub("⟨([^⟩]*)⟩", letter, shown)


@given(st.text(st.characters()))
@example("⟨CR⟩ and \r")
@example("".join(HARMFUL))
def test_a_text_can_be_told_from_what_is_shown_of_it(text: str) -> None:
    assert original(escape(text)) == text
    assert original(escape_line(text)) == text
    assert original("\n".join(line.removeprefix(MARGIN) for line in quote(text).split("\n"))) == text


@given(st.text(st.characters()))
@example("".join(HARMFUL))
def test_nothing_but_its_own_line_feeds_breaks_a_text(text: str) -> None:
    for shown in (escape(text), printable(text), quote(text)):
        assert shown.count("\n") == text.count("\n")
        assert len(shown.splitlines()) <= text.count("\n") + 1
        assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c not in "\n\t"]
    for shown in (escape_line(text), printable_row(text)):
        assert len(shown.splitlines()) <= 1
        assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]


@given(st.text(st.characters()))
def test_every_line_of_a_quoted_text_has_the_margin(text: str) -> None:
    assert all(line.startswith(MARGIN) for line in quote(text).split("\n"))


@pytest.mark.parametrize("harmful", HARMFUL, ids=ascii)
def test_what_steers_a_terminal_or_hides_is_shown_as_a_sign(harmful: str) -> None:
    for show in (escape, escape_line, printable, printable_row, escaping.visible, escaping.visible_line):
        shown = show(f"a{harmful}b")
        assert shown.startswith("a⟨")
        assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in shown)


@pytest.mark.parametrize("unseen", ["\u00a0", "\u2003", "\u200d", "\u3164", "\ufe0f", "\U000e0101", "\u2800"])
def test_also_what_only_looks_like_a_space_is_shown_exactly_where_a_person_decides(unseen: str) -> None:
    assert escape(f"git{unseen}push") == f"git⟨U+{ord(unseen):04X}⟩push"


def test_what_languages_and_emoji_need_stays_in_other_text() -> None:
    text = "\u0645\u06cc\u200c\u062e, \U0001f469\u200d\U0001f4bb ❤\ufe0f, « oui\u00a0»"
    assert printable(text) == text


@given(st.text(st.characters()))
def test_what_is_shown_for_a_terminal_may_be_shown_again(text: str) -> None:
    assert printable(printable(text)) == printable(text)
    assert printable(escape(text)) == escape(text)
    assert escaping.visible(escape(text)) == escape(text)


def test_a_sign_can_not_be_imitated() -> None:
    assert escape("a⟨CR⟩") == "a⟨U+27E8⟩CR⟩"
    assert escape("a\r") == "a⟨CR⟩"


def test_of_a_long_text_it_is_said_how_much_more_there_is() -> None:
    assert escape_start(LONG, 200) == "a" * 99 + "⟨LF⟩" + "b" * 50
    assert escape_start(LONG, 110) == "a" * 99 + "⟨LF⟩" + "bbbbbbb… (43 more characters)"
    assert escape_start("\u200b" * 9, 20) == "⟨U+200B⟩⟨U+200B⟩… (7 more characters)"
