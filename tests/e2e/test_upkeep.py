"""What a daemon does for its journal by itself: a backup before a migration, the archive for what is put away."""

import asyncio

from palyra.journal import migrate
from palyra.journal.engines import sqlite
from tests.e2e.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.eventually import eventually
from tests.support.sqlite_file import opened

LONG_AGO_MS = 400 * 24 * 3600 * 1000


def test_an_upgrade_keeps_the_journal_as_it_was(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon()
    _make_old(daemon, schema=2)
    daemon.start()
    kept = daemon.home.path / "journal-before-0003.db"
    assert kept.stat().st_mode & 0o777 == 0o600
    with sqlite.open_snapshot(kept) as before:
        assert migrate.current(before) == 2
    assert daemon.get("/status")["schema"] == migrate.steps("sqlite")[-1].number
    assert daemon.finished(daemon.send("hello")["run_id"])["status"] == "done"
    daemon.stop()
    kept.unlink()
    daemon.start()  # nothing is missing any more, so nothing is kept
    assert not kept.exists()


async def test_what_was_put_away_long_ago_moves_to_the_archive(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon(retention_archived_days=30)
    daemon.start()
    sent = daemon.send("put this away", session={"key": "old"})
    daemon.finished(sent["run_id"])
    daemon.post(f"/sessions/{sent['session_id']}/archive")
    daemon.stop()
    with opened(daemon.home.journal) as journal:
        journal.execute("UPDATE sessions SET archived_ms = archived_ms - ?", (LONG_AGO_MS,))

    daemon.start()
    archive = daemon.home.path / "archive"
    await eventually(lambda: list(archive.rglob(f"{sent['session_id']}*")))
    await eventually(lambda: daemon.ask("GET", f"/sessions/{sent['session_id']}").status_code == 404)
    daemon.stop()
    report = await asyncio.to_thread(daemon.verify)
    assert report.ok, report.problems
    assert report.rotated == 1


def _make_old(daemon: Daemon, *, schema: int) -> None:
    """Make a home whose journal an earlier version has written."""
    daemon.home.path.mkdir(mode=0o700)
    raw = sqlite.open_for_writing(daemon.home.journal)
    raw.execute("BEGIN IMMEDIATE")
    migrate.migrate(sqlite.SqliteConnection(raw), now_ms=1, upto=schema)
    raw.execute("COMMIT")
    raw.close()
