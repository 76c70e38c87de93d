"""Export, backup, restore and rebuild from the command line, beside a daemon that works and without one."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.e2e.conftest import NewDaemon
from tests.support.command import run
from tests.support.daemon import Daemon, Json
from tests.support.sqlite_file import opened

SMALL_BLOCKS = 64  # of 1 KiB each: a journal of a few runs is larger


class Command:
    """The command line on the home of a daemon."""

    def __init__(self, daemon: Daemon, *, home: Path | None = None, url: str | None = None) -> None:
        self.home = home or daemon.home.path
        self.url = url or daemon.database_url

    def __call__(self, *args: object, limit: int | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; `limit` is how many blocks a file may have."""
        if limit is None:
            return run(*map(str, args), environ=self._environ())
        command = ["bash", "-c", f'ulimit -f {limit}; exec "$@"', "bash", sys.executable, "-m", "palyra"]
        command += map(str, args)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=self._environ(), check=False)

    def json(self, *args: object, code: int = 0) -> Json:
        done = self(*args, "--json")
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def fails(self, *args: object, code: int, said: str, limit: int | None = None) -> None:
        done = self(*args, limit=limit)
        assert (done.returncode, done.stdout) == (code, "")
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1

    def _environ(self) -> dict[str, str]:
        ours = ("PALYRA_", "PYTHONDONTWRITEBYTECODE")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        if self.url is not None:
            environ["PALYRA_JOURNAL_DATABASE_URL"] = self.url
        return environ | {"PALYRA_HOME": str(self.home)}


def change(daemon: Daemon, sql: str) -> None:
    """Change the journal behind everybody's back."""
    if daemon.database_url is not None:
        with psycopg.connect(daemon.database_url, autocommit=True) as database:
            database.execute(sql.encode())
        return
    with opened(daemon.home.journal) as raw:
        raw.execute(sql).fetchall()


@contextmanager
def traffic(daemon: Daemon) -> Iterator[list[Json]]:
    """Send messages for as long as the block lasts."""
    over = threading.Event()
    sent: list[Json] = []

    def send() -> None:
        while not over.is_set():
            sent.append(daemon.send(f"message {len(sent)}", session={"key": f"s{len(sent) % 3}"}))
            daemon.finished(sent[-1]["run_id"])

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        over.set()
        thread.join()


@pytest.fixture
def daemon(new_daemon: NewDaemon) -> Daemon:
    daemon = new_daemon().start()
    for text in ("one", "two"):
        daemon.finished(daemon.send(text, session={"key": "main"})["run_id"])
    return daemon


@pytest.fixture
def palyra(daemon: Daemon) -> Command:
    return Command(daemon)


@pytest.fixture
def on_sqlite(new_sqlite_daemon: NewDaemon) -> Daemon:
    """For tests in which the engine does not matter."""
    daemon = new_sqlite_daemon().start()
    daemon.finished(daemon.send("one", session={"key": "main"})["run_id"])
    return daemon


# -- export


def test_an_export_beside_a_working_daemon_proves_itself(daemon: Daemon, palyra: Command, tmp_path: Path) -> None:
    with traffic(daemon) as sent:
        made = palyra.json("journal", "export", "-o", tmp_path / "all.ndjson")
    daemon.stop()
    found = Command(daemon, home=tmp_path / "nowhere").json("journal", "verify", "--file", tmp_path / "all.ndjson")

    assert sent
    assert found["ok"]
    assert found["entries"] == made["entries"] > 10


def test_an_export_to_stdout_is_the_same_as_one_to_a_file(on_sqlite: Daemon, tmp_path: Path) -> None:
    palyra = Command(on_sqlite)
    done = palyra("journal", "export")
    (tmp_path / "all").write_text(done.stdout)

    assert done.returncode == 0
    assert palyra.json("journal", "verify", "--file", tmp_path / "all")["ok"]


def test_an_export_since_an_anchor_holds_the_rest(daemon: Daemon, palyra: Command, tmp_path: Path) -> None:
    daemon.stop()
    anchor = palyra("journal", "anchor").stdout
    (tmp_path / "anchor").write_text(anchor)
    daemon.start()
    run = daemon.finished(daemon.send("three", session={"key": "main"})["run_id"])
    daemon.finished(daemon.send("four", session={"key": "other"})["run_id"])

    made = palyra.json("journal", "export", "--since", tmp_path / "anchor", "-o", tmp_path / "new")
    found = palyra.json("journal", "verify", "--file", tmp_path / "new", "--anchor", tmp_path / "anchor")

    assert made["sessions"] == 2
    assert found["ok"]
    assert found["header"]["since"] == json.loads(anchor)["number"]
    entries = [json.loads(line) for line in (tmp_path / "new").read_text().splitlines()]
    assert min(line["tape_seq"] for line in entries if line.get("run_id") == run["run_id"]) > 1


