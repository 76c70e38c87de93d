"""What can go wrong under SQLite, and what it costs whom: only the culprit, and nobody an answer that is not true."""

import asyncio
import os
import stat
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from palyra.core.errors import PalyraError
from palyra.journal import tape
from palyra.journal.engines import sqlite
from palyra.journal.engines.base import (
    Connection,
    Engine,
    Fact,
    JournalDamaged,
    JournalError,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
    WorkAvailable,
)
from palyra.journal.engines.sqlite_engine import SqliteEngine
from palyra.journal.proof.journal_proof import verify
from palyra.journal.stores import meta
from tests.contract.database import SqliteDatabase, closed, migrated
from tests.contract.journal.builders import a_session_id, a_title, begin, occupied, queued, write_down
from tests.support.eventually import eventually
from tests.support.needs import MOUNT, require
from tests.support.sqlite_file import opened

DISK_KIB = 2048
PAGES = 400


def keeps(name: str, size: int = 0) -> Callable[[Connection], str]:
    """Return a unit that writes a fact of that size and answers with its name."""

    def unit(conn: Connection) -> str:
        conn.execute("INSERT INTO meta (name, value) VALUES (:name, :value)", {"name": name, "value": "x" * size})
        conn.publish(WorkAvailable(name))
        return name

    return unit


def names(database: SqliteDatabase) -> set[str]:
    return {str(row[0]) for row in database.rows("SELECT name FROM meta")}


# -- a full disk


