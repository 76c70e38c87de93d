"""The log as a person reads it."""

import threading
from pathlib import Path

import pytest

from palyra.cli.daemon.logs import BLOCK_BYTES, followed, last_lines, log_line
from tests.unit.cli.door import Cli

LINE = '{"at": "2026-01-02T03:04:05.678+00:00", "level": "info", "logger": "palyra.x", "message": "ready", "run_id": 7}'


def test_a_line_is_formatted() -> None:
    assert log_line(LINE)[8:] == " info    palyra.x ready run_id=7"


def test_a_crash_is_shown_as_it_is() -> None:
    assert log_line("Traceback (most recent call last):") == "Traceback (most recent call last):"


def test_a_traceback_stands_below_its_line() -> None:
    shown = log_line('{"message": "failed", "error": "Traceback\\n  File"}')
    assert shown.splitlines()[1:] == ["    Traceback", "      File"]


def test_controls_in_the_log_are_made_visible() -> None:
    assert "\x1b" not in log_line('{"message": "\\u001b[31m"}') + log_line("\x1b[31m")


@pytest.mark.parametrize("count", [0, 1, 3, 1000, 5000])
def test_the_last_lines_are_read_from_the_end(tmp_path: Path, count: int) -> None:
    path = tmp_path / "log"
    lines = [f"line {number} {'x' * 100}" for number in range(2000)]
    path.write_text("\n".join(lines) + "\n")
    assert path.stat().st_size > 2 * BLOCK_BYTES
    assert last_lines(path, count) == (lines[-count:] if count else [])


def test_without_a_log_it_says_so(cli: Cli) -> None:
    result = cli("logs")
    assert (result.code, result.out) == (0, "")
    assert "no log yet" in result.err


def test_json_prints_the_lines_as_stored(cli: Cli, home: Path) -> None:
    home.mkdir()
    (home / "palyrad.log").write_text(f"{LINE}\n{LINE}\n")
    assert cli("logs", "-n", "1", "--json").out == f"{LINE}\n"


def test_following_goes_on_with_what_comes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\nlast\n")
    lines = followed(path, 1)
    assert next(lines) == "last"
    with path.open("a") as file:
        file.write("hal")
        file.flush()
        file.write("f\nwhole\n")
    assert [next(lines), next(lines)] == ["half", "whole"]
    path.rename(tmp_path / "log.1")
    path.write_text("fresh\n")
    assert next(lines) == "fresh"


def test_following_waits_for_a_log_that_is_not_there_yet(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = followed(path, 10)
    threading.Timer(0.1, path.write_text, ["hello\n"]).start()
    assert next(lines) == "hello"
