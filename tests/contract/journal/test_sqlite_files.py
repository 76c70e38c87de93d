"""The journal's files, deleted, replaced or truncated beneath an engine: it notices before it accepts anything more."""

import asyncio
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palyra.journal.engines import sqlite
from palyra.journal.engines.base import Connection, JournalReplaced
from palyra.journal.engines.sqlite_engine import SqliteEngine
from palyra.journal.stores import meta
from tests.contract.database import SqliteDatabase, migrated
from tests.support.sqlite_file import opened

Harm = Callable[[Path], None]


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def keeps(name: str, size: int = 1) -> Callable[[Connection], None]:
    return lambda conn: meta.put(conn, name, "x" * size)


def delete(suffix: str) -> Harm:
    return lambda path: beside(path, suffix).unlink()


def replace(suffix: str) -> Harm:
    def harm(path: Path) -> None:
        copy = beside(path, ".copy")
        shutil.copyfile(beside(path, suffix), copy)
        copy.rename(beside(path, suffix))

    return harm


def truncate(suffix: str) -> Harm:
    def harm(path: Path) -> None:
        with beside(path, suffix).open("r+b") as file:
            file.truncate(beside(path, suffix).stat().st_size // 2)

    return harm


def overwrite(path: Path) -> None:
    """Copy an earlier backup into the file, as `cp` does."""
    shutil.copyfile(beside(path, ".backup"), path)


HARMS = {
    "file deleted": delete(""),
    "file replaced": replace(""),
    "file truncated": truncate(""),
    "file overwritten": overwrite,
    "log deleted": delete("-wal"),
    "log replaced": replace("-wal"),
    "log truncated": truncate("-wal"),
    "index deleted": delete("-shm"),
    "index replaced": replace("-shm"),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
async def test_harm_to_the_files_is_noticed_before_the_next_write(file: SqliteDatabase, harm: Harm) -> None:
    engine = await migrated(file)
    sqlite.copy(file.path, beside(file.path, ".backup"))
    await engine.write(keeps("before", 100_000))
    checkpoint(file.path)
    await engine.write(keeps("after", 100_000))
    await engine.read(lambda conn: meta.get(conn, "before"))

    harm(file.path)

    for _ in range(2):
        with pytest.raises(JournalReplaced) as refused:
            await engine.write(keeps("lost"))
        assert refused.value.code == "journal_replaced"
        assert str(file.path) in refused.value.detail


@pytest.mark.parametrize("harm", ["file deleted", "file replaced", "log deleted", "log replaced", "index deleted"])
async def test_what_is_open_can_still_be_read(file: SqliteDatabase, harm: str) -> None:
    engine = await migrated(file)
    await engine.write(keeps("before"))
    await engine.read(lambda conn: meta.get(conn, "before"))

    HARMS[harm](file.path)
    with pytest.raises(JournalReplaced):
        await engine.write(keeps("lost"))

    assert await engine.read(lambda conn: meta.get(conn, "before")) == "x"
    assert await engine.read(lambda conn: meta.get(conn, "lost")) is None


async def test_a_reader_never_opens_the_other_file(file: SqliteDatabase) -> None:
    engine = await migrated(file)
    await engine.write(keeps("before"))

    HARMS["file replaced"](file.path)

    with pytest.raises(JournalReplaced):
        await engine.read(lambda conn: meta.get(conn, "before"))


async def test_files_put_in_place_of_the_journal_are_left_alone(file: SqliteDatabase, tmp_path: Path) -> None:
    """Whoever restores a backup while the daemon runs has it afterwards, with its log."""
    engine = await migrated(file)
    await engine.write(keeps("ours"))
    other = SqliteDatabase(tmp_path / "other.sqlite")
    others = await migrated(other)
    await others.write(keeps("theirs"))
    for suffix in ("", "-wal"):
        shutil.copyfile(beside(other.path, suffix), beside(file.path, f"{suffix}.new"))
    await others.close()
    restored = {suffix: beside(file.path, f"{suffix}.new").read_bytes() for suffix in ("", "-wal")}

    for suffix in restored:
        beside(file.path, f"{suffix}.new").rename(beside(file.path, suffix))
    with pytest.raises(JournalReplaced):
        await engine.write(keeps("lost"))
    await engine.close()

    assert {suffix: beside(file.path, suffix).read_bytes() for suffix in restored} == restored
    beside(file.path, "-shm").unlink()
    assert file.rows("SELECT value FROM meta WHERE name = 'theirs'") == [("x",)]


async def test_a_log_that_was_deleted_is_saved_into_the_file(file: SqliteDatabase) -> None:
    engine = await migrated(file)
    for number in range(20):
        await engine.write(keeps(f"fact {number}", 5_000))

    HARMS["log deleted"](file.path)
    with pytest.raises(JournalReplaced, match="recorded so far is safe"):
        await engine.write(keeps("lost"))
    # What a power cut would leave.
    saved = shutil.copyfile(file.path, beside(file.path, ".saved"))

    found = SqliteDatabase(saved).rows("SELECT COUNT(*) FROM meta WHERE name LIKE 'fact %'")
    assert found == [(20,)]
    assert SqliteDatabase(saved).rows("PRAGMA integrity_check") == [("ok",)]


# -- what SQLite does by itself


def checkpoint(path: Path, mode: str = "PASSIVE") -> None:
    with opened(path) as raw:
        raw.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()


def vacuum(path: Path) -> None:
    with opened(path) as raw:
        raw.execute("VACUUM")


def touch(path: Path) -> None:
    path.touch()


def write_much(path: Path) -> None:
    with opened(path) as raw:
        raw.execute("INSERT INTO meta VALUES ('foreign', :value) ON CONFLICT DO NOTHING", {"value": "y" * 6_000_000})
        raw.execute("DELETE FROM meta WHERE name = 'foreign'")


async def grow(engine: SqliteEngine) -> None:
    await asyncio.gather(*(engine.write(keeps(f"much {number}", 700_000)) for number in range(8)))


async def shrink(engine: SqliteEngine) -> None:
    await engine.write(lambda conn: conn.execute("DELETE FROM meta WHERE name LIKE 'much %'"))


STEPS = ("grow", "shrink", "write", "read", "PASSIVE", "FULL", "RESTART", "TRUNCATE", "vacuum", "write much", "touch")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(STEPS), min_size=4, max_size=14))
def test_whatever_sqlite_does_to_its_files_is_no_loss(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    """Checkpoints of every kind, a log written again from its start, a VACUUM: by this connection and by others."""
    asyncio.run(carried_out(tmp_path_factory.mktemp("journal") / "journal.sqlite", steps))


async def carried_out(path: Path, steps: list[str]) -> None:
    database = SqliteDatabase(path)
    engine = await migrated(database)
    assert isinstance(engine, SqliteEngine)
    try:
        for number, step in enumerate(steps):
            match step:
                case "grow":
                    await grow(engine)
                case "shrink":
                    await shrink(engine)
                case "read":
                    await engine.read(lambda conn: meta.get(conn, "much 1"))
                case "vacuum":
                    vacuum(path)
                case "write much":
                    write_much(path)
                case "touch":
                    touch(path)
                case "write":
                    pass
                case mode:
                    checkpoint(path, mode)
            await engine.write(keeps(f"step {number}"))
    finally:
        await engine.close()
    assert len(database.rows("SELECT 1 FROM meta WHERE name LIKE 'step %'")) == len(steps)


async def test_a_log_that_sqlite_cuts_to_its_limit_is_no_loss(
    file: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 200_000
    monkeypatch.setattr(sqlite, "LOG_LIMIT_BYTES", limit)
    monkeypatch.setattr("palyra.journal.engines.sqlite_files.LOG_LIMIT_BYTES", limit)
    engine = await migrated(file)
    sizes = []
    for number in range(30):
        await engine.write(keeps("much", 1_000_000 if number % 3 == 0 else 10))
        sizes.append(beside(file.path, "-wal").stat().st_size)

    assert any(after < before for before, after in pairwise(sizes))
