"""Settings that change under a running daemon, by command and by signal."""

import json
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import NewDaemon
from tests.support.command import command
from tests.support.daemon import Daemon, until


@pytest.fixture
def daemon(new_sqlite_daemon: NewDaemon) -> Daemon:
    """A daemon whose home has a file of settings."""
    made = new_sqlite_daemon()
    made.home.path.mkdir(mode=0o700)
    made.home.config.write_text("[runs]\nmax_queued_inputs = 4\n")
    return made.start()


def in_force(daemon: Daemon) -> Any:
    """Return the settings that the daemon works with."""
    headers = {"authorization": f"Bearer {daemon.token}"}
    return httpx.get(f"{daemon.address}/admin/v1/config", headers=headers, verify=False).json()["values"]


@pytest.mark.parametrize("way", ["command", "signal"])
def test_a_reload_changes_what_it_can_under_a_running_daemon(daemon: Daemon, way: str) -> None:
    before = daemon.get("/status")["settings_hash"]
    daemon.home.config.write_text("[runs]\nmax_queued_inputs = 5\nmax_concurrent = 7\n")
    if way == "command":
        done = json.loads(command(daemon.home.path, "config", "reload", "--json").stdout)
        assert (done["live"], done["restart"]) == (["runs.max_queued_inputs"], ["runs.max_concurrent"])
    else:
        daemon.signal(signal.SIGHUP)
    until(lambda: in_force(daemon)["runs.max_queued_inputs"] == 5)

    assert in_force(daemon)["runs.max_concurrent"] == 64
    assert daemon.get("/status")["settings_hash"] != before


def test_what_was_reloaded_holds_for_the_next_message(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon({"default": [{"do": "endless", "text": "on ", "delay_ms": 20}]}).start()
    session = {"key": "one"}
    for _ in range(2):
        daemon.send("Hello", session=session)
    daemon.home.config.write_text("[runs]\nmax_queued_inputs = 1\n")

    assert command(daemon.home.path, "config", "reload").stdout == "Applied: runs.max_queued_inputs.\n"

    refused = daemon.ask("POST", "/runs", body={"text": "Hello", "session": session})
    assert (refused.status_code, refused.json()["code"]) == (429, "run_queue_full")


def test_a_reload_of_wrong_settings_leaves_the_daemon_as_it_is(daemon: Daemon) -> None:
    before = daemon.get("/status")["settings_hash"]
    daemon.home.config.write_text("[runs]\nmax_queued_inputs = 0\n")

    daemon.signal(signal.SIGHUP)

    until(lambda: any("queued_inputs is not valid" in line["message"] for line in daemon.log()))
    assert daemon.alive
    assert daemon.get("/status")["settings_hash"] == before


def test_a_reload_to_a_model_that_no_start_would_take_leaves_the_daemon_as_it_is(tmp_path: Path) -> None:
    with closing(Daemon(tmp_path / "home").start()) as daemon:
        _refuses_the_model(daemon)


def _refuses_the_model(daemon: Daemon) -> None:
    before = daemon.get("/status")["settings_hash"]
    daemon.home.config.write_text('[model]\nprovider = "scripted"\nscript = "/nowhere.json"\n')

    done = command(daemon.home.path, "config", "reload")

    assert (done.returncode != 0, "/nowhere.json" in done.stderr) == (True, True)
    assert daemon.get("/status")["settings_hash"] == before
    assert daemon.finished(daemon.send("Hello")["run_id"])["status"] == "done"
