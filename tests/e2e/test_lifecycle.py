"""Starting and stopping: what is in the way is said in one line, and nothing is harmed by the attempt."""

import hashlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import NewDaemon
from tests.support.daemon import Daemon, Json, NotServing, until
from tests.support.needs import skip

SECRET = "correct-horse-battery-staple"


def test_everything_of_the_home_is_for_its_owner_only(new_daemon: NewDaemon) -> None:
    daemon = new_daemon()
    before = os.umask(0)
    try:
        daemon.start()
    finally:
        os.umask(before)
    daemon.finished(daemon.send("Hello.")["run_id"])

    home = daemon.home
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
    for path in home.path.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert {home.token, home.key, home.log, home.lock, home.daemon} <= set(home.path.iterdir())


def test_the_token_stays_the_same(new_daemon: NewDaemon) -> None:
    daemon = new_daemon().start()
    token = daemon.token
    daemon.stop()
    daemon.start()
    assert daemon.token == token
    assert daemon.get("/status")["pid"] == daemon.pid


def test_a_home_has_one_daemon(new_daemon: NewDaemon) -> None:
    daemon = new_daemon().start()
    second = Daemon(daemon.home.path, output=daemon.home.path.parent / "second", database_url=daemon.database_url)

    with pytest.raises(NotServing) as failed:
        second.start()

    check_failure(failed.value, "daemon_running", str(daemon.pid), daemon.address, "palyra down")
    assert daemon.get("/status")["pid"] == daemon.pid
    assert json.loads(daemon.home.daemon.read_text())["pid"] == daemon.pid


def test_what_a_killed_daemon_said_of_itself_is_no_hindrance(new_daemon: NewDaemon) -> None:
    daemon = new_daemon().start()
    daemon.kill()
    stale = json.loads(daemon.home.daemon.read_text())

    daemon.start()
    fresh = json.loads(daemon.home.daemon.read_text())
    assert fresh["pid"] == daemon.pid != stale["pid"]
    assert fresh["address"] == daemon.address
    daemon.stop()
    assert not daemon.home.daemon.exists()


