"""Daemons that keep running after the command that started them."""

from datetime import UTC, datetime
from pathlib import Path

from palyra.cli.daemon.process import is_kept_running, keep_running
from palyra.gateway.client.target import DaemonRecord
from palyra.home import Home


def a_daemon(pid: int) -> DaemonRecord:
    return DaemonRecord(pid=pid, address="", version="", started_at=datetime(2026, 1, 2, tzinfo=UTC))


def test_only_the_daemon_that_was_named_keeps_running(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert not is_kept_running(home, a_daemon(7))
    keep_running(home, a_daemon(7))
    assert (is_kept_running(home, a_daemon(7)), is_kept_running(home, a_daemon(8))) == (True, False)


def test_a_home_with_the_earlier_file_name_is_taken_over(tmp_path: Path) -> None:
    home = Home(tmp_path)
    earlier = tmp_path / "daemon.kept"
    earlier.write_text("7")
    assert (is_kept_running(home, a_daemon(7)), is_kept_running(home, a_daemon(8))) == (True, False)
    keep_running(home, a_daemon(8))
    assert (is_kept_running(home, a_daemon(7)), is_kept_running(home, a_daemon(8))) == (False, True)
    assert [path.name for path in tmp_path.iterdir()] == ["daemon.keep-running"]
