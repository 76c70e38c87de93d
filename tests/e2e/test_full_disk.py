"""The disk under the journal is full: nothing that was answered is lost, reads work, and work goes on by itself.

The disk is a small one in memory, which takes the right to mount.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import Any

import apsw
import grpc
import httpx
import psycopg
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from psycopg import sql

from palyra.core.run.state import RunStatus
from palyra.gateway.grpc.pb import gateway_pb2
from palyra.journal.engines import sqlite
from palyra.journal.engines.base import Connection
from palyra.journal.engines.sqlite import SqliteWriter
from tests.e2e.conftest import NewDaemon
from tests.e2e.proof import Kept, answer_of, prove
from tests.support.daemon import Daemon, Json, NotServing, Refused, until
from tests.support.disk import MEBIBYTE, SmallDisk, small_disk
from tests.support.needs import POSTGRES, require
from tests.support.postgres import new_schema, own_postgres

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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    with small_disk(path, mode="700") as disk:
        yield disk


@pytest.fixture
def small_database() -> Iterator[tuple[str, SmallDisk]]:
    """A schema whose tables lie on a small disk of their own, while the server's other files have room.

    The server is for this test alone: one whose tablespace is taken away may end at its next checkpoint.
    """
    require(POSTGRES)
    with TemporaryDirectory(prefix="palyra-disk-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # the server has a user of its own
        with small_disk(folder, mode="711") as disk, own_postgres() as server:
            space = f"small_{secrets.token_hex(4)}"
            place = folder / "tables"
            place.mkdir()
            if os.geteuid() == 0:
                shutil.chown(place, "postgres")
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute(
                    sql.SQL("CREATE TABLESPACE {} LOCATION {}").format(sql.Identifier(space), str(place))
                )
            yield f"{new_schema(server.url)}%20-cdefault_tablespace%3D{space}", disk


def test_work_stops_on_a_full_disk_and_goes_on_when_there_is_room(
    new_sqlite_daemon: NewDaemon, disk: SmallDisk
) -> None:
    daemon = new_sqlite_daemon(SCRIPT, home=disk.path / "home").start()
    accepted = send_until_refused(daemon)
    # What is too little for a message may be enough for something else, and then work goes on for a while.
    disk.take()
    until(lambda: daemon.get("/status")["storage"] == "storage_full")

    # Reads work, and show all that was answered.
    assert httpx.get(f"{daemon.address}/readyz", verify=False).status_code == 503
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
        daemon.finished(run_id)
    until(lambda: httpx.get(f"{daemon.address}/readyz", verify=False).status_code == 200)
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
    until(lambda: told(daemon)[-1] == "the journal is writable again; work continues")
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
    until(lambda: seen_from_outside(daemon) == WELL)
    for run_id in accepted:
        daemon.finished(run_id)
    check_kept(prove(daemon), accepted)
    until(lambda: told(daemon)[-1] == "the journal is writable again; work continues")
    assert codes_logged(daemon) == ["storage_full"]


@pytest.mark.parametrize("stop", [Daemon.kill, Daemon.stop])
def test_a_restart_on_a_full_disk_serves_reads_and_goes_on_when_there_is_room(
    new_sqlite_daemon: NewDaemon, disk: SmallDisk, stop: Callable[[Daemon], object]
) -> None:
    daemon = new_sqlite_daemon(SCRIPT, home=disk.path / "home").start()
    accepted = send_until_refused(daemon)
    disk.take()
    stop(daemon)
    disk.take()

    daemon.start()
    until(lambda: seen_from_outside(daemon) == FULL)
    check_reads(daemon, accepted)
    with pytest.raises(Refused) as refused:
        daemon.send(LONG)
    check_refusal(refused.value)
    shown = palyra(daemon, "status")
    assert "storage_full" in shown
    assert "Free some space" in shown
    # Another restart changes nothing.
    stop(daemon)
    disk.take()
    daemon.start()
    check_reads(daemon, accepted)

    disk.free()
    until(lambda: seen_from_outside(daemon) == WELL)
    for run_id in accepted:
        daemon.finished(run_id)
    check_kept(prove(daemon), accepted)


def test_a_start_that_cannot_be_recorded_is_completed_when_there_is_room(
    new_sqlite_daemon: NewDaemon, disk: SmallDisk
) -> None:
    """The start has leases to end, and the write-ahead log has no room left from before."""
    slow = {"default": [{"do": "delay", "ms": 3_600_000}]}
    daemon = new_sqlite_daemon(slow, home=disk.path / "home").start()
    run_id = daemon.send("Hello.")["run_id"]
    until(lambda: "model_turn_started" in [line.kind for line in daemon.tape(f"/runs/{run_id}")])
    with closing(sqlite.open_for_writing(daemon.home.journal)) as raw:
        raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    daemon.kill()
    disk.take()
    daemon.script.write_text(json.dumps({"default": [{"do": "text", "text": "That was a long one."}]}))

    daemon.start()
    check_reads(daemon, {run_id: "Hello."})
    disk.free()
    daemon.finished(run_id)
    check_kept(prove(daemon), {run_id: "Hello."})
    until(lambda: "there is disk space again; the start is complete" in [line["message"] for line in daemon.log()])
    assert any(line["message"].startswith("the start is not complete") for line in daemon.log())


def test_a_disk_that_others_fill_while_the_daemon_is_down_does_not_keep_it_from_serving_reads(
    new_sqlite_daemon: NewDaemon, disk: SmallDisk
) -> None:
    daemon = new_sqlite_daemon(SCRIPT, home=disk.path / "home").start()
    run_id = daemon.send("Hello.")["run_id"]
    daemon.finished(run_id)
    assert daemon.stop() == 0
    disk.take()

    daemon.start()
    check_reads(daemon, {run_id: "Hello."})
    with pytest.raises(Refused) as refused:
        daemon.send(LONG)
    check_refusal(refused.value)
    assert seen_from_outside(daemon) == FULL
    assert daemon.stop() == 0
    disk.take()
    daemon.start()
    check_reads(daemon, {run_id: "Hello."})
    disk.free()
    until(lambda: seen_from_outside(daemon) == WELL)
    later = daemon.send("And now?")["run_id"]
    daemon.finished(later)
    check_kept(prove(daemon), {run_id: "Hello.", later: "And now?"})


def test_a_migration_waits_for_space_and_says_so(new_sqlite_daemon: NewDaemon, disk: SmallDisk) -> None:
    daemon = new_sqlite_daemon(SCRIPT, home=disk.path / "home").start()
    run_id = daemon.send("Hello.")["run_id"]
    daemon.finished(run_id)
    with closing(sqlite.open_for_writing(daemon.home.journal)) as raw:
        SqliteWriter(raw).write(undo_last_migration)
    daemon.kill()
    disk.take()

    daemon.start()
    ready = httpx.get(f"{daemon.address}/readyz", verify=False)
    assert (ready.status_code, ready.json()) == (503, {"status": "not_ready", "code": "storage_full"})
    assert httpx.get(f"{daemon.address}/healthz", verify=False).status_code == 200
    with pytest.raises(Refused) as refused:
        daemon.runs()
    assert (refused.value.status, refused.value.code) == (503, "storage_full")
    assert "must be migrated" in refused.value.problem["detail"]
    shown = palyra(daemon, "status")
    assert "must be migrated" in shown
    assert "must be migrated" in palyra(daemon, "doctor")

    disk.free()
    # Whoever asks while the one server takes over from the other may have to ask again.
    daemon.surely(lambda: daemon.get("/status"))
    until(lambda: seen_from_outside(daemon) == WELL)
    later = daemon.send("And now?")["run_id"]
    daemon.finished(later)
    check_kept(prove(daemon), {run_id: "Hello.", later: "And now?"})
    messages = [line["message"] for line in daemon.log()]
    assert len([message for message in messages if "the start waits" in message]) == 1
    assert "there is disk space again; the start continues" in messages


def test_a_first_start_on_a_full_disk_says_why_it_ends(new_sqlite_daemon: NewDaemon, disk: SmallDisk) -> None:
    daemon = new_sqlite_daemon(SCRIPT, home=disk.path / "home")
    daemon.home.path.mkdir(mode=0o700)
    disk.take()
    with pytest.raises(NotServing, match="storage_full") as failed:
        daemon.start()
    assert failed.value.exit_code == 1
    assert "Traceback" not in failed.value.output
    disk.free()
    daemon.start()
    assert daemon.finished(daemon.send("Hello.")["run_id"])["status"] == "done"


def test_a_restart_on_postgres_without_space_serves_reads(
    new_sqlite_daemon: NewDaemon, small_database: tuple[str, SmallDisk]
) -> None:
    url, disk = small_database
    daemon = new_sqlite_daemon(SCRIPT, journal_database_url=url).start()
    daemon.database_url = url
    accepted = send_until_refused(daemon)
    daemon.kill()
    disk.take()

    daemon.start()
    check_reads(daemon, accepted)
    disk.free()
    until(lambda: seen_from_outside(daemon) == WELL)
    for run_id in accepted:
        daemon.finished(run_id)
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
            daemon.finished(run_id)
        until(lambda: daemon.get("/status")["storage"] == "ok")
        until(lambda: told(daemon)[-1] == "the journal is writable again; work continues")
        disk.take(leave=MEBIBYTE)

    assert [line == told(daemon)[1] for line in told(daemon)] == [False, True, False, True]
    assert codes_logged(daemon) == ["storage_full", "storage_full"]
    check_kept(prove(daemon), accepted)


FULL = ({"status": "not_ready", "code": "storage_full"}, ("not_ready", "storage_full"), "NOT_SERVING", "0", "1")
WELL = ({"status": "ready"}, ("ok", ""), "SERVING", "1", "0")


def seen_from_outside(daemon: Daemon) -> tuple[Json, tuple[str, str], str, str, str]:
    """Return the answers of the readiness endpoint, GetHealth, the standard health service, and both gauges."""
    ready = httpx.get(f"{daemon.address}/readyz", verify=False).json()
    with grpc.insecure_channel(json.loads(daemon.home.daemon.read_text())["grpc"]) as channel:
        get_health = channel.unary_unary(
            "/palyra.v1.GatewayService/GetHealth",
            request_serializer=gateway_pb2.GetHealthRequest.SerializeToString,
            response_deserializer=gateway_pb2.GetHealthResponse.FromString,
        )
        health = get_health(gateway_pb2.GetHealthRequest(), timeout=60)
        stub: Any = health_pb2_grpc.HealthStub(channel)
        standard = stub.Check(health_pb2.HealthCheckRequest(), timeout=60).status
    metrics = httpx.get(
        f"{daemon.address}/metrics", headers={"authorization": f"Bearer {daemon.token}"}, verify=False
    ).text
    gauges = dict(line.split() for line in metrics.splitlines() if line.startswith("palyra_"))
    return (
        ready,
        (health.status, health.storage),
        health_pb2.HealthCheckResponse.ServingStatus.Name(standard),
        gauges["palyra_journal_writable"],
        gauges["palyra_storage_full"],
    )


def watched_health(daemon: Daemon) -> Iterator[str]:
    """Yield the states of the standard health service as they change."""
    with grpc.insecure_channel(json.loads(daemon.home.daemon.read_text())["grpc"]) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for state in stub.Watch(health_pb2.HealthCheckRequest(), timeout=120):
            yield health_pb2.HealthCheckResponse.ServingStatus.Name(state.status)


def palyra(daemon: Daemon, *words: str) -> str:
    """Run a command on the daemon's home and return what it prints, on one line."""
    command = [sys.executable, "-P", "-m", "palyra", "--home", str(daemon.home.path), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
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
            if refused.code != "run_queue_full":
                check_refusal(refused)
                return accepted
    raise AssertionError("the disk is too large")


def check_reads(daemon: Daemon, accepted: dict[str, str]) -> None:
    """Check that all that was answered can be read."""
    assert {run["run_id"] for run in daemon.runs()} == set(accepted)
    for session in daemon.sessions():
        assert daemon.tape(f"/sessions/{session['session_id']}")


def undo_last_migration(conn: Connection) -> None:
    """Have the journal look as the version before this one left it: its last step can be taken again."""
    conn.execute("ALTER TABLE runs RENAME COLUMN queue_position TO place")
    conn.execute("ALTER TABLE mcp_pins RENAME COLUMN server_digest TO place")
    conn.execute("ALTER TABLE approvals RENAME COLUMN requested_ms TO asked_ms")
    conn.execute("DROP INDEX stops_in_force")
    conn.execute("CREATE INDEX stops_standing ON stops (stopped_ms) WHERE lifted_ms IS NULL")
    conn.execute("DELETE FROM migrations WHERE number = (SELECT MAX(number) FROM migrations)")


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
    return [line["message"] for line in daemon.log() if line["logger"] == "palyra.journal.storage_health"]


@pytest.mark.parametrize(
    "words",
    [
        ["sessions", "export", "last", "-o", "{disk}/session.md"],
        ["journal", "export", "-o", "{disk}/journal.ndjson"],
        ["backup", "create", "-o", "{disk}/backup"],
        ["doctor", "--bundle", "{disk}/bundle.tar.gz"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_that_writes_to_a_full_disk_says_so_and_leaves_nothing_behind(
    new_sqlite_daemon: NewDaemon, disk: SmallDisk, words: list[str]
) -> None:
    daemon = new_sqlite_daemon().start()
    daemon.finished(daemon.send("Hello.")["run_id"])
    disk.take()
    before = set(disk.path.iterdir())
    shown = palyra(daemon, *(word.format(disk=disk.path) for word in words))
    assert "is full. Nothing was written. [file_not_writable]" in shown
    assert set(disk.path.iterdir()) == before
