"""A daemon verifies its tapes by itself: the ends at the start, all of it a while later; and says what it found."""

import json
import os
import subprocess

import httpx
import psycopg
import pytest

from tests.e2e.conftest import NewDaemon
from tests.support.command import beyond_sandbox, run
from tests.support.daemon import Daemon, Json, until
from tests.support.sqlite_file import opened

CODE = "tape_unverified"


@pytest.fixture
def stopped(new_daemon: NewDaemon) -> Daemon:
    """A daemon that has worked, and was stopped in order: all it has recorded is anchored."""
    daemon = new_daemon().start()
    daemon.finished(daemon.send("Hello!", session={"key": "main"})["run_id"])
    daemon.stop()
    return daemon


def change(daemon: Daemon, statement: str) -> None:
    """Change the journal behind everybody's back."""
    if daemon.database_url is not None:
        with psycopg.connect(daemon.database_url, autocommit=True) as database:
            database.execute(statement.encode())
        return
    with opened(daemon.home.journal) as raw:
        raw.execute(statement)


def tapes(daemon: Daemon) -> Json:
    return next(part for part in daemon.get("/status")["parts"] if part["name"] == "tapes")


def command(daemon: Daemon, *args: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PALYRA_")}
    environ |= {"PALYRA_HOME": str(daemon.home.path)}
    if daemon.database_url is not None:
        environ["PALYRA_JOURNAL_DATABASE_URL"] = daemon.database_url
    return run(*args, environ=environ)


def assert_told(daemon: Daemon, where: str) -> None:
    assert where in tapes(daemon)["detail"]
    assert httpx.get(f"{daemon.address}/readyz", verify=False).json() == {"status": "ready", "warning": CODE}
    assert CODE in [line.get("code") for line in daemon.log()]
    up = command(daemon, "up")
    assert up.returncode == 0
    assert where in up.stderr
    assert where in command(daemon, "status").stdout.replace("\n", " ")
    checks = json.loads(command(daemon, "doctor", "--json").stdout)["checks"]
    assert any(check["name"] == "tapes" and check["state"] == "fail" and where in check["what"] for check in checks)


def test_a_tape_whose_end_was_cut_off_is_told_of_at_the_start(stopped: Daemon) -> None:
    change(stopped, "DELETE FROM tape WHERE tape_seq = (SELECT MAX(tape_seq) FROM heads)")

    stopped.start()

    assert tapes(stopped)["status"] == CODE
    # The walk of all tapes names the entry before the gap, the look at the ends the one that is missing.
    assert_told(stopped, f"session {stopped.sessions()[0]['session_id']}, entry")


def test_an_entry_that_was_changed_is_found_a_while_later(stopped: Daemon) -> None:
    change(stopped, "UPDATE tape SET content = '{}' WHERE tape_seq = 2")

    stopped.start()
    # It works all the same.
    stopped.finished(stopped.send("Hello!", session={"key": "another"})["run_id"])

    until(lambda: tapes(stopped)["status"] == CODE, seconds=60)
    assert_told(stopped, "entry 2: this entry was altered, inserted or moved")


def test_a_journal_that_holds_is_said_to_be_verified(stopped: Daemon) -> None:
    stopped.start()
    assert tapes(stopped) == {"name": "tapes", "status": "ok", "detail": "not verified yet"}

    until(lambda: tapes(stopped)["detail"].endswith("entries verified"), seconds=60)

    assert tapes(stopped)["status"] == "ok"
    assert httpx.get(f"{stopped.address}/readyz", verify=False).json() == {"status": "ready"}
    assert beyond_sandbox(command(stopped, "up").stderr) == ""
