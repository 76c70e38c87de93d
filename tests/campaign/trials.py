"""What is killed beside the daemon's ordinary work: backups, restores, migrations, and retention.

Each trial takes an episode whose daemon runs, and leaves it running.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from time import monotonic, sleep

from palyra.core.ids import SessionId
from palyra.core.session_events import SessionArchived
from palyra.daemon.process.system_clock import SystemClock, SystemIds
from palyra.journal import migrate
from palyra.journal.archive import backup
from palyra.journal.archive.backup import BackupManifest
from palyra.journal.engines import sqlite
from palyra.journal.engines.base import Connection
from palyra.journal.offline import open_writer
from palyra.journal.proof.journal_proof import verify
from palyra.journal.snapshot import open_snapshot
from palyra.runs.recording.session_writer import SessionWriter
from tests.campaign import invariants
from tests.campaign.clients import Sent
from tests.campaign.driver import DRAIN_SECONDS, Episode
from tests.support.command import environ
from tests.support.daemon import Daemon, NotServing

FIRST_SCHEMA = 5
"""The oldest schema that a migration begins with: before it there was less than tapes and runs need."""
RENAMED = {("runs", "place"): "queue_position"}
"""Columns of earlier schemas, and their names now."""
LONG_AGO = timedelta(days=400)
COMMAND_SECONDS = 60.0
OLD_MESSAGES = ("say", "append", "child", "look")

Trial = Callable[[Episode], None]


def chosen(chance: Random, number: int) -> list[Trial]:
    """Return so many trials for one episode, all of them different, in any order."""
    found: list[Trial] = [back_up, restore, restore_over, migration, retention]
    return chance.sample(found, min(number, len(found)))


def back_up(episode: Episode) -> None:
    """Kill the command that backs up, or the daemon beside it, or both: the backup is whole, or it is not there."""
    target = _place(episode, "backup")
    command = _begin(episode.daemon, "backup", "create", "-o", str(target))
    sleep(episode.chance.uniform(0.1, 1.6))
    whom = episode.chance.choice(("command", "daemon", "both"))
    if whom != "daemon":
        command.kill()
        episode.tally.kills["backup"] += 1
    if whom != "command":
        episode.kill("backup")
        episode.start()
    code = command.wait(COMMAND_SECONDS)
    if code == 0 and not target.exists():
        episode.violation("a backup was reported, and it is not there")
    if code > 0:
        episode.violation(f"a backup beside a killed daemon failed with {code}")
    if target.exists():
        episode.tally.facts["backups whole"] += 1
        _require_whole(episode, target)
    else:
        episode.tally.facts["backups cut off"] += 1
        left = [path.name for path in target.parent.iterdir()]
        again = _finish(_begin(episode.daemon, "backup", "create", "-o", str(target)))
        if again:
            episode.violation(f"after a backup that was cut off the next one failed: {again}")
        elif len(left) > 1 or any(not name.startswith(".") for name in left):
            episode.violation(f"a backup that was cut off left {left}")
        elif stale := [path.name for path in target.parent.iterdir() if path != target]:
            episode.violation(f"the next backup did not remove what one that was cut off had left: {stale}")
    shutil.rmtree(target.parent)


def restore(episode: Episode) -> None:
    """Kill a restore into an empty home: it can be made again, and gives what was backed up."""
    made, target = _backup(episode)
    other = episode.new_daemon(f"restored-{episode.tally.killed}")
    command = _begin(other, "backup", "restore", str(target))
    sleep(episode.chance.uniform(0.1, 1.6))
    command.kill()
    episode.tally.kills["restore"] += 1
    if command.wait(COMMAND_SECONDS) != 0 and (fault := _restore_again(other, target)):
        episode.violation(f"a restore that was cut off cannot be made again: {fault}")
    _require_restored(episode, other, made)
    _discard(other, target)


def restore_over(episode: Episode) -> None:
    """Kill a restore into a home that has a journal: the daemon then has the old one, the new one, or refuses."""
    made, target = _backup(episode)
    other = episode.new_daemon(f"over-{episode.tally.killed}")
    if fault := _finish(_begin(other, "backup", "restore", str(target))):
        episode.violation(f"a restore failed: {fault}")
    other.start()
    sent = other.send("say-restored", key="restored", session={"key": "restored"})
    other.kill()
    command = _begin(other, "backup", "restore", str(target), "--replace")
    sleep(episode.chance.uniform(0.1, 1.6))
    command.kill()
    episode.tally.kills["restore"] += 1
    code = command.wait(COMMAND_SECONDS)
    try:
        other.start()
        old = other.ask("GET", f"/runs/{sent['run_id']}").status_code == 200
        other.kill()
        for what in invariants.journal(other.home, invariants.settings_of(other)):
            episode.violation(f"after a restore that was cut off: {what}")
        if not old:
            _require_restored(episode, other, made)
        if code == 0 and old:
            episode.violation("a restore was reported, and the journal is still the old one")
    except NotServing:
        episode.tally.facts["restores cut off that the daemon refuses"] += 1
        if fault := _restore_again(other, target):
            episode.violation(f"a restore that was cut off cannot be made again: {fault}")
        _require_restored(episode, other, made)
    _discard(other, target)


def migration(episode: Episode) -> None:
    """Kill a daemon that brings an old schema up to date: the next start finishes it, and no entry is touched."""
    other = episode.new_daemon(f"old-{episode.tally.killed}")
    tape = _make_old(episode, other, schema=episode.chance.randrange(FIRST_SCHEMA, migrate.steps("sqlite")[-1].number))
    for _ in range(episode.chance.choice((1, 1, 2))):
        process = _daemon(other)
        sleep(episode.chance.uniform(0.15, 1.0))
        process.kill()
        process.wait()
        episode.tally.kills["migration"] += 1
    try:
        other.start()
    except NotServing as error:
        episode.violation(f"after a migration that was cut off the daemon does not start: {error}")
        return
    other.kill()
    with other.journal() as conn:
        report = verify(conn)
        if not report.ok or migrate.missing(conn):
            episode.violation(f"after a migration that was cut off: {report.problems[:3]}, {migrate.missing(conn)}")
        # The daemon has worked since: runs that were open have further entries.
        if lost := set(tape) - set(_tape(conn)):
            episode.violation(f"a migration changed the tape: {len(lost)} of {len(tape)} entries are different")
    _discard(other)


def retention(episode: Episode) -> None:
    """Kill the daemon while it moves old tapes to the archive: each is in the journal or in the archive, whole."""
    sessions = [_old_session(episode, number) for number in range(episode.chance.randint(1, 3))]
    if episode.daemon.stop() != 0:
        episode.violation("the daemon did not stop in order")
    settings = invariants.settings_of(episode.daemon)
    with open_writer(episode.daemon.home, settings) as units:
        units.write(lambda conn: _archive_long_ago(conn, sessions))
    # A tape moves only when an anchor covers it, and a daemon that stops leaves one.
    episode.start()
    if episode.daemon.stop() != 0:
        episode.violation("the daemon did not stop in order")
    with open_writer(episode.daemon.home, settings) as units:
        # An hour has passed, too: the rotation is due again.
        units.write(lambda conn: conn.execute("DELETE FROM tasks WHERE kind = 'journal.retention'"))
    for _ in range(episode.chance.randint(1, 3)):
        episode.kill_start("retention")
    episode.start()
    deadline = monotonic() + DRAIN_SECONDS
    while not _all_rotated(episode.daemon, sessions):
        if monotonic() > deadline:
            episode.violation("old sessions are not moved to the archive")
            return
        sleep(0.05)
    episode.tally.facts["tapes moved to the archive"] += len(sessions)


def _old_session(episode: Episode, number: int) -> str:
    key = f"old-{episode.tally.killed}-{number}"
    session_id = ""
    for place in range(2):
        text = f"{episode.chance.choice(OLD_MESSAGES)}-{key}-{place}"
        episode.memory.tried[text] = text
        sent = episode.link.surely(lambda text=text: episode.daemon.send(text, key=text, session={"key": key}))  # type: ignore[misc]
        session_id = sent["session_id"]
        episode.memory.accepted[text] = Sent(text, key, sent["run_id"], session_id)
        episode.daemon.finished(sent["run_id"], seconds=DRAIN_SECONDS)
    return session_id


def _archive_long_ago(conn: Connection, sessions: list[str]) -> None:
    at = datetime.now(UTC) - LONG_AGO
    for session_id in sessions:
        writer = SessionWriter.open(conn, SessionId(session_id), ids=SystemIds(SystemClock()))
        writer.note(SessionArchived(at=at, actor="user:owner"))
        writer.close()


def _all_rotated(daemon: Daemon, sessions: list[str]) -> bool:
    with daemon.journal() as conn:
        gone = {row[0] for row in conn.fetch("SELECT session_id FROM rotated")}
        return set(sessions) <= gone and not conn.fetch(
            "SELECT 1 FROM tape t JOIN rotated r ON r.session_id = t.session_id LIMIT 1"
        )


def _backup(episode: Episode) -> tuple[BackupManifest, Path]:
    target = _place(episode, "source")
    if fault := _finish(_begin(episode.daemon, "backup", "create", "-o", str(target))):
        raise AssertionError(f"a backup failed: {fault}")
    return backup.read_manifest(target), target


def _require_whole(episode: Episode, target: Path) -> None:
    for problem in backup.check(target).problems:
        episode.violation(f"a backup made amid kills does not hold: {problem.what}")


def _require_restored(episode: Episode, other: Daemon, made: BackupManifest) -> None:
    for what in invariants.journal(other.home, invariants.settings_of(other)):
        episode.violation(f"a restored journal: {what}")
    with other.journal() as conn:
        row = conn.fetch_one("SELECT value FROM meta WHERE name = 'restored_from'")
    if row is None or row[0] != made.journal_id:
        episode.violation(f"a restored journal says that it comes from {row}, not from {made.journal_id}")


def _restore_again(other: Daemon, target: Path) -> str:
    """Restore once more, as the command says; return what went wrong."""
    fault = _finish(_begin(other, "backup", "restore", str(target)))
    if "--replace" not in fault:
        return fault
    sleep(1.0)  # what is put aside is named by the second
    return _finish(_begin(other, "backup", "restore", str(target), "--replace"))


def _make_old(episode: Episode, other: Daemon, *, schema: int) -> list[tuple[object, ...]]:
    """Make a home with the tapes and runs of this one and an earlier schema; return its tape."""
    home, settings = other.home, invariants.settings_of(other)
    home.path.mkdir(mode=0o700)
    shutil.copy(episode.daemon.home.key, home.key)
    if other.database_url is None:
        sqlite.open_for_writing(home.journal).close()
    with open_snapshot(episode.daemon.home, invariants.settings_of(episode.daemon)) as source:
        columns = {name: _columns(source, name) for name in migrate.tables(source)}
        with open_writer(home, settings) as units:
            units.write(lambda conn: _copy(source, conn, schema, columns))
    with other.journal() as conn:
        return _tape(conn)


def _copy(source: Connection, conn: Connection, schema: int, columns: dict[str, list[str]]) -> None:
    migrate.migrate(conn, now_ms=1, upto=schema)
    for table in ("meta", "sessions", "heads", "tape", "runs", "messages", "agents", "tokens", "rotated"):
        # What was renamed since has its earlier name in the old schema.
        present = {name: RENAMED.get((table, name), name) for name in _columns(conn, table)}
        shared = [name for name, now in present.items() if now in columns[table]]
        names = ", ".join(shared)
        rows = source.fetch(f"SELECT {', '.join(present[name] for name in shared)} FROM {table}")
        values = ", ".join(f":{name}" for name in shared)
        conn.execute_many(
            f"INSERT INTO {table} ({names}) VALUES ({values})", [dict(zip(shared, row, strict=True)) for row in rows]
        )


def _columns(conn: Connection, table: str) -> list[str]:
    if conn.dialect.name == "sqlite":
        return [row[0] for row in conn.fetch("SELECT name FROM pragma_table_info(:name)", {"name": table})]
    query = "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema()"
    return [row[0] for row in conn.fetch(f"{query} AND table_name = :name", {"name": table})]


def _tape(conn: Connection) -> list[tuple[object, ...]]:
    return conn.fetch("SELECT session_id, tape_seq, hash FROM tape ORDER BY session_id, tape_seq")


def _place(episode: Episode, name: str) -> Path:
    folder = episode.folder / f"{name}-{episode.tally.killed}-{episode.chance.randrange(10**6)}"
    folder.mkdir()
    return folder / "copy"


def _begin(daemon: Daemon, *args: str) -> "subprocess.Popen[str]":
    where = {"PALYRA_JOURNAL_DATABASE_URL": daemon.database_url} if daemon.database_url is not None else {}
    return subprocess.Popen(
        [sys.executable, "-m", "palyra", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ(daemon.home.path) | where,
    )


def _finish(command: "subprocess.Popen[str]") -> str:
    """Wait for the end of a command; return what it says if it failed."""
    said, _ = command.communicate(timeout=COMMAND_SECONDS)
    return (said.strip() or f"exit code {command.returncode}") if command.returncode else ""


def _daemon(other: Daemon) -> "subprocess.Popen[bytes]":
    """Start a daemon without waiting for it."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "palyra.cli.daemon.serve"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=other._environ(other._settings),
    )


def _discard(other: Daemon, target: Path | None = None) -> None:
    other.close()
    shutil.rmtree(other.home.path)
    if target is not None:
        shutil.rmtree(target.parent)
