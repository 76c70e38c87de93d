"""A home that this user of the machine may not use, or not all of it."""

import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from palyra.gateway.client.target import is_held
from palyra.home import Home, HomeOwnerMismatch, foreign_file_message
from tests.support.unprivileged import ordinary_user
from tests.unit.cli.door import Cli

COMMANDS = ["status", "up", "down", "logs", "run -m hello", "runs list", "policy show", "config show", "journal verify"]


@pytest.mark.parametrize(
    ("owner", "way_out"), [("root", "`sudo chown -R me '{home}'`"), ("ana", "Run the command as ana, or")]
)
def test_it_is_said_whose_it_is_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, way_out: str
) -> None:
    home = Home(tmp_path / "a home")
    home.path.mkdir()
    names = {home.path.stat().st_uid: owner, 424242: "me"}
    monkeypatch.setattr(os, "geteuid", lambda: 424242)
    monkeypatch.setattr(pwd, "getpwuid", lambda user: SimpleNamespace(pw_name=names[user]))
    said = foreign_file_message(home, home.path).detail
    assert f"belongs to {owner}, and you are me" in said
    assert way_out.format(home=home.path) in said


def nobody(user: int) -> None:
    """Know no user, as the passwd of a container does."""
    raise KeyError(user)


def test_a_user_without_an_entry_in_passwd_is_asked_for_a_home(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.delenv("PALYRA_HOME")
    monkeypatch.delenv("HOME")
    result = cli("status")
    assert result.code == 2
    assert "Set HOME, or give all folders as absolute paths (PALYRA_HOME). [settings_invalid]" in result.err


def test_a_user_without_an_entry_in_passwd_gets_a_unit(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.delenv("HOME")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert f"--home {home}" in cli("service", "install", "--print").out


@ordinary_user
@pytest.mark.parametrize("command", COMMANDS)
def test_a_home_that_can_not_be_entered_is_told_by_every_command(cli: Cli, home: Path, command: str) -> None:
    home.mkdir()
    home.chmod(0)
    result = cli(*command.split())
    home.chmod(0o700)
    # What proves a journal ends with 2 if it could not look at it.
    assert (result.code, result.out) == (2 if command == "journal verify" else 1, "")
    assert f"Fix it with `chmod -R u+rwX {home}`. [home_owner_mismatch]" in result.err


@ordinary_user
def test_a_home_below_what_can_not_be_entered_is_told(cli: Cli, home: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(0)
    result = cli("status", "--home", str(tmp_path / "closed" / "home"))
    (tmp_path / "closed").chmod(0o700)
    assert (result.code, result.out) == (1, "")
    assert ". Name another home with --home. [home_owner_mismatch]" in result.err


@ordinary_user
@pytest.mark.parametrize("name", ["daemon.json", "palyrad.log", "token", "journal.db", "policy/", "plugins/"])
def test_the_doctor_names_the_file_that_is_not_ours(cli: Cli, home: Path, name: str) -> None:
    home.mkdir(mode=0o700)
    (home / name).mkdir() if name.endswith("/") else (home / name).touch()
    (home / name).chmod(0)
    result = cli("doctor")
    (home / name).chmod(0o700)
    assert result.code == 1
    assert f"{home / name} is yours, but its permissions deny you access." in result.out
    assert "1 error, 0 warnings." in result.out


@ordinary_user
def test_the_doctor_tells_that_a_home_can_not_be_made(cli: Cli, home: Path) -> None:
    home.parent.chmod(0o500)
    result = cli("doctor")
    home.parent.chmod(0o700)
    assert result.code == 1
    assert f"fail  home      {home} does not exist, and you cannot create it in {home.parent}" in result.out


@ordinary_user
def test_whether_a_daemon_runs_is_not_guessed(home: Path) -> None:
    home.mkdir()
    Home(home).lock.touch(0)
    with pytest.raises(HomeOwnerMismatch, match=r"daemon\.lock is yours, but its permissions deny you access"):
        is_held(Home(home))