@pytest.mark.parametrize(("door", "code"), [("http", "port_in_use"), ("grpc", "port_in_use")])
def test_a_port_that_is_set_must_be_free(new_sqlite_daemon: NewDaemon, door: str, code: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon = new_sqlite_daemon(**{f"{door}_port": port})
        with pytest.raises(NotServing) as failed:
            daemon.start()
    check_failure(failed.value, code, str(port), f"[{door}]")
    daemon.start()
    assert json.loads(daemon.home.daemon.read_text())["address" if door == "http" else "grpc"].endswith(f":{port}")


def test_without_a_port_any_free_one_is_taken(new_sqlite_daemon: NewDaemon) -> None:
    first, second = (new_sqlite_daemon(http_port=None).start() for _ in range(2))
    assert first.address != second.address
    assert first.get("/status")["pid"] == first.pid
    assert second.get("/status")["pid"] == second.pid


def test_a_journal_file_of_a_newer_version_is_left_alone(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon().start()
    daemon.finished(daemon.send("Hello.")["run_id"])
    daemon.stop()
    with closing(sqlite3.connect(daemon.home.journal)) as file, file:
        file.execute("INSERT INTO migrations (number, name, applied_ms) VALUES (9999, 'future', 0)")
    before = fingerprint(daemon.home.path)

    with pytest.raises(NotServing) as failed:
        daemon.start()

    check_failure(failed.value, "schema_version_unsupported", "9999", "Nothing was changed")
    assert fingerprint(daemon.home.path) == before


def test_a_database_of_a_newer_version_is_left_alone(new_sqlite_daemon: NewDaemon, postgres_url: str) -> None:
    daemon = new_sqlite_daemon(journal_database_url=postgres_url).start()
    daemon.stop()
    with psycopg.connect(postgres_url) as connection:
        connection.execute("INSERT INTO migrations (number, name, applied_ms) VALUES (9999, 'future', 0)")
        before = connection.execute("SELECT xmin, ctid, * FROM meta ORDER BY 3").fetchall()

    with pytest.raises(NotServing) as failed:
        daemon.start()

    check_failure(failed.value, "schema_version_unsupported", "9999", "Nothing was changed")
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT xmin, ctid, * FROM meta ORDER BY 3").fetchall() == before


@pytest.mark.parametrize("damage", ["garbage", "overwritten"])
def test_a_damaged_journal_is_said_and_left_alone(new_sqlite_daemon: NewDaemon, damage: str) -> None:
    daemon = new_sqlite_daemon().start()
    daemon.finished(daemon.send("Hello.")["run_id"])
    daemon.stop()
    content = bytearray(daemon.home.journal.read_bytes())
    if damage == "garbage":
        content[:] = os.urandom(len(content))
    else:
        # The page that says which tables there are.
        content[100:4096] = os.urandom(3996)
    daemon.home.journal.write_bytes(content)
    before = fingerprint(daemon.home.path)

    with pytest.raises(NotServing) as failed:
        daemon.start()

    check_failure(failed.value, "journal_damaged", "backup")
    assert fingerprint(daemon.home.path) == before


def test_a_damaged_signing_key_is_said(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon().start()
    daemon.stop()
    daemon.home.key.write_text("nonsense")

    with pytest.raises(NotServing) as failed:
        daemon.start()

    check_failure(failed.value, "journal_key_not_readable", "backup")
    assert daemon.home.key.read_text() == "nonsense"


@pytest.mark.parametrize("frozen", [False, True])
def test_a_second_daemon_on_the_same_database_refuses_to_start(
    new_sqlite_daemon: NewDaemon, postgres_url: str, tmp_path: Path, frozen: bool
) -> None:
    first = new_sqlite_daemon(journal_database_url=postgres_url).start()
    first.finished(first.send("hello")["run_id"])
    if frozen:
        first.signal(signal.SIGSTOP)
    second = new_sqlite_daemon(journal_database_url=postgres_url)
    try:
        with pytest.raises(NotServing) as refused:
            second.start()
        check_failure(refused.value, "database_in_use", "stop the other")
    finally:
        first.signal(signal.SIGCONT)
    assert first.finished(first.send("hello again")["run_id"])["status"] == "done"
    first.kill()
    # The key is the journal's: a home that takes over has it from a backup.
    shutil.copy(first.home.key, second.home.key)
    until(lambda: _starts(second))
    assert second.finished(second.send("hello")["run_id"])["status"] == "done"


def _starts(daemon: Daemon) -> bool:
    """Start it, unless the database has not noticed yet that the other one is gone."""
    try:
        daemon.start()
    except NotServing as refused:
        if "database_in_use" not in refused.output:
            raise
        return False
    return True


def test_a_lost_signing_key_is_not_replaced(new_daemon: NewDaemon) -> None:
    daemon = new_daemon().start()
    daemon.finished(daemon.send("hello")["run_id"])
    daemon.stop()
    kept = daemon.home.key.read_text()
    daemon.home.key.unlink()
    with pytest.raises(NotServing) as refused:
        daemon.start()
    check_failure(refused.value, "journal_key_missing", "backup")
    assert not daemon.home.key.exists()
    daemon.home.key.touch(mode=0o600)
    daemon.home.key.write_text(os.urandom(32).hex())
    with pytest.raises(NotServing) as refused:
        daemon.start()
    check_failure(refused.value, "journal_key_mismatch", "backup")
    daemon.home.key.write_text(kept)
    daemon.start()
    daemon.finished(daemon.send("hello again")["run_id"])
    daemon.stop()
    assert daemon.verify().ok


@pytest.mark.parametrize("how", ["removed", "emptied"])
def test_a_journal_file_that_is_gone_is_not_replaced_by_an_empty_one(new_sqlite_daemon: NewDaemon, how: str) -> None:
    daemon = new_sqlite_daemon().start()
    daemon.finished(daemon.send("hello")["run_id"])
    daemon.stop()
    if how == "removed":
        daemon.home.journal.unlink()
    else:
        daemon.home.journal.write_bytes(b"")
    with pytest.raises(NotServing) as refused:
        daemon.start()
    check_failure(refused.value, "journal_missing", "backup")
    assert daemon.home.journal.exists() == (how == "emptied"), "nothing was made in its place"
    # Who wants to begin anew says so by putting the key away.
    daemon.home.key.rename(daemon.home.key.with_name("journal.key.old"))
    daemon.start()
    daemon.finished(daemon.send("hello")["run_id"])


@pytest.mark.parametrize(
    ("url", "code"),
    [
        (f"postgresql://ana:{SECRET}@127.0.0.1:1/palyra", "storage_unavailable"),
        (f"postgresql://ana:{SECRET}@127.0.0.1:1/palyra?sslmode={SECRET}", None),
        (f"mysql://ana:{SECRET}@127.0.0.1:1/palyra", None),
        (f"host=127.0.0.1 port=1 password={SECRET} nonsense", None),
    ],
)
def test_a_database_that_can_not_be_reached(new_sqlite_daemon: NewDaemon, url: str, code: str | None) -> None:
    daemon = new_sqlite_daemon(journal_database_url=url)

    with pytest.raises(NotServing) as failed:
        daemon.start()

    check_failure(failed.value, code or "", "database_url")
    log = daemon.home.log.read_text() if daemon.home.log.exists() else ""
    assert SECRET not in failed.value.output + log


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[http]\nprot = 7717\n", ["'prot'", "Did you mean 'port'?"]),
        ("[htttp]\nport = 7717\n", ["[htttp]", "Did you mean 'http'?"]),
        ("[workspace]\nzzz = 1\n", ["'zzz'", "root"]),
        ("port = 7717\n", ["port"]),
        ("http = 7717\n", ["[http]"]),
        ("[http\n", ["cannot be read"]),
        ("[http]\nport = 70000\n", ["port"]),
        ('[http]\nport = "many"\n', ["port"]),
        ('[http]\nhost = "0.0.0.0"\n', ["0.0.0.0", "127.0.0.1"]),
        ("[runs]\nmax_concurrent = 0\n", ["max_concurrent"]),
        ('[workspace]\nroot = "/does/not/exist"\n', ["/does/not/exist"]),
    ],
)
def test_settings_that_can_not_be_used(new_sqlite_daemon: NewDaemon, text: str, said: list[str]) -> None:
    daemon = new_sqlite_daemon(http_port=None)
    daemon.home.path.mkdir()
    daemon.home.config.write_text(text)

    with pytest.raises(NotServing) as failed:
        daemon.start()

    check_failure(failed.value, "settings_invalid", *said)
    assert not daemon.home.journal.exists()


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({"http_port": "many"}, "settings_invalid", "port"),
        ({"http_port": "-1"}, "settings_invalid", "port"),
        ({"http_host": "192.0.2.1"}, "settings_invalid", "192.0.2.1"),
        ({"model_provider": "oracle"}, "settings_invalid", "oracle"),
        ({"model_script": None}, "script_missing", "script"),
        ({"model_script": "/does/not/exist"}, "script_invalid", "/does/not/exist"),
        ({"model_script": "/dev/null"}, "script_invalid", "/dev/null"),
        ({"workspace_root": "/does/not/exist"}, "settings_invalid", "/does/not/exist"),
        ({"workspace_root": "/dev/null"}, "settings_invalid", "/dev/null"),
    ],
)
def test_variables_that_can_not_be_used(
    new_sqlite_daemon: NewDaemon, settings: dict[str, Any], code: str, said: str
) -> None:
    daemon = new_sqlite_daemon(**settings)
    with pytest.raises(NotServing) as failed:
        daemon.start()
    check_failure(failed.value, code, said)


