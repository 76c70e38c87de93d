"""Tables, facts, colours."""

import io

import pytest

from palyra.cli.terminal import output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_has_columns() -> None:
    assert output.table(["A", "LONG"], [["1", "x"], ["22", "y"]]) == ["A   LONG", "1   x", "22  y"]


def test_a_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "screen_width", lambda: 20)
    lines = output.table(["ID", "TEXT"], [["1234", "a text that is much too long for this"]])
    assert lines[1] == "1234  a text that i…"


def test_columns_beside_the_one_that_stretches_are_cut_if_nothing_else_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "screen_width", lambda: 50)
    lines = output.table(["ID", "WHERE", "TEXT"], [["1" * 20, "w" * 40, "t" * 40]])
    assert lines[1] == "1" * 20 + "  " + "w" * 13 + "…  " + "t" * 11 + "…"
    monkeypatch.setattr(output, "screen_width", lambda: 10)
    assert output.table(["ID", "TEXT"], [["1" * 20, "t" * 40]])[1] == "1" * 20 + "  " + "t" * 11 + "…"


def test_cells_can_not_break_out_of_their_row() -> None:
    assert output.table(["A"], [["x\n\x1b[31my"]])[1] == "x ⟨ESC⟩[31my"


def test_wide_cells_keep_the_columns_aligned() -> None:
    lines = output.table(["A", "B"], [["日本", "x"], ["ab", "y"]])
    assert [output.width_of(line.rstrip()[:-1]) for line in lines[1:]] == [6, 6]


def test_facts_without_a_value_are_left_out() -> None:
    assert output.facts(("one", "1"), ("second", None), ("three", "3")) == ["one    1", "three  3"]


def test_colours_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert output.paint("x", "red", stream=Terminal()) == "\x1b[31mx\x1b[0m"
    assert output.paint("x", "red", stream=io.StringIO()) == "x"


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.paint("x", "red", stream=Terminal()) == "x"


def test_a_dumb_terminal_gets_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert output.paint("x", "red", stream=Terminal()) == "x"


def test_counts_name_what_there_is() -> None:
    assert output.counts({"in_progress": 2, "waiting": 0}) == "2 in progress"
    assert output.counts({}) == "none"


def test_a_model_of_its_providers_name_is_said_once() -> None:
    assert output.model_name("embedded", "embedded") == "embedded"
    assert output.model_name("openai", "large") == "openai large"


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.ProgressIndicator("waiting") as progress:
        progress.tick()
    assert capsys.readouterr().err == ""
