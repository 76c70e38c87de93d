"""What a machine lacks is named once, and skips or fails the tests that need it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.needs import Need, how_to_install, require, summary

ROOT = Path(__file__).parents[2]


def a_need(*, package: str = "", command: str = "") -> Need:
    return Need("flux", lambda: "it is not installed", package=package, command=command)


def test_the_summary_counts_what_was_missing_and_says_how_to_install_it() -> None:
    reasons = ["no PostgreSQL: it is not installed"] * 3 + ["no bubblewrap: bwrap is not installed"] * 2
    assert summary([*reasons, "root may do everything"], what="test") == (
        "Skipped 6 tests: no PostgreSQL (3), no bubblewrap (2), other reasons (1)."
        " Install: apt-get install bubblewrap postgresql"
    )


def test_the_summary_names_no_command_where_none_helps() -> None:
    assert summary(["no Landlock: too old"], what="case") == "Skipped 1 case: no Landlock (1)."


def test_what_is_not_in_a_package_has_a_command_of_its_own() -> None:
    assert how_to_install([a_need(package="flux"), a_need(command="fetch it")]) == "apt-get install flux; fetch it"


def test_a_test_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"^no flux: it is not installed$"):
        require(a_need(package="flux"))


@pytest.mark.parametrize(("package", "command"), [("flux", ""), ("", "fetch it")])
def test_in_ci_nothing_that_can_be_installed_may_be_missing(
    monkeypatch: pytest.MonkeyPatch, package: str, command: str
) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no flux"):
        require(a_need(package=package, command=command))


def test_in_ci_what_no_package_brings_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.skip.Exception, match="no flux"):
        require(a_need())


def test_who_may_not_install_is_told_in_one_line_what_is_missing(tmp_path: Path) -> None:
    """No program is on the path, and no package index can be reached."""
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    command = [sys.executable, "-m", "tests.support.install"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Missing: ")]
    assert "openssl, git, curl," in line
    assert f"model weights (they are not at {tmp_path}/" in line
    assert line.endswith("python3 tests/support/weights.py")
