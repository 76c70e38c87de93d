"""What reaches a terminal, and what does not."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.cli.terminal.printable import printable, printable_line, shorten
from palyra.core.text.escaping import printable_json

ATTACKS = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;new title\x07",
    "\x1b]52;c;ZWNobyBvd25lZA==\x07",
    "\x1b[2J\x1b[H",
    "\x9b31mred",
    "safe\rOVERWRITTEN",
    "back\x08\x08\x08",
    "\x7f\x00\x0e\x0f",
    "\u202egnp.exe",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_controls_of_a_terminal_become_visible(attack: str) -> None:
    shown = printable(attack)
    assert all(char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf") for char in shown)
    assert len(shown) >= len(attack)


@given(st.text())
def test_no_text_brings_a_control_to_the_terminal(text: str) -> None:
    assert not [char for char in printable(text) if unicodedata.category(char) == "Cc" and char not in "\n\t"]
    assert not [char for char in printable_line(text) if unicodedata.category(char) == "Cc"]


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
def test_ordinary_text_is_not_changed(text: str) -> None:
    assert printable(text) == text


def test_lines_and_tabs_stay() -> None:
    assert printable("one\n\ttwo\r\nthree") == "one\n\ttwo\nthree"


def test_a_line_has_no_breaks() -> None:
    assert printable_line("  one\n\n two\tthree ") == "one two three"


def test_a_line_is_cut_to_its_width() -> None:
    assert printable_line("one two three", width=8) == "one two…"
    assert shorten("four", 4) == "four"


@given(st.dictionaries(st.text(), st.text()))
def test_json_means_the_same_without_controls(value: dict[str, str]) -> None:
    text = printable_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert not [char for char in text if unicodedata.category(char) == "Cc"]
