"""What the doctor finds."""

import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from palyra.cli.doctor import checks
from palyra.cli.doctor.check import FAIL, OK, WARN
from palyra.cli.doctor.checks import (
    check_clock,
    check_home,
    check_provider,
    check_providers,
    check_python,
    check_space,
)
from palyra.cli.options import Invocation
from palyra.core.model.catalog import DialectName, ModelProvider
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.home import Home
from palyra.settings import ModelSettings, Settings
from tests.support.needs import BUBBLEWRAP, RIPGREP, needs
from tests.unit.cli.door import CUT, Cli, Door, Refusal
from tests.unit.cli.wire import health

Answered = pb.GetHealthResponse | Refusal
Usage = namedtuple("Usage", ["total", "used", "free"])


def test_this_python_is_new_enough() -> None:
    assert check_python().state == OK


def test_an_old_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MIN_PYTHON", (9, 9))
    assert check_python().state == FAIL


def test_the_clock_is_sane(tmp_path: Path) -> None:
    assert check_clock(Home(tmp_path)).state == OK


def test_a_clock_that_was_never_set_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "FIRST_YEAR", 9999)
    assert check_clock(Home(tmp_path)).state == FAIL


def test_a_clock_that_was_set_back_is_noticed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.log.touch()
    os.utime(home.log, (4e9, 4e9))
    assert check_clock(home).state == WARN


def test_what_others_may_look_into_is_a_failure_with_its_remedy(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.path.mkdir(mode=0o755)
    home.path.chmod(0o755)
    for path in (home.token, home.vault_key):
        path.write_text("palyra_something")
        path.chmod(0o644)
    folder, token, vault = check_home(home)
    assert (folder.state, folder.remedy) == (FAIL, f"chmod 700 {home.path}")
    assert (token.state, token.remedy) == (FAIL, f"chmod 600 {home.token}")
    assert (vault.state, vault.remedy) == (FAIL, f"chmod 600 {home.vault_key}")


def test_a_home_that_is_the_owners_only_is_well(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.path.mkdir(mode=0o700)
    home.token.touch(mode=0o600)
    home.token.write_text("palyra_something\n")
    assert [check.state for check in check_home(home)] == [OK, OK]


def test_what_is_no_token_is_a_failure_with_its_remedy(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.path.mkdir(mode=0o700)
    home.token.touch(mode=0o600)
    *_, token = check_home(home)
    assert (token.name, token.state) == ("token", FAIL)
    assert "`palyra restart` creates a new one" in token.what


def test_a_home_that_is_a_file_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    assert [check.state for check in check_home(Home(tmp_path / "home"))] == [FAIL]


@pytest.mark.parametrize(("free", "state"), [(10**6, FAIL), (10**8, WARN), (10**11, OK)])
def test_a_disk_that_fills_up_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, free: int, state: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, free))
    assert check_space(Home(tmp_path / "not" / "there")).state == state


@pytest.mark.parametrize(
    ("provider", "script", "state"),
    [
        ("embedded", None, OK),
        ("scripted", None, FAIL),
        ("scripted", "/nowhere.json", FAIL),
        ("scripted", __file__, OK),
        ("openai", None, FAIL),
    ],
)
def test_a_provider_must_be_usable(*, provider: str, script: str | None, state: str) -> None:
    assert check_provider(Settings(model=ModelSettings(provider=provider, script=script))).state == state


def test_a_model_file_must_be_there(tmp_path: Path) -> None:
    providers = {"here": ModelProvider(dialect=DialectName.LOCAL, path=str(tmp_path / "missing.gguf"))}
    settings = Settings(model=ModelSettings(provider="here", providers=providers))

    assert check_provider(settings).state == OK
    assert [check.state for check in check_providers(Invocation(), settings)] == [FAIL]


@needs(BUBBLEWRAP, RIPGREP)
def test_a_home_that_does_not_exist_yet_is_well(cli: Cli) -> None:
    result = cli("doctor")
    assert result.code == 0
    assert "No problems found." in result.out


def test_a_daemon_that_answers_is_well(cli: Cli, inhabited: Home, door: Door) -> None:
    door.tells("GetHealth", health())
    assert cli("doctor").code == 0


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (health(version="9.9.9"), WARN),
        (health(storage="storage_full"), FAIL),
        (CUT, FAIL),
    ],
)
def test_a_daemon_in_trouble_is_noticed(cli: Cli, inhabited: Home, door: Door, *, answer: Answered, state: str) -> None:
    door.tells("GetHealth", answer)
    found = json.loads(cli("doctor", "--json").out)["checks"]
    assert {check["name"]: check["state"] for check in found}["daemon"] == state


def test_wrong_settings_are_found(cli: Cli, home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text("[modell]\n")
    result = cli("doctor")
    assert result.code == 1
    assert "unknown section [modell]" in result.out


def test_a_damaged_journal_is_found_and_the_doctor_goes_on(cli: Cli, home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "journal.db").write_bytes(b"no database" * 1000)
    result = cli("doctor")
    assert result.code == 1
    assert "fail  journal" in result.out
    assert cli("journal", "verify").code == 2


def test_without_a_journal_there_is_nothing_to_verify(cli: Cli) -> None:
    result = cli("journal", "verify")
    assert result.code == 2
    assert "[journal_not_found]" in result.err