def test_a_changed_export_names_the_entry(on_sqlite: Daemon, tmp_path: Path) -> None:
    palyra = Command(on_sqlite)
    palyra("journal", "export", "-o", tmp_path / "all")
    text = (tmp_path / "all").read_text()
    (tmp_path / "all").write_text(text.replace("You said", "I said", 1))

    done = palyra("journal", "verify", "--file", tmp_path / "all")

    assert done.returncode == 1
    session_id = on_sqlite.sessions()[0]["session_id"]
    assert f"Verification of the export failed: session {session_id}, entry " in done.stdout


def test_exports_that_can_not_be_written_or_read_say_why(on_sqlite: Daemon, tmp_path: Path) -> None:
    palyra = Command(on_sqlite)
    (tmp_path / "text").write_text("hello\n")
    (tmp_path / "all").touch()

    palyra.fails("journal", "export", "-o", tmp_path / "all", code=1, said="[file_exists]")
    palyra.fails("journal", "export", "-o", tmp_path / "no" / "all", code=1, said="[file_not_writable]")
    palyra.fails("journal", "export", "-o", tmp_path / "large", code=1, said="[file_not_writable]", limit=4)
    palyra.fails("journal", "export", "--session", "x", code=2, said="[id_invalid]")
    palyra.fails("journal", "export", "--session", "0" * 26, "-o", tmp_path / "s", code=1, said="[session_not_found]")
    palyra.fails("journal", "export", "--since", tmp_path / "text", code=2, said="[anchor_invalid]")
    palyra.fails("journal", "verify", "--file", tmp_path / "text", code=2, said="[export_invalid]")
    palyra.fails("journal", "verify", "--file", tmp_path / "nowhere", code=2, said="[usage]")
    palyra.fails("journal", "verify", "--file", tmp_path / "text", "--deep", code=2, said="[usage]")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["all", "text"]


# -- backup and the way back


@pytest.fixture
def elsewhere(daemon: Daemon, new_database: Callable[[], str | None], tmp_path: Path) -> Daemon:
    """A daemon for a home that is not there yet, on a database of its own; it has no settings but the port."""
    return Daemon(tmp_path / "elsewhere", output=tmp_path / "output", database_url=new_database())


def test_a_backup_of_a_working_daemon_comes_back_elsewhere(
    daemon: Daemon, palyra: Command, elsewhere: Daemon, tmp_path: Path
) -> None:
    with traffic(daemon) as sent:
        made = palyra.json("backup", "create", "-o", tmp_path / "copy")
    daemon.stop()
    saved = tmp_path / "anchor"
    saved.write_text(json.dumps(made["manifest"]["anchor"]))
    there = Command(elsewhere)

    checked = palyra.json("backup", "verify", tmp_path / "copy")
    done = there.json("backup", "restore", tmp_path / "copy")

    assert sent
    assert checked["ok"]
    assert "token" not in made["manifest"]["files"]
    assert done["restored_from"] == made["manifest"]["journal_id"] != done["journal_id"]
    elsewhere.start()
    try:
        session = next(session for session in elsewhere.sessions() if session["key"] == "main")
        assert [line.kind for line in elsewhere.tape(f"/sessions/{session['session_id']}")].count("run_completed") == 2
        run = elsewhere.finished(elsewhere.send("list the files", session={"key": "main"})["run_id"])
        assert run["status"] == "done"
        for unfinished in elsewhere.runs():
            elsewhere.finished(unfinished["run_id"])
        assert there.json("journal", "stats")["restored_from"] == done["restored_from"]
        elsewhere.stop()
        found = there.json("journal", "verify", "--deep")
        assert found["ok"], found
        if made["manifest"]["anchor"] is not None:
            assert there.json("journal", "verify", "--anchor", saved)["ok"]
    finally:
        elsewhere.close()


def test_a_backup_of_a_journal_that_was_changed_says_so(daemon: Daemon, palyra: Command, tmp_path: Path) -> None:
    session = daemon.sessions()[0]["session_id"]
    change(daemon, f"UPDATE tape SET content = '{{}}' WHERE session_id = '{session}' AND tape_seq = 3")

    done = palyra("backup", "create", "-o", tmp_path / "copy")
    found = palyra.json("backup", "create", "-o", tmp_path / "again", code=1)

    assert done.returncode == 1
    assert f"verification failed: session {session}, entry 3: this entry was altered" in done.stderr
    assert (tmp_path / "copy" / "manifest.json").exists()
    assert (found["ok"], found["problems"][0]["tape_seq"]) == (False, 3)


