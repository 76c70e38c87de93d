"""The disk under the journal is full: nothing that was answered is lost, reads work, and work goes on by itself.

The disk is a small one in memory, which takes the right to mount.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import Any

import grpc
import httpx
import psycopg
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from psycopg import sql

from palyra.core.run import RunStatus
from palyra.gateway.grpc.pb import gateway_pb2
from tests.e2e.conftest import NewDaemon
from tests.e2e.proof import Kept, answer_of, prove
from tests.support.daemon import Daemon, Json, NotServing, Refused, until
from tests.support.postgres import new_schema

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


@contextmanager
def small_disk(path: Path, *, mode: str) -> Iterator[SmallDisk]:
    """Mount a small disk; skip the test where nothing may be mounted."""
    mounting = ["mount", "-t", "tmpfs", "-o", f"size=40m,mode={mode}", "tmpfs", str(path)]
    try:
        subprocess.run(mounting, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small disk takes the right to mount: {getattr(error, 'stderr', None) or error}")
    try:
        yield SmallDisk(path)
    finally:
        # Lazily: the daemon is ended after this.
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    with small_disk(path, mode="700") as disk:
        yield disk


@pytest.fixture
def small_database(postgres_server: str) -> Iterator[tuple[str, SmallDisk]]:
    """A schema whose tables lie on a small disk of their own, while the server's other files have room."""
    with TemporaryDirectory(prefix="palyra-disk-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # the server has a user of its own
        with small_disk(folder, mode="711") as disk:
            space = f"small_{secrets.token_hex(4)}"
            place = folder / "tables"
            place.mkdir()
            if os.geteuid() == 0:
                shutil.chown(place, "postgres")
            with psycopg.connect(postgres_server, autocommit=True) as connection:
                connection.execute(
                    sql.SQL("CREATE TABLESPACE {} LOCATION {}").format(sql.Identifier(space), str(place))
                )
            yield f"{new_schema(postgres_server)}%20-cdefault_tablespace%3D{space}", disk


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
    until(lambda: httpx.get(f"{daemon.address}/readyz").status_code == 200)
    # Whoever waited for its next try is through by now, and none of them has harmed the others.
    sleep(5)
    assert daemon.alive, daemon.output()
    check_kept(prove(daemon), {**accepted, later["run_id"]: "And now?"})
    assert codes_logged(daemon) == ["storage_full"]


def test_a_daemon_without_work_shows_that_a_message_was_refused_for_want_of_space(
    new_sqlite_daemon: NewDaemon, disk: SmallDisk
) -> None:
    """Nothing but the refused message writes: there is no run that could meet the full disk."""
    daemon = new_sqlite_daemon(SCRIPT, home=disk.path / "home").start()
    states = watched_health(daemon)
    assert next(states) == "SERVING"
    disk.take()
    with pytest.raises(Refused) as refused:
        daemon.send(LONG)
    check_refusal(refused.value)

    assert seen_from_outside(daemon) == FULL
    assert next(states) == "NOT_SERVING"
    journal = next(part for part in daemon.get("/status")["parts"] if part["name"] == "journal")
    assert journal["status"] == "storage_full"
    assert "Free some space" in journal["detail"]
    shown = palyra(daemon, "status")
    assert "storage_full" in shown
    assert "Free some space" in shown
    shown = palyra(daemon, "doctor")
    assert "storage_full" in shown
    assert "Free some space" in shown

    disk.free()
    until(lambda: seen_from_outside(daemon) == WELL)
    assert next(states) == "SERVING"
    assert daemon.finished(daemon.send("And now?")["run_id"])["status"] == "done"
    until(lambda: told(daemon)[-1] == "the journal can be written again; work goes on")
    assert codes_logged(daemon) == ["storage_full"]
    assert not [line for line in daemon.log() if line["level"] == "error" and "code" not in line]


def test_a_full_disk_under_postgres_is_shown_and_work_goes_on_when_there_is_room(
    new_sqlite_daemon: NewDaemon, small_database: tuple[str, SmallDisk]
) -> None:
    url, disk = small_database
    daemon = new_sqlite_daemon(SCRIPT, journal_database_url=url).start()
    daemon.database_url = url
    accepted = send_until_refused(daemon)
    assert seen_from_outside(daemon) == FULL
    assert {run["run_id"] for run in daemon.runs()} == set(accepted)

    disk.free()
    until(lambda: seen_from_outside(daemon) == WELL, seconds=60)
    for run_id in accepted:
        daemon.finished(run_id, seconds=60)
    check_kept(prove(daemon), accepted)
    until(lambda: told(daemon)[-1] == "the journal can be written again; work goes on", seconds=60)
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


FULL = ({"status": "not_ready", "code": "storage_full"}, ("not_ready", "storage_full"), "NOT_SERVING", "0", "1")
WELL = ({"status": "ready"}, ("ok", ""), "SERVING", "1", "0")


def seen_from_outside(daemon: Daemon) -> tuple[Json, tuple[str, str], str, str, str]:
    """Return the answers of the readiness endpoint, GetHealth, the standard health service, and both gauges."""
    ready = httpx.get(f"{daemon.address}/readyz").json()
    with grpc.insecure_channel(json.loads(daemon.home.daemon.read_text())["grpc"]) as channel:
        get_health = channel.unary_unary(
            "/palyra.v1.GatewayService/GetHealth",
            request_serializer=gateway_pb2.GetHealthRequest.SerializeToString,
            response_deserializer=gateway_pb2.GetHealthResponse.FromString,
        )
        health = get_health(gateway_pb2.GetHealthRequest(), timeout=5)
        stub: Any = health_pb2_grpc.HealthStub(channel)
        standard = stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status
    metrics = httpx.get(f"{daemon.address}/metrics", headers={"authorization": f"Bearer {daemon.token}"}).text
    gauges = dict(line.split() for line in metrics.splitlines() if line.startswith("palyra_storage_"))
    return (
        ready,
        (health.status, health.storage),
        health_pb2.HealthCheckResponse.ServingStatus.Name(standard),
        gauges["palyra_storage_ok"],
        gauges["palyra_storage_full"],
    )


def watched_health(daemon: Daemon) -> Iterator[str]:
    """Yield the states of the standard health service as they change."""
    with grpc.insecure_channel(json.loads(daemon.home.daemon.read_text())["grpc"]) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for state in stub.Watch(health_pb2.HealthCheckRequest(), timeout=40):
            yield health_pb2.HealthCheckResponse.ServingStatus.Name(state.status)


def palyra(daemon: Daemon, *words: str) -> str:
    """Run a command on the daemon's home and return what it prints, on one line."""
    command = [sys.executable, "-P", "-m", "palyra", "--home", str(daemon.home.path), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return " ".join(f"{done.stdout} {done.stderr}".split())


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
    return [line["message"] for line in daemon.log() if line["logger"] == "palyra.journal.storage"]
