"""What the command line says of the sandboxes of this machine."""

import asyncio
import json
from pathlib import Path

import pytest

from palyra.cli.app import palyra, run
from palyra.cli.doctor.check import OK, WARN
from palyra.cli.doctor.checks import check_sandbox, check_search
from palyra.home import Home
from palyra.sandbox.base import SandboxJob, SandboxUnavailable, Tier
from palyra.sandbox.files.root import WorkspaceRoot
from palyra.sandbox.processes import cgroups, seccomp, tiers
from palyra.sandbox.processes.mounts import HiddenFolders
from palyra.sandbox.processes.process import ProcessSandbox
from palyra.settings import SandboxSettings, Settings, WorkspaceSettings
from tests.support.needs import BUBBLEWRAP, needs


def check(*options: str) -> int:
    return run(palyra, ["sandbox", "check", *options], prog="palyra")


def without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "SEARCHED", "/nonexistent")


@needs(BUBBLEWRAP)
def test_every_tier_is_tried(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["tier"], told["ok"]) == ("strict", True)
    assert [one["tier"] for one in told["tiers"]] == ["strict", "guarded", "off"]
    assert [one["is_set"] for one in told["tiers"]] == [True, False, False]
    assert told["tiers"][0]["works"]


@pytest.mark.parametrize("base", [None, Path("/sys/fs/cgroup/unit")])
def test_it_is_said_how_memory_is_counted(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, base: Path | None
) -> None:
    monkeypatch.setattr(
        cgroups, "find", lambda pid: cgroups.CgroupSupport(base, "" if base else "other programs run there")
    )
    check("--json")
    told = json.loads(capsys.readouterr().out)["memory"]
    assert told["by_group"] is (base is not None)
    assert ("/sys/fs/cgroup/unit" if base else "other programs run there") in told["what"]


@needs(BUBBLEWRAP)
def test_it_is_said_whether_ripgrep_helps_to_search(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tiers.find("rg")
    check("--json")
    told = json.loads(capsys.readouterr().out)["search"]
    assert told["ripgrep"] is (there is not None)
    assert (there or "ripgrep is not installed") in told["what"]
    monkeypatch.setenv("PALYRA_SANDBOX_TIER", "off")
    check()
    assert "reads every file, because ripgrep is used only in the strict tier" in capsys.readouterr().out


@needs(BUBBLEWRAP)
def test_the_doctor_says_what_to_install_for_faster_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bwrap", "prlimit"):
        (tmp_path / name).symlink_to(tiers.find(name) or "")
    monkeypatch.setattr(tiers, "SEARCHED", str(tmp_path))
    found = check_search(Settings())
    assert (found.state, found.what) == (OK, "reads every file, because ripgrep is not installed")
    assert "apt install ripgrep" in found.remedy


def test_what_is_missing_is_named_with_what_to_install(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_bubblewrap(monkeypatch)
    assert check() == 1
    said = capsys.readouterr().out
    assert "bwrap is not installed" in said
    assert "apt install bubblewrap" in said


@needs(BUBBLEWRAP)
def test_a_workspace_that_no_program_can_be_given_is_told(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = home.parent / "work"
    root.mkdir()
    monkeypatch.setenv("PALYRA_WORKSPACE_ROOT", str(root))
    assert check() == 0
    capsys.readouterr()
    (root / "link").symlink_to(home)
    monkeypatch.setenv("PALYRA_HOME", str(root / "link"))
    assert check("--json") == 1
    told = json.loads(capsys.readouterr().out)["tiers"]
    assert "could replace it" in told[0]["what"]
    assert check_sandbox(Settings(workspace=WorkspaceSettings(root=str(root))), Home(root / "link")).state == WARN
    monkeypatch.setenv("PALYRA_WORKSPACE_ROOT", "/etc")
    assert check() == 1
    assert "belongs to the system" in capsys.readouterr().out


@needs(BUBBLEWRAP)
def test_a_sandbox_that_keeps_from_nothing_is_told(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another program of that name were installed, which runs what it is given and no more."""
    idle = tmp_path / "bwrap"
    idle.write_text(
        '#!/bin/bash\nwhile [ "$1" != -- ]; do [ "$1" = --json-status-fd ] && at=$2; shift; done; shift\n'
        '"$@"; echo "{\\"exit-code\\": $?}" >&$at\n'
    )
    idle.chmod(0o755)
    (tmp_path / "prlimit").symlink_to(tiers.find("prlimit") or "")
    monkeypatch.setattr(tiers, "SEARCHED", str(tmp_path))
    assert check("--json") == 1
    found = json.loads(capsys.readouterr().out)["tiers"][0]
    assert (found["works"], found["what"]) == (False, "a program could read a file outside its workspace")


@needs(BUBBLEWRAP)
def test_a_machine_whose_calls_are_not_known_is_told(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seccomp, "build", lambda tier, **_: None)
    assert check("--json") == 0
    assert "no system call filter" in json.loads(capsys.readouterr().out)["tiers"][0]["what"]


def test_the_tier_that_is_set_decides(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_bubblewrap(monkeypatch)
    monkeypatch.setenv("PALYRA_SANDBOX_TIER", "off")
    assert check() == 0


def test_an_old_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "landlock_version", lambda: 4)
    missing = tiers.tier_problem(Tier.GUARDED)
    assert missing is not None
    assert "version 4" in missing.reason
    assert "6.12" in missing.remedy


def test_a_tier_that_is_not_there_is_refused_and_no_other_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_bubblewrap(monkeypatch)
    sandbox = ProcessSandbox(Tier.STRICT, private=HiddenFolders())
    with pytest.raises(SandboxUnavailable, match="apt install bubblewrap"):
        asyncio.run(
            sandbox.run(SandboxJob(argv=("/bin/touch", "made"), roots=(WorkspaceRoot(tmp_path),), folder=tmp_path))
        )
    assert list(tmp_path.iterdir()) == []


@needs(BUBBLEWRAP)
def test_bubblewrap_that_can_not_do_its_work_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    broken = tools / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    broken.chmod(0o755)
    (tools / "prlimit").symlink_to(tiers.find("prlimit") or "")
    monkeypatch.setattr(tiers, "SEARCHED", str(tools))
    root = tmp_path / "root"
    root.mkdir()
    sandbox = ProcessSandbox(Tier.STRICT, private=HiddenFolders())
    with pytest.raises(SandboxUnavailable, match="unprivileged_userns_clone"):
        asyncio.run(sandbox.run(SandboxJob(argv=("/bin/touch", "made"), roots=(WorkspaceRoot(root),), folder=root)))
    assert list(root.iterdir()) == []


@needs(BUBBLEWRAP)
def test_the_doctor_warns_when_programs_can_not_be_run_safely(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_sandbox(Settings()).state == OK
    assert check_sandbox(Settings(sandbox=SandboxSettings(tier="off"))).state == WARN
    without_bubblewrap(monkeypatch)
    found = check_sandbox(Settings())
    assert found.state == WARN
    assert "bubblewrap" in found.remedy