def test_a_home_goes_back_to_its_backup(daemon: Daemon, palyra: Command) -> None:
    made = palyra.json("backup", "create")
    daemon.finished(daemon.send("three", session={"key": "main"})["run_id"])

    palyra.fails("backup", "restore", made["backup"], "--replace", code=1, said="[daemon_running]")
    daemon.stop()
    palyra.fails("backup", "restore", made["backup"], code=1, said="[home_not_empty]")
    done = palyra("backup", "restore", made["backup"], "--replace")

    assert done.returncode == 0, done.stderr
    assert "replaced-" in done.stdout
    assert Path(made["backup"]).parent == daemon.home.path / "backups"
    daemon.start()
    assert len(daemon.runs()) == 2
    assert daemon.finished(daemon.send("again", session={"key": "main"})["run_id"])["status"] == "done"
    assert palyra.json("journal", "verify")["ok"]


def test_backups_that_can_not_be_made_or_read_say_why(on_sqlite: Daemon, tmp_path: Path) -> None:
    daemon, palyra = on_sqlite, Command(on_sqlite)
    palyra("backup", "create", "-o", tmp_path / "copy")
    names = sorted(os.listdir(tmp_path))

    palyra.fails("backup", "create", "-o", tmp_path / "copy", code=1, said="[file_exists]")
    palyra.fails("backup", "verify", daemon.home.key, code=2, said="[backup_invalid]")
    palyra.fails("backup", "verify", daemon.home.path, code=2, said="[backup_invalid]")
    palyra.fails("backup", "verify", tmp_path / "nowhere", code=2, said="[usage]")
    shutil.copytree(tmp_path / "copy", tmp_path / "harmed")
    with (tmp_path / "harmed" / "journal.db").open("r+b") as file:
        file.seek(5000)
        file.write(b"harm")
    done = palyra("backup", "verify", tmp_path / "harmed")
    assert done.returncode == 1
    assert "Verification failed: the file journal.db was changed." in done.stdout
    new_home = Command(daemon, home=tmp_path / "new")
    new_home.fails("backup", "restore", tmp_path / "harmed", code=1, said="[backup_damaged]")
    shutil.rmtree(tmp_path / "harmed")
    assert sorted(os.listdir(tmp_path)) == names


def test_a_full_disk_leaves_no_half_backup(on_sqlite: Daemon, tmp_path: Path) -> None:
    palyra = Command(on_sqlite)
    target = tmp_path / "copies" / "copy"

    done = palyra("backup", "create", "-o", target, limit=SMALL_BLOCKS)

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert os.listdir(target.parent) == []
    assert palyra.json("backup", "create", "-o", target)


def test_a_backup_can_be_made_after_a_kill(on_sqlite: Daemon, tmp_path: Path) -> None:
    on_sqlite.kill()
    on_sqlite.home.journal.with_name("journal.db-shm").unlink()
    palyra = Command(on_sqlite)

    palyra.json("backup", "create", "-o", tmp_path / "copy")

    assert palyra.json("backup", "verify", tmp_path / "copy")["entries"] == on_sqlite.verify().entries > 5


# -- what follows from the tapes


def test_a_deep_check_finds_what_a_rebuild_sets_right(daemon: Daemon, palyra: Command) -> None:
    assert palyra.json("journal", "verify", "--deep")["ok"]
    palyra.fails("journal", "rebuild", code=1, said="[daemon_running]")
    daemon.stop()
    change(daemon, "DELETE FROM messages")
    change(daemon, "UPDATE runs SET turns = 99")

    assert palyra.json("journal", "verify")["ok"]
    deep = palyra("journal", "verify", "--deep")
    first, second = palyra.json("journal", "rebuild"), palyra.json("journal", "rebuild")

    assert deep.returncode == 1
    assert "The projections are wrong: session" in deep.stdout
    assert (first["conversations"], first["runs"], second["differed"]) == (1, 2, 0)
    assert palyra.json("journal", "verify", "--deep")["ok"]
    daemon.start()
    session = daemon.sessions()[0]["session_id"]
    assert len(daemon.get(f"/sessions/{session}/messages")["messages"]) == 4


def test_the_statistics_say_what_there_is(palyra: Command) -> None:
    found = palyra.json("journal", "stats")

    assert (found["sessions"], found["runs"], found["messages"]) == (1, {"done": 2}, 4)
    assert "runs" in palyra("journal", "stats").stdout


def test_commands_without_a_journal_say_so(new_sqlite_daemon: NewDaemon, tmp_path: Path) -> None:
    palyra = Command(new_sqlite_daemon(), home=tmp_path / "empty")

    for command in ("stats", "export", "rebuild"):
        palyra.fails("journal", command, code=1, said="[journal_not_found]")
    palyra.fails("backup", "create", "-o", tmp_path / "copy", code=1, said="[journal_not_found]")
    palyra.fails("journal", "verify", "--deep", code=2, said="[journal_not_found]")
    assert not (tmp_path / "empty").exists()
    assert not (tmp_path / "copy").exists()
