"""`palyra service`: a file that the supervisor takes, and no more claimed than was done."""

import json
import plistlib
import subprocess
import sys
from pathlib import Path

import pytest

from palyra.cli.daemon import service
from palyra.cli.daemon.service import launchd_service, systemd_service
from palyra.home import Home
from tests.support.needs import SYSTEMD_ANALYZE, needs
from tests.unit.cli.door import Cli


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """A machine of the test's own, on which systemd runs; returns the folder of the user's units."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(service, "SYSTEM_UNITS", tmp_path / "etc")
    monkeypatch.setattr(service, "SYSTEMD_RUNS", tmp_path)
    return tmp_path / "config" / "systemd" / "user"


def settings_of(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_install_writes_a_unit_for_this_home_and_says_what_comes_next(cli: Cli, home: Path, machine: Path) -> None:
    result = cli("service", "install")

    (unit,) = machine.iterdir()
    said = settings_of(unit.read_text())
    assert result.code == 0
    assert result.out.splitlines()[:4] == [
        f"Written: {unit}",
        "Now run:",
        "  systemctl --user daemon-reload",
        f"  systemctl --user enable --now {unit.name}",
    ]
    assert said["ExecStart"].startswith(sys.executable)
    assert said["ExecStart"].endswith(f"palyra.cli.daemon.serve --home {home}")
    assert said["ReadWritePaths"] == str(home)
    assert said["WantedBy"] == "default.target"
    assert {name: said[name] for name in ("NoNewPrivileges", "ProtectSystem", "Restart", "KillMode")} == {
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "Restart": "on-failure",
        "KillMode": "mixed",
    }
    # The service could not make it: it may write nowhere else.
    assert home.stat().st_mode & 0o777 == 0o700


def test_print_only_shows(cli: Cli, home: Path, machine: Path) -> None:
    result = cli("service", "install", "--print")
    assert result.out.startswith("# Written by")
    assert result.err == ""
    assert not machine.exists()
    assert not home.exists()


def test_where_systemd_does_not_run_it_says_so(cli: Cli, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SYSTEMD_RUNS", Path("/not/there"))
    assert "systemd is not running on this machine" in cli("service", "install").err
    assert "systemd is not running on this machine" in cli("service", "show").out


def test_what_the_service_would_not_see_is_told(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALYRA_RUNS_MAX_CONCURRENT", "3")
    assert (
        f"does not see PALYRA_RUNS_MAX_CONCURRENT. Set them in {home}/config.toml instead."
        in cli("service", "install").out
    )


def test_a_daemon_that_runs_by_hand_is_told_of(cli: Cli, inhabited: Home) -> None:
    assert "stop it first with `palyra down`" in cli("service", "install").out


def test_wrong_settings_are_told_instead_of_a_service_that_never_starts(cli: Cli, home: Path, machine: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[modell]\n")
    assert cli("service", "install").code == 2
    assert not machine.exists()


def test_uninstall_takes_away_what_install_and_enable_left(cli: Cli, machine: Path, home: Path) -> None:
    unit = Path(json.loads(cli("service", "install", "--json").out)["path"])
    link = machine / "default.target.wants" / unit.name
    link.parent.mkdir()
    link.symlink_to(unit)

    result = cli("service", "uninstall")

    assert result.out.splitlines()[:3] == [f"Removed: {unit}", "Now run:", f"  systemctl --user stop {unit.name}"]
    assert not unit.exists()
    assert not link.is_symlink()
    assert home.exists()
    assert cli("service", "uninstall").out == f"{unit} does not exist.\n"


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_a_file_of_somebody_else_is_left_alone(cli: Cli, machine: Path, verb: str) -> None:
    unit = Path(json.loads(cli("service", "install", "--print", "--json").out)["path"])
    machine.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/mine\n")
    result = cli("service", verb)
    assert (result.code, unit.read_text()) == (1, "[Service]\nExecStart=/mine\n")
    assert "[service_file_exists]" in result.err


def test_show_tells_whether_the_file_is_that_of_this_version(cli: Cli) -> None:
    def state() -> tuple[bool, bool]:
        said = json.loads(cli("service", "show", "--json").out)
        return said["installed"], said["current"]

    assert state() == (False, False)
    path = Path(json.loads(cli("service", "install", "--json").out)["path"])
    assert state() == (True, True)
    path.write_text(path.read_text() + "\n# changed\n")
    assert state() == (True, False)
    assert "update it with" in cli("service", "show").out


def test_a_unit_for_the_machine_runs_as_the_owner_of_the_home(cli: Cli, tmp_path: Path, home: Path) -> None:
    home.mkdir()
    said = json.loads(cli("service", "install", "--system", "--json").out)
    assert Path(said["path"]).parent == tmp_path / "etc"
    assert settings_of(said["text"])["User"] == home.owner()
    assert settings_of(said["text"])["WantedBy"] == "multi-user.target"
    assert said["next"][0] == "sudo systemctl daemon-reload"


@pytest.mark.parametrize("more", [(), ("--system",)])
def test_no_unit_covers_what_the_strict_sandbox_needs(cli: Cli, home: Path, more: tuple[str, ...]) -> None:
    home.mkdir()
    text = json.loads(cli("service", "install", "--print", "--json", *more).out)["text"]
    # The first four cover a part of /proc, so that nobody but root may mount another; the others keep from namespaces.
    covering = {"ProtectKernelTunables", "ProtectKernelLogs", "ProtectProc", "ProcSubset"}
    assert settings_of(text).keys() & (covering | {"RestrictNamespaces", "SystemCallFilter", "PrivateUsers"}) == set()


def test_a_place_that_can_not_be_written_is_told_with_a_way_out(cli: Cli, tmp_path: Path, home: Path) -> None:
    (tmp_path / "etc").write_text("no folder")
    result = cli("service", "install", "--system")
    assert result.code == 1
    assert f"Run this as root with --home {home}, or print the file with --print." in result.err


def test_two_homes_have_two_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    paths = [tmp_path / ".palyra", tmp_path / ".palyra-work", tmp_path / "a" / "home", tmp_path / "b" / "home"]
    names = [systemd_service(Home(path), system=False).name for path in paths]
    assert names[:2] == ["palyra.service", "palyra-work.service"]
    assert len(set(names)) == 4


@needs(SYSTEMD_ANALYZE)
@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize("name", [".palyra", "a home", 'of "100%" $USER', "ä\\b"])
def test_systemd_takes_the_unit(tmp_path: Path, name: str, system: bool) -> None:
    home = Home(tmp_path / name)
    home.path.mkdir()
    (home.path / "work here").mkdir()
    home.config.write_text(f"[workspace]\nroot = '{home.path}/work here'\n")
    made = systemd_service(home, system=system)
    unit = tmp_path / "units" / made.name
    unit.parent.mkdir()
    unit.write_text(made.text)

    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)

    assert (done.returncode, [line for line in done.stderr.splitlines() if made.name in line]) == (0, [])


def test_a_mac_gets_a_job_for_launchd(tmp_path: Path) -> None:
    home = Home(tmp_path / "a & b")
    made = launchd_service(home, system=False)
    job = plistlib.loads(made.text.encode())
    assert job["ProgramArguments"][-2:] == ["--home", str(home.path)]
    assert job["KeepAlive"] == {"SuccessfulExit": False}
    assert job["Label"] == made.name
    assert made.path.name == f"{made.name}.plist"
    assert made.started_by[0].startswith("launchctl bootstrap gui/")
    assert "UserName" not in job
    assert "UserName" in plistlib.loads(launchd_service(home, system=True).text.encode())
