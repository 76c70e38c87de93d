"""The journal is deleted, replaced or truncated while the daemon runs: it refuses, and says so everywhere."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import NewDaemon
from tests.support.daemon import Daemon, NotServing, Refused, until

CODE = "journal_replaced"


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    shutil.copyfile(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)


def truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("harm", [delete, replace])
def test_it_is_refused_and_told(new_sqlite_daemon: NewDaemon, harm: Callable[[Path], None], suffix: str) -> None:
    daemon = new_sqlite_daemon().start()
    sent = daemon.send("Hello!")
    daemon.finished(sent["run_id"])

    harm(daemon.home.path / f"journal.db{suffix}")

    assert_refused_and_told(daemon)
    # What it has open can still be read.
    assert daemon.tape(f"/runs/{sent['run_id']}")
    assert daemon.stop() == 0


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_file_that_was_truncated_is_noticed(new_sqlite_daemon: NewDaemon, suffix: str) -> None:
    daemon = new_sqlite_daemon().start()
    for _ in range(20):
        daemon.finished(daemon.send("Hello! " * 5_000)["run_id"])

    until(lambda: is_idle(daemon))
    truncate(daemon.home.path / f"journal.db{suffix}")

    assert_refused_and_told(daemon)
    assert daemon.alive
    daemon.signal(signal.SIGTERM)
    daemon.wait()


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_nothing_is_lost_with_the_log_or_its_index(new_sqlite_daemon: NewDaemon, suffix: str) -> None:
    """Not even if the daemon is killed after it has noticed."""
    daemon = new_sqlite_daemon().start()
    sent = [daemon.send(f"message {number}")["run_id"] for number in range(10)]
    for run_id in sent:
        daemon.finished(run_id)

    delete(daemon.home.path / f"journal.db{suffix}")
    until(lambda: refusal_of(daemon) == CODE)
    daemon.kill()

    daemon.start()
    assert {run["run_id"] for run in daemon.runs()} == set(sent)
    assert daemon.verify().ok


def test_a_journal_that_was_deleted_is_missed_at_the_next_start(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon().start()
    daemon.finished(daemon.send("Hello!")["run_id"])
    delete(daemon.home.journal)
    until(lambda: refusal_of(daemon) == CODE)

    assert daemon.stop() == 0

    assert not daemon.home.journal.exists()
    found = doctor(daemon)
    assert found["journal"]["state"] == "fail"
    assert "missing" in found["journal"]["what"]
    with pytest.raises(NotServing, match="journal_missing"):
        daemon.start()


def assert_refused_and_told(daemon: Daemon) -> None:
    with pytest.raises(Refused) as refused:
        daemon.send("Is it kept?")
    assert (refused.value.status, refused.value.code) == (503, CODE)
    assert str(daemon.home.journal) in refused.value.problem["detail"]
    until(lambda: daemon.get("/status")["storage"] == CODE)
    assert httpx.get(f"{daemon.address}/readyz", verify=False).status_code == 503
    assert CODE in [line.get("code") for line in daemon.log()]
    checks = doctor(daemon)
    assert checks["daemon"]["state"] == "fail"
    assert CODE in checks["daemon"]["what"]


def is_idle(daemon: Daemon) -> bool:
    """Tell whether only upkeep is planned: a commit that is under way fills up what was cut off."""
    status = daemon.get("/status")
    return bool(status["tasks"].get("pending", 0) <= 1 and status["runs"].get("in_progress", 0) == 0)


def refusal_of(daemon: Daemon) -> str | None:
    try:
        daemon.send("Is it kept?")
    except Refused as refused:
        return refused.code
    return None


def doctor(daemon: Daemon) -> dict[str, dict[str, str]]:
    command = [sys.executable, "-m", "palyra", "--home", str(daemon.home.path), "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, check=False)
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}