class Disk:
    """A small disk: a file system of its own if we may mount one, else a limit on the file's pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k", "palyra-test", str(folder)],
            capture_output=True,
            check=False,
        )
        self.mounted = done.returncode == 0

    async def fill(self, engine: Engine) -> None:
        """Leave no room at all."""
        if not self.mounted:
            await engine.write(lambda conn: conn.fetch("PRAGMA max_page_count = 1"))
            return
        with (self.folder / "ballast").open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError:
                pass

    async def free(self, engine: Engine) -> None:
        """Make room again."""
        if not self.mounted:
            await engine.write(lambda conn: conn.fetch("PRAGMA max_page_count = 100000"))
            return
        (self.folder / "ballast").unlink()

    def unmount(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    require(MOUNT)
    folder = tmp_path / "disk"
    folder.mkdir()
    disk = Disk(folder)
    yield disk
    disk.unmount()


@pytest.fixture
async def on_disk(disk: Disk) -> AsyncIterator[SqliteDatabase]:
    """A journal, its schema up to date, on the small disk."""
    database = SqliteDatabase(disk.folder / "journal.sqlite")
    engine = await migrated(database)
    if not disk.mounted:
        await engine.write(lambda conn: conn.fetch(f"PRAGMA max_page_count = {PAGES}"))
    yield database
    await closed(database)


async def test_who_fills_the_disk_is_told_so_and_the_others_of_the_group_are_kept(on_disk: SqliteDatabase) -> None:
    (engine,) = on_disk.engines
    told: list[Fact] = []
    engine.subscribe(told.extend)

    answers = await queued([keeps("a"), keeps("huge", 4 * 1024 * 1024), keeps("b"), keeps("c")], engine)

    assert isinstance(answers[1], StorageFull)
    assert [answers[0], *answers[2:]] == ["a", "b", "c"]
    assert names(on_disk) == {"a", "b", "c"}
    assert told == [WorkAvailable("a"), WorkAvailable("b"), WorkAvailable("c")]


async def test_on_a_disk_that_fills_up_what_is_answered_is_there_and_what_failed_is_not(
    on_disk: SqliteDatabase,
) -> None:
    (engine,) = on_disk.engines
    units = [keeps(str(number), 60_000) for number in range(60)]

    answers = await asyncio.gather(*map(engine.write, units), return_exceptions=True)

    kept = {answer for answer in answers if isinstance(answer, str)}
    assert {type(answer) for answer in answers} == {str, StorageFull}
    assert names(on_disk) == kept


async def test_on_a_full_disk_everybody_is_told_so_and_work_goes_on_when_there_is_room(
    on_disk: SqliteDatabase, disk: Disk
) -> None:
    (engine,) = on_disk.engines
    await engine.write(keeps("before"))
    await disk.fill(engine)

    answers = await queued([keeps(str(number), 50_000) for number in range(5)], engine)

    assert {type(answer) for answer in answers} == {StorageFull}
    assert names(on_disk) == {"before"}
    await disk.free(engine)
    assert await engine.write(keeps("after", 50_000)) == "after"
    assert names(on_disk) == {"before", "after"}


async def test_what_is_recorded_can_be_read_on_a_full_disk(on_disk: SqliteDatabase, disk: Disk) -> None:
    (engine,) = on_disk.engines
    await engine.write(keeps("before"))
    await disk.fill(engine)
    with pytest.raises(StorageFull):
        await engine.write(keeps("after", 50_000))

    assert await engine.read(lambda conn: meta.get(conn, "before")) == ""


# -- a transaction that is lost in the middle of a group


def loses(word: str) -> Callable[[Connection], None]:
    """Return a unit under which the transaction ends, as it does under an I/O error."""

    def unit(conn: Connection) -> None:
        conn.execute(word)
        raise OSError("lost")

    return unit


async def test_when_the_transaction_is_lost_the_others_of_the_group_are_kept(
    sqlite: SqliteEngine, file: SqliteDatabase
) -> None:
    told: list[Fact] = []
    sqlite.subscribe(told.extend)

    answers = await queued([keeps("a"), keeps("b"), loses("ROLLBACK"), keeps("c"), keeps("d")], sqlite)

    assert isinstance(answers[2], OSError)
    assert [*answers[:2], *answers[3:]] == ["a", "b", "c", "d"]
    assert names(file) == {"a", "b", "c", "d"}
    assert told == [WorkAvailable("a"), WorkAvailable("b"), WorkAvailable("c"), WorkAvailable("d")]


@pytest.mark.parametrize("word", ["ROLLBACK", "COMMIT"])
async def test_when_the_transaction_is_lost_no_later_unit_commits_by_itself(
    sqlite: SqliteEngine, file: SqliteDatabase, word: str
) -> None:
    def fails(conn: Connection) -> None:
        keeps("half")(conn)
        raise ValueError

    answers = await queued([loses(word), fails, keeps("a")], sqlite)

    assert [type(answer) for answer in answers] == [OSError, ValueError, str]
    assert names(file) == {"a"}


async def test_a_unit_that_loses_the_transaction_unnoticed_is_not_answered_as_if_it_were_kept(
    sqlite: SqliteEngine, file: SqliteDatabase
) -> None:
    def unit(conn: Connection) -> str:
        keeps("gone")(conn)
        conn.execute("ROLLBACK")
        return "all is well"

    answers = await queued([keeps("a"), unit, keeps("b")], sqlite)

    assert [answers[0], answers[2]] == ["a", "b"]
    assert isinstance(answers[1], JournalError)
    assert names(file) == {"a", "b"}


async def test_when_the_commit_fails_the_culprit_is_told_so_and_the_others_are_kept(
    sqlite: SqliteEngine, file: SqliteDatabase
) -> None:
    # A reference that is checked at the commit and not before.
    await sqlite.write(
        lambda conn: conn.execute("CREATE TABLE child (name TEXT REFERENCES meta (name) DEFERRABLE INITIALLY DEFERRED)")
    )
    told: list[Fact] = []
    sqlite.subscribe(told.extend)

    def orphan(conn: Connection) -> None:
        keeps("lost")(conn)
        conn.execute("INSERT INTO child (name) VALUES ('nobody')")

    answers = await queued([keeps("a"), orphan, keeps("b")], sqlite)

    assert [answers[0], answers[2]] == ["a", "b"]
    assert isinstance(answers[1], JournalError)
    assert names(file) == {"a", "b"}
    assert told == [WorkAvailable("a"), WorkAvailable("b")]


async def test_a_unit_runs_again_from_the_start_after_its_group_was_lost(sqlite: SqliteEngine) -> None:
    seen: list[str | None] = []

    def counts(conn: Connection) -> None:
        seen.append(meta.get(conn, "count"))
        meta.put(conn, "count", "1")

    await queued([counts, loses("ROLLBACK")], sqlite)

    assert seen == [None, None]
    assert await sqlite.read(lambda conn: meta.get(conn, "count")) == "1"


# -- others on the same file


async def test_a_file_that_another_process_holds_is_waited_for_then_refused_and_used_again(
    file: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_MS", 500)
    engine = await migrated(file)
    with opened(file.path) as other:
        other.execute("BEGIN IMMEDIATE")
        units = [keeps(str(number)) for number in range(200)]
        async with asyncio.timeout(60):  # a wait for each of them would take longer
            answers = await asyncio.gather(*map(engine.write, units), return_exceptions=True)
        assert {type(answer) for answer in answers} == {StorageUnavailable}
        other.execute("ROLLBACK")

    await engine.write(keeps("c"))
    assert names(file) == {"c"}


async def test_a_short_lock_of_another_process_is_waited_out(sqlite: SqliteEngine, file: SqliteDatabase) -> None:
    with opened(file.path) as other:
        other.execute("BEGIN IMMEDIATE")
        writer = asyncio.create_task(sqlite.write(keeps("a")))
        await asyncio.wait([writer], timeout=0.05)
        assert not writer.done()
        other.execute("ROLLBACK")

        assert await writer == "a"


async def test_the_file_can_be_read_beside_a_daemon_that_writes(sqlite: SqliteEngine, file: SqliteDatabase) -> None:
    async with occupied(sqlite):
        with closing(sqlite_reader(file)) as raw:
            assert raw.execute("SELECT COUNT(*) FROM meta").fetchall() == [(0,)]


async def test_a_reader_waits_for_whoever_holds_the_file_while_it_opens_it(tmp_path: Path) -> None:
    with closing(apsw.Connection(str(tmp_path / "journal.db"))) as other:
        other.execute("CREATE TABLE t (x); BEGIN EXCLUSIVE")
        opening = asyncio.create_task(asyncio.to_thread(sqlite.open_for_reading, tmp_path / "journal.db"))
        await asyncio.wait([opening], timeout=0.05)
        assert not opening.done()
        other.execute("ROLLBACK")

        (await opening).close()


def sqlite_reader(file: SqliteDatabase) -> apsw.Connection:
    return sqlite.open_for_reading(file.path)


# -- commits


async def test_a_group_is_one_commit(file: SqliteDatabase) -> None:
    commits: list[int] = []
    engine = await migrated(file, after_commit=lambda: commits.append(1))
    commits.clear()

    await queued([keeps(str(number)) for number in range(100)], engine)

    assert len(commits) == 2  # that of the unit which kept the writer busy, and that of the hundred


async def test_the_word_of_a_commit_comes_before_anybody_is_answered(file: SqliteDatabase) -> None:
    order: list[str] = []
    engine = await migrated(file, after_commit=lambda: order.append(f"commit of {len(names(file))}"))
    engine.subscribe(lambda facts: order.append("told"))
    order.clear()

    for number in range(3):
        await engine.write(keeps(str(number)))
        order.append("answered")

    assert order == [word for count in (1, 2, 3) for word in (f"commit of {count}", "told", "answered")]


async def test_a_unit_that_fails_alone_leaves_nothing_to_commit_but_its_group(file: SqliteDatabase) -> None:
    commits: list[int] = []
    engine = await migrated(file, after_commit=lambda: commits.append(1))
    commits.clear()

    await queued([keeps("a"), loses("ROLLBACK"), keeps("b")], engine)

    assert len(commits) == 3  # the unit in the way, then each of the two others alone


async def test_a_commit_is_on_the_disk_before_it_is_answered(sqlite: SqliteEngine) -> None:
    def unit(conn: Connection) -> tuple[object, object]:
        return conn.fetch("PRAGMA journal_mode")[0][0], conn.fetch("PRAGMA synchronous")[0][0]

    assert await sqlite.write(unit) == ("wal", 2)


async def test_more_units_than_one_group_holds_are_all_answered(sqlite: SqliteEngine) -> None:
    answers = await queued([lambda conn, place=place: place for place in range(1200)], sqlite)  # type: ignore[misc]

    assert answers == list(range(1200))


async def test_a_loop_that_is_gone_does_not_stop_the_writer(file: SqliteDatabase) -> None:
    gate = threading.Event()
    waiting: list[asyncio.Task[object]] = []

    def main() -> None:
        async def queue() -> None:
            engine = SqliteEngine(file.path)
            begun = threading.Event()

            def wait(conn: Connection) -> None:
                begun.set()
                gate.wait(60)

            task = asyncio.get_running_loop().create_task(engine.write(wait))
            further = asyncio.get_running_loop().create_task(engine.write(keeps("a")))
            await asyncio.sleep(0)
            await asyncio.to_thread(begun.wait)
            # The loop is closed over those who wait, as in a process that breaks down.
            waiting.extend([task, further])
            loop.stop()

        loop = asyncio.new_event_loop()
        queueing = loop.create_task(queue())
        loop.run_forever()
        assert queueing.done()
        loop.close()

    await migrated(file)
    await asyncio.to_thread(main)
    gate.set()

    await eventually(lambda: names(file) == {"a"})


# -- the file


async def test_the_journal_is_for_its_owner_only(file: SqliteDatabase) -> None:
    before = os.umask(0)
    try:
        engine = await migrated(file)
        await engine.write(keeps("a"))
        found = sorted(file.path.parent.iterdir())
    finally:
        os.umask(before)

    assert [path.name for path in found] == ["journal.sqlite", "journal.sqlite-shm", "journal.sqlite-wal"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}


async def test_a_folder_that_is_not_there_is_an_error_of_the_start(tmp_path: Path) -> None:
    with pytest.raises(StorageReadOnly, match="missing/journal"):
        SqliteEngine(tmp_path / "missing" / "journal.sqlite")


async def test_a_file_that_is_no_journal_is_an_error_of_the_start(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"Dear diary, " * 1000)

    with pytest.raises(JournalDamaged):
        SqliteEngine(path)
    assert path.read_bytes() == b"Dear diary, " * 1000


def test_a_file_that_is_not_there_can_not_be_read_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StorageReadOnly):
        sqlite.open_for_reading(tmp_path / "missing")

    assert list(tmp_path.iterdir()) == []


async def test_reading_a_damaged_page_is_reported_as_damage(file: SqliteDatabase) -> None:
    engine = await migrated(file)
    await engine.write(keeps("a", 100_000))
    await engine.close()
    ((page,),) = file.rows("SELECT rootpage FROM sqlite_master WHERE name = 'meta'")
    with file.path.open("r+b") as raw:
        raw.seek((page - 1) * 4096)
        raw.write(b"\xff" * 4096)

    engine = file.engine()
    with pytest.raises(JournalDamaged):
        await engine.read(lambda conn: conn.fetch("SELECT * FROM meta"))
    with pytest.raises(JournalDamaged):
        await engine.write(keeps("b"))


@pytest.mark.parametrize(
    ("driver", "ours"),
    [
        (apsw.FullError, StorageFull),
        (apsw.ReadOnlyError, StorageReadOnly),
        (apsw.CantOpenError, StorageReadOnly),
        (apsw.PermissionsError, StorageReadOnly),
        (apsw.CorruptError, JournalDamaged),
        (apsw.NotADBError, JournalDamaged),
        (apsw.IOError, StorageUnavailable),
        (apsw.BusyError, StorageUnavailable),
        (apsw.LockedError, StorageUnavailable),
        (apsw.InterruptError, StorageUnavailable),
        (apsw.NoMemError, StorageUnavailable),
        (apsw.SQLError, JournalError),
        (apsw.ConstraintError, JournalError),
    ],
)
def test_each_error_of_the_driver_has_a_meaning(driver: type[apsw.Error], ours: type[PalyraError]) -> None:
    assert type(sqlite.translate_error(driver("so it went"))) is ours


# -- the entries of a group are written together


class Failure(Exception):
    """What a unit raises."""


async def test_what_a_unit_appends_is_seen_by_the_next_unit_of_its_group(sqlite: SqliteEngine) -> None:
    await sqlite.write(lambda conn: begin(conn, 1))
    session_id = a_session_id(1)

    def look(conn: Connection) -> tuple[int, list[int]]:
        return tape.end(conn, session_id), [entry.tape_seq for entry in tape.page(conn, session_id, after_seq=0)]

    def write(conn: Connection) -> None:
        write_down(conn, session_id, a_title())

    answers = await queued([write, look, write, write, look], sqlite)

    assert answers[1::3] == [(1, [1]), (3, [1, 2, 3])]


async def test_who_appends_after_another_process_goes_on_where_that_one_ended(file: SqliteDatabase) -> None:
    one, other = await migrated(file), file.engine()
    await one.write(lambda conn: begin(conn, 1))
    for engine in (one, other, other, one, one, other):
        await engine.write(lambda conn: write_down(conn, a_session_id(1), a_title()))

    report = await one.read(verify)

    assert report.ok, report.problems
    assert report.entries == 6


async def test_what_was_put_off_is_gone_with_the_unit_that_put_it_off(sqlite: SqliteEngine) -> None:
    await sqlite.write(lambda conn: begin(conn, 1))

    def fail(conn: Connection) -> None:
        write_down(conn, a_session_id(1), a_title("never"))
        raise Failure

    def write(conn: Connection) -> None:
        write_down(conn, a_session_id(1), a_title("kept"))

    first, second, third = await queued([write, fail, write], sqlite)

    assert (first, third) == (None, None)
    assert isinstance(second, Failure)
    entries = await sqlite.read(lambda conn: tape.page(conn, a_session_id(1), after_seq=0))
    assert [entry.tape_seq for entry in entries] == [1, 2]
    assert not any("never" in entry.content for entry in entries)
