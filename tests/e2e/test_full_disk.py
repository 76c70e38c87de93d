"""The disk under the journal is full: nothing that was answered is lost, reads work, and work goes on by itself.

The disk is a small one in memory, which takes the right to mount.
"""

import os
import subprocess
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from time import sleep

import httpx
import pytest

from palyra.core.run import RunStatus
from tests.e2e.conftest import NewDaemon
from tests.e2e.proof import Kept, answer_of, prove
from tests.support.daemon import Daemon, Json, NotServing, Refused, until

MEBIBYTE = 1024 * 1024
SCRIPT = {
    "rules": [
        {
            "turns": [
                [{"do": "text", "text": "Let me see."}, {"do": "call", "tool": "files.list"}],
                [{"do": "delay", "ms": 50}, {"do": "text", "text": "That was a long one."}],
            ]
        }
    ]
}
LONG = "All work and no play makes Jack a dull boy. " * 500
LEASE_SECONDS = 10.0


class SmallDisk:
    """A disk of which most is taken by a file that can be deleted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"
        self.take(leave=6 * MEBIBYTE)

    def take(self, *, leave: int = 0) -> None:
        """Leave so much room, and no more."""
        with self._ballast.open("ab", buffering=0) as file:
            while (room := self._room() - leave) > 0:
                file.write(bytes(min(room, MEBIBYTE)))

    def free(self) -> None:
        """Make room again."""
        self._ballast.unlink()

    def _room(self) -> int:
        state = os.statvfs(self.path)
        return state.f_bavail * state.f_frsize


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=40m,mode=700", "tmpfs", str(path)]
    try:
        subprocess.run(mounting, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small disk takes the right to mount: {getattr(error, 'stderr', None) or error}")
    try:
        yield SmallDisk(path)
    finally:
        # Lazily: the daemon is ended after this.
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_work_stops_on_a_full_disk_and_goes_on_when_there_is_room(
    new_sqlite_daemon: NewDaemon, disk: SmallDisk
) -> None:
    daemon = new_sqlite_daemon(SCRIPT, home=disk.path / "home").start()
    accepted = send_until_refused(daemon)
    # What is too little for a message may be enough for something else, and then work goes on for a while.
    disk.take()
    until(lambda: daemon.get("/status")["storage"] == "storage_full")

    # Reads work, and show all that was answered.
    assert httpx.get(f"{daemon.address}/readyz").status_code == 503
    assert {run["run_id"] for run in daemon.runs()} == set(accepted)
    for session in daemon.sessions():
        assert daemon.tape(f"/sessions/{session['session_id']}")
    # It stays so for longer than a lease lasts.
    sleep(LEASE_SECONDS + 1)
    for _ in range(5):
        with pytest.raises(Refused) as refused:
            daemon.send(LONG)
        check_refusal(refused.value)

    disk.free()
    later = daemon.surely(lambda: daemon.send("And now?", key="later"))
    for run_id in (*accepted, later["run_id"]):
        daemon.finished(run_id, seconds=60)
    assert httpx.get(f"{daemon.address}/readyz").status_code == 200
    # Whoever waited for its next try is through by now, and none of them has harmed the others.
    sleep(5)
    assert daemon.alive, daemon.output()
    check_kept(prove(daemon), {**accepted, later["run_id"]: "And now?"})
    assert codes_logged(daemon) == ["storage_full"]


def test_a_kill_on_a_full_disk_loses_nothing(new_sqlite_daemon: NewDaemon, disk: SmallDisk) -> None:
    daemon = new_sqlite_daemon(SCRIPT, home=disk.path / "home").start()
    accepted = send_until_refused(daemon)
    disk.take()
    daemon.kill()

    with pytest.raises(NotServing, match="storage_full") as failed:
        daemon.start()
    assert failed.value.exit_code == 1
    assert "Traceback" not in failed.value.output

    disk.free()
    daemon.start()
    for run_id in accepted:
        daemon.finished(run_id, seconds=60)
    check_kept(prove(daemon), accepted)


def test_each_time_the_disk_is_full_is_said_once(new_sqlite_daemon: NewDaemon, disk: SmallDisk) -> None:
    daemon = new_sqlite_daemon(SCRIPT, home=disk.path / "home").start()
    accepted: dict[str, str] = {}
    for _ in range(2):
        accepted |= send_until_refused(daemon)
        disk.take()
        until(lambda: daemon.get("/status")["storage"] == "storage_full")
        disk.free()
        for run_id in accepted:
            daemon.finished(run_id, seconds=60)
        until(lambda: daemon.get("/status")["storage"] == "ok")
        until(lambda: told(daemon)[-1] == "the journal can be written again; work goes on")
        disk.take(leave=MEBIBYTE)

    assert [line == told(daemon)[1] for line in told(daemon)] == [False, True, False, True]
    assert codes_logged(daemon) == ["storage_full", "storage_full"]
    check_kept(prove(daemon), accepted)


def send_until_refused(daemon: Daemon) -> dict[str, str]:
    """Send long messages to several sessions until the disk is full; return what was accepted, by run."""
    accepted: dict[str, str] = {}
    # Some queue behind one another, some have a session of their own.
    places = cycle([{"key": "one"}, {"key": "two"}, {}])
    for number, session in zip(range(1000), places, strict=False):
        text = f"{number}: {LONG}"
        try:
            accepted[daemon.send(text, session=session)["run_id"]] = text
        except Refused as refused:
            if refused.code != "queue_full":
                check_refusal(refused)
                return accepted
    raise AssertionError("the disk is too large")


def check_refusal(refused: Refused) -> None:
    assert (refused.status, refused.code) == (503, "storage_full")
    assert refused.problem["retry_after"] > 0
    assert "Free some space" in refused.problem["detail"]


def check_kept(kept: Kept, accepted: dict[str, str]) -> None:
    assert {run.run_id for run in kept.runs} == set(accepted)
    for run in kept.runs:
        lines = kept.tape_of(run)
        assert lines[0].event["text"] == accepted[run.run_id]
        assert run.status is RunStatus.DONE
        assert answer_of(lines) == "That was a long one."


def codes_logged(daemon: Daemon) -> list[Json]:
    return [line["code"] for line in daemon.log() if "code" in line]


def told(daemon: Daemon) -> list[str]:
    return [line["message"] for line in daemon.log() if line["logger"] == "palyra.runs.worker"]