def test_a_home_that_is_a_file(new_sqlite_daemon: NewDaemon, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("I was here first.")
    with pytest.raises(NotServing) as failed:
        new_sqlite_daemon(home=path).start()
    check_failure(failed.value, "storage_read_only", str(path))
    assert path.read_text() == "I was here first."


@pytest.mark.parametrize("started_before", [False, True])
def test_a_home_that_can_only_be_read(new_sqlite_daemon: NewDaemon, tmp_path: Path, started_before: bool) -> None:
    with mounted(tmp_path / "disk") as disk:
        daemon = new_sqlite_daemon(home=disk / "home")
        if started_before:
            daemon.start()
            daemon.finished(daemon.send("Hello.")["run_id"])
            daemon.stop()
        remount(disk, "ro")
        with pytest.raises(NotServing) as failed:
            daemon.start()
        check_failure(failed.value, "storage_read_only", str(daemon.home.path), "Read-only")
        remount(disk, "rw")
        daemon.start()
        assert len(daemon.runs()) == started_before
        daemon.stop()


def test_a_home_is_made_with_the_folders_above_it(new_sqlite_daemon: NewDaemon, tmp_path: Path) -> None:
    daemon = new_sqlite_daemon(home=tmp_path / "one" / "two" / "home with spaces, and ünïcödé").start()
    assert daemon.finished(daemon.send("Hello.")["run_id"])["status"] == "done"


@pytest.mark.parametrize("word", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_daemon_is_ready_for_every_word_when_it_says_so(new_sqlite_daemon: NewDaemon, word: signal.Signals) -> None:
    daemon = new_sqlite_daemon()
    for _ in range(3):
        daemon.start()
        daemon.signal(word)
        if word is signal.SIGHUP:
            assert daemon.get("/status")["pid"] == daemon.pid
            daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
        assert not daemon.home.daemon.exists()


def test_runs_of_a_daemon_that_stopped_go_on_with_the_next(new_daemon: NewDaemon) -> None:
    """A queue of runs, stopped and started again between any two of them."""
    daemon = new_daemon({"default": [{"do": "text", "text": "You said: {input}", "chunk": 2, "delay_ms": 30}]}).start()
    runs = [daemon.send(f"{number}", session={"key": "one"}) for number in range(5)]
    for _ in range(3):
        until(lambda: daemon.run(runs[0]["run_id"])["status"] != "accepted")
        assert daemon.stop() == 0
        daemon.start()
    assert [daemon.finished(run["run_id"])["status"] for run in runs] == ["done"] * 5
    assert daemon.verify().ok


def check_failure(failure: NotServing, code: str, *said: str) -> None:
    """Check that a start failed for a known reason, told in one line."""
    assert 0 < failure.exit_code < 70, failure.output
    assert "Traceback" not in failure.output
    lines = [line for line in failure.output.splitlines() if line.startswith(("error ", "palyrad: "))]
    # Once for whoever started it and once for whoever reads along.
    assert len(lines) == 2, failure.output
    for line in lines:
        assert code in line
        for words in said:
            assert words in line


def fingerprint(folder: Path) -> Json:
    """Return what the files hold, apart from the log, the lock, and what SQLite has beside a file while it reads."""
    passing = (".log", ".lock", ".db-shm")
    return {
        path.name: hashlib.sha256(content).hexdigest()
        for path in folder.iterdir()
        if path.is_file() and not path.name.endswith(passing)
        if (content := path.read_bytes()) or not path.name.endswith(".db-wal")
    }


@contextmanager
def mounted(path: Path) -> Iterator[Path]:
    path.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(path)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        skip("right to mount", error)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def remount(path: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(path)], check=True)
