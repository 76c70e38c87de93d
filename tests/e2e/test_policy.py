"""Policies of the person's own under a running daemon: taken over, refused, and refused at the start."""

import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import NewDaemon
from tests.support.command import command
from tests.support.daemon import Daemon, until

NO_CLOCK = '@id("no-clock") @reason("Time flies.") forbid (principal, action, resource == Tool::"time.now");\n'


@pytest.fixture
def daemon(new_sqlite_daemon: NewDaemon) -> Daemon:
    return new_sqlite_daemon().start()


def write(daemon: Daemon, text: str) -> Path:
    daemon.home.policy.mkdir(exist_ok=True)
    file = daemon.home.policy / "mine.cedar"
    file.write_text(text)
    return file


def test_a_policy_is_taken_over_without_a_restart(daemon: Daemon) -> None:
    write(daemon, NO_CLOCK)
    assert command(daemon.home.path, "config", "reload").stdout == "Applied: policy.\n"
    assert command(daemon.home.path, "config", "reload").stdout == "No changes.\n"


@pytest.mark.parametrize("way", ["command", "signal"])
def test_a_wrong_policy_changes_nothing_and_is_told_with_its_place(daemon: Daemon, way: str) -> None:
    place = f"{write(daemon, '// mine' + chr(10) + 'permt (principal, action, resource);')}:2:1:"
    if way == "command":
        refused = command(daemon.home.path, "config", "reload")
        assert refused.returncode == 2
        assert place in refused.stderr
    else:
        daemon.signal(signal.SIGHUP)
        until(lambda: any(place in line["message"] for line in daemon.log()))
    assert daemon.alive
    write(daemon, NO_CLOCK)
    assert command(daemon.home.path, "config", "reload").stdout == "Applied: policy.\n"


def test_a_daemon_does_not_start_with_a_wrong_policy(daemon: Daemon) -> None:
    daemon.stop()
    place = f"{write(daemon, 'permt (principal, action, resource);')}:1:1:"
    refused = command(daemon.home.path, "up")
    assert refused.returncode != 0
    assert place in refused.stderr
