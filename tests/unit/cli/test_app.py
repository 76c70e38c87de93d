"""The command line as a whole: options, errors, exit codes, what it imports."""

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import click
import pytest

import palyra
from palyra.cli import overview
from palyra.cli.app import COMMANDS
from palyra.cli.app import palyra as command
from palyra.core.version import VERSION
from palyra.home import Home
from tests.support.builders import RUN, SESSION
from tests.unit.cli.door import Cli, Door, Result, problem
from tests.unit.cli.wire import a_session, health

HEAVY = (
    "msgspec",
    "http.client",
    "asyncio",
    "prompt_toolkit",
    "palyra.config",
    "palyra.journal",
    "subprocess",
    "grpc",
    "google.protobuf",
)


def test_the_version_is_told(cli: Cli) -> None:
    assert cli("--version") == Result(0, f"palyra {VERSION}\n", "")


@pytest.mark.parametrize("args", ["'--version'", "'--help'"])
def test_nothing_heavy_is_imported_for_the_help(args: str) -> None:
    code = (
        f"import sys; from palyra.cli.app import palyra, run; run(palyra, [{args}], prog='palyra');"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("args", [["runs"], ["tokens"], ["config", "target"], ["completion", "bash"], ["up", "--help"]])
def test_a_command_that_does_not_speak_grpc_does_not_import_it(home: Path, args: list[str]) -> None:
    code = (
        f"import sys; from palyra.cli.app import palyra, run; run(palyra, {args!r}, prog='palyra');"
        "print([name for name in ('grpc', 'google.protobuf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_the_help_names_every_command(cli: Cli) -> None:
    shown = cli("--help").out
    assert all(re.search(rf"^  {name} ", shown, re.MULTILINE) for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(cli: Cli, name: str) -> None:
    result = cli(name, "--help")
    assert result.code == 0
    assert "--json" in result.out


@pytest.mark.parametrize("name", ["policy", "config"])
def test_a_command_that_needs_another_one_shows_its_help(cli: Cli, name: str) -> None:
    result = cli(name)
    assert (result.code, result.err) == (2, cli(name, "--help").out)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_does_is_not_cut_off(cli: Cli, name: str) -> None:
    assert "..." not in cli(name, "--help").out.partition("\nCommands:\n")[2]


def test_an_unknown_command_gets_a_hint(cli: Cli) -> None:
    result = cli("sesions")
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("palyra: No such command 'sesions'. Did you mean")
    assert result.err.endswith("[usage]\n")


@pytest.mark.parametrize("args", [("status", "--json"), ("--json", "status")])
def test_json_may_stand_before_or_after_the_command(cli: Cli, home: Path, args: tuple[str, ...]) -> None:
    result = cli(*args)
    assert (result.code, json.loads(result.out)) == (3, {"running": False, "home": str(home)})


@pytest.mark.parametrize("args", [("--profile", "work", "status", "--json"), ("status", "--json", "--profile", "work")])
def test_a_profile_is_a_home_beside_the_home(cli: Cli, home: Path, args: tuple[str, ...]) -> None:
    assert json.loads(cli(*args).out)["home"] == f"{home}-work"


def test_a_command_that_needs_the_daemon_says_how_to_start_it(cli: Cli) -> None:
    assert cli("runs") == Result(
        3, "", "palyra: No daemon is running for this home. Start it with `palyra up`. [daemon_not_running]\n"
    )


def test_wrong_settings_are_bad_input(cli: Cli, home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[modell]\n")
    result = cli("up")
    assert result.code == 2
    assert "[settings_invalid]" in result.err


def test_a_refusal_is_one_line_with_its_code(cli: Cli, inhabited: Home, door: Door) -> None:
    door.says("GET", f"/runs/{RUN}", problem("run_not_found", "There is no\nsuch \x1b[31mrun.", status=404))
    assert cli("runs", "show", RUN) == Result(1, "", "palyra: There is no such ⟨ESC⟩[31mrun. [run_not_found]\n")


def test_a_refusal_says_when_to_try_again(cli: Cli, inhabited: Home, door: Door) -> None:
    door.says("GET", "/runs", problem("storage_full", "The disk is full.", status=503, retry_after=2.0))
    assert cli("runs").err == "palyra: The disk is full. Try again in 2 s. [storage_full]\n"


def test_bad_input_to_the_daemon_is_bad_input(cli: Cli, inhabited: Home, door: Door) -> None:
    door.says("PATCH", f"/sessions/{SESSION}", problem("session_name_invalid", "Too long.", status=400))
    door.says("GET", f"/sessions/{SESSION}", {"session": a_session()})
    assert cli("sessions", "rename", SESSION, "x" * 200).code == 2


@pytest.mark.parametrize("args", [("why", "\udcff"), ("approvals", "deny", "X", "--reason", "\udcff")])
def test_an_argument_that_is_no_text_is_bad_input(cli: Cli, inhabited: Home, door: Door, args: tuple[str, ...]) -> None:
    result = cli(*args)
    assert (result.code, "[argument_invalid]" in result.err) == (2, True)


@pytest.mark.parametrize("typed", ["ä", "a b"])
def test_an_id_of_letters_that_no_address_has_is_for_the_daemon_to_refuse(
    cli: Cli, inhabited: Home, door: Door, typed: str
) -> None:
    path = f"/approvals/{quote(typed)}"
    door.says("GET", path, problem("approval_not_found", "There is no such approval.", status=404))
    assert "[approval_not_found]" in cli("approvals", "show", typed).err


def test_a_fault_of_ours_is_told_without_a_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "show_overview", _broken)
    result = cli()
    assert result.code == 70
    assert result.err == (
        "palyra: Unexpected error (ValueError: oh no). Set PALYRA_DEBUG=1 to see the traceback. [unexpected]\n"
    )


def test_a_fault_of_ours_names_the_log(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    (home / "palyrad.log").touch()
    monkeypatch.setattr(overview, "show_overview", _broken)
    assert f"The daemon's log is {home}/palyrad.log." in cli().err


def test_debugging_shows_the_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALYRA_DEBUG", "1")
    monkeypatch.setattr(overview, "show_overview", _broken)
    with pytest.raises(ValueError, match="oh no"):
        cli()


def test_a_closed_pipe_is_no_error_to_speak_of(home: Path) -> None:
    done = subprocess.run(f"{sys.executable} -m palyra --help | true", shell=True, capture_output=True, check=True)
    assert done.stderr == b""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_fault_of_ours(home: Path, closed: str) -> None:
    for args, code in (("status", 3), ("chat", 2)):
        done = subprocess.run(
            f"{sys.executable} -m palyra {args} {closed}", shell=True, capture_output=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == code, done.stderr


def test_a_terminal_that_lacks_a_character_gets_its_code(home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "palyra", "--home", "/tmp/grün", "status"],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, b"gr\\xfcn" in done.stdout) == (3, True)


@pytest.mark.parametrize("coding", ["ascii", "latin-1", "utf-8"])
def test_json_is_json_whatever_the_terminal_lacks(home: Path, coding: str) -> None:
    name = "/tmp/grün 日本 🙂"
    done = subprocess.run(
        [sys.executable, "-m", "palyra", "--home", name, "status", "--json"],
        capture_output=True,
        env={"PYTHONIOENCODING": coding, "PYTHONUTF8": "1"},
    )
    assert json.loads(done.stdout.decode())["home"] == name


def test_alone_it_says_what_to_do_next(cli: Cli, home: Path) -> None:
    result = cli()
    assert result.code == 0
    assert "not running" in result.out
    assert "palyra chat" in result.out
    assert not home.exists()


def test_alone_it_says_where_the_daemon_is(cli: Cli, inhabited: Home, door: Door) -> None:
    door.tells("GetHealth", health(runs={"in_progress": 1}))
    shown = cli().out
    assert door.address in shown
    assert "1 in progress" in shown


def test_no_text_names_a_command_that_does_not_exist() -> None:
    named = set()
    for path in Path(palyra.__file__).parent.rglob("*.py"):
        named |= set(re.findall(r"`palyra ([a-z]+)(?: ([a-z]+))?", path.read_text()))
    context = click.Context(command)
    for name, verb in named:
        assert name in COMMANDS, f"`palyra {name}` is named, but does not exist"
        found = command.get_command(context, name)
        if isinstance(found, click.Group) and verb:
            assert verb in found.commands, f"`palyra {name} {verb}` is named, but does not exist"


def _broken(_: object) -> None:
    raise ValueError("oh no")
