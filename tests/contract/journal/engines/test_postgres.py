"""What can go wrong under PostgreSQL, and what callers are told of it."""

import asyncio
import os
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import psycopg
import pytest
from psycopg import errors as pg

from palyra.core.errors import PalyraError
from palyra.journal.engines import postgres, postgres_claim, postgres_engine
from palyra.journal.engines.base import (
    Connection,
    Fact,
    JournalError,
    JournalReplaced,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
    WorkAvailable,
)
from palyra.journal.engines.postgres import DatabaseUrlInvalid
from palyra.journal.engines.postgres_claim import CLAIM_KEY, PostgresClaim
from palyra.journal.engines.postgres_engine import PostgresEngine
from palyra.journal.migrate import migrate
from palyra.journal.stores import meta
from tests.contract.database import PostgresDatabase, migrated
from tests.support.needs import POSTGRES, needs
from tests.support.postgres import own_postgres

SECRET = "correct-horse-battery"
SERIALIZATION_FAILURE = "40001"


def keeps(name: str) -> Callable[[Connection], str]:
    def unit(conn: Connection) -> str:
        meta.put(conn, name, "kept")
        return name

    return unit


def names(conn: Connection) -> set[str]:
    return {row[0] for row in conn.fetch("SELECT name FROM meta")}


def fail(conn: Connection, code: str) -> None:
    """Have the server raise an error of that code."""
    conn.execute(f"DO $$ BEGIN RAISE EXCEPTION 'so it went' USING ERRCODE = '{code}'; END $$")


class Stubborn:
    """A unit that fails so many times before it succeeds."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.runs = 0

    def __call__(self, conn: Connection) -> int:
        self.runs += 1
        meta.put(conn, f"run {self.runs}", "kept")
        conn.publish(WorkAvailable(f"run {self.runs}"))
        if self.runs <= self.times:
            fail(conn, SERIALIZATION_FAILURE)
        return self.runs


# -- tried again


async def test_units_that_stand_in_each_others_way_are_both_kept(postgres: PostgresEngine) -> None:
    await postgres.write(keeps("a"))
    await postgres.write(keeps("b"))
    both, through = threading.Barrier(2, timeout=60), threading.Event()
    runs: list[str] = []

    def crossing(first: str, second: str) -> Callable[[Connection], None]:
        met = False

        def unit(conn: Connection) -> None:
            nonlocal met
            runs.append(first)
            if met:  # the one that had to give way
                assert through.wait(60)
            conn.execute("SET LOCAL deadlock_timeout = '10ms'")
            append(conn, first)
            if not met:
                met = True
                both.wait()  # now each holds what the other wants
            append(conn, second)
            through.set()

        return unit

    def append(conn: Connection, name: str) -> None:
        conn.execute("UPDATE meta SET value = value || '!' WHERE name = :name", {"name": name})

    await asyncio.gather(postgres.write(crossing("a", "b")), postgres.write(crossing("b", "a")))

    assert len(runs) == 3
    stored = await postgres.read(lambda conn: conn.fetch("SELECT name, value FROM meta ORDER BY name"))
    assert stored == [("a", "kept!!"), ("b", "kept!!")]


@pytest.mark.parametrize("times", [1, 2])
async def test_a_unit_that_fails_by_chance_is_run_again(postgres: PostgresEngine, times: int) -> None:
    told: list[Fact] = []
    postgres.subscribe(told.extend)
    unit = Stubborn(times)

    assert await postgres.write(unit) == times + 1

    assert await postgres.read(names) == {f"run {times + 1}"}
    assert told == [WorkAvailable(f"run {times + 1}")]


async def test_a_unit_is_run_three_times_and_no_more(postgres: PostgresEngine) -> None:
    told: list[Fact] = []
    postgres.subscribe(told.extend)
    unit = Stubborn(100)

    with pytest.raises(StorageUnavailable):
        await postgres.write(unit)

    assert unit.runs == 3
    assert await postgres.read(names) == set()
    assert told == []
    assert await postgres.write(keeps("a")) == "a"


async def test_a_unit_that_waits_for_a_lock_is_told_so_and_not_held_for_ever(
    postgres: PostgresEngine, schema: PostgresDatabase
) -> None:
    await postgres.write(keeps("a"))
    runs: list[int] = []

    def unit(conn: Connection) -> None:
        runs.append(1)
        conn.execute("SET LOCAL lock_timeout = '20ms'")  # as it is, only sooner
        meta.put(conn, "a", "changed")

    with psycopg.connect(schema.url) as other:
        other.execute("SELECT * FROM meta FOR UPDATE")
        with pytest.raises(StorageUnavailable):
            await postgres.write(unit)

    assert len(runs) == 3
    assert await postgres.write(lambda conn: conn.fetch("SHOW lock_timeout")) == [("2s",)]


async def test_a_unit_with_a_fault_of_its_own_is_run_once(postgres: PostgresEngine) -> None:
    runs: list[int] = []

    def unit(conn: Connection) -> None:
        runs.append(1)
        conn.execute("SELECT nothing FROM nowhere")

    with pytest.raises(JournalError, match="nowhere"):
        await postgres.write(unit)
    assert len(runs) == 1


async def test_units_of_different_sessions_do_not_wait_for_each_other(postgres: PostgresEngine) -> None:
    together = threading.Barrier(postgres_writers(), timeout=60)

    await asyncio.gather(*(postgres.write(lambda conn: together.wait()) for _ in range(postgres_writers())))


def postgres_writers() -> int:
    return postgres_engine.WRITERS


# -- connections that break


@pytest.fixture
async def narrow(schema: PostgresDatabase, monkeypatch: pytest.MonkeyPatch) -> PostgresEngine:
    """A journal with one connection for writing and one for reading."""
    monkeypatch.setattr(postgres_engine, "WRITERS", 1)
    monkeypatch.setattr(postgres_engine, "READERS", 1)
    engine = await migrated(schema)
    assert isinstance(engine, PostgresEngine)
    return engine


async def test_a_connection_that_was_ended_costs_one_write(narrow: PostgresEngine, schema: PostgresDatabase) -> None:
    pid = await narrow.write(backend)
    schema.change(f"SELECT pg_terminate_backend({pid}, 5000)")

    with pytest.raises(StorageUnavailable):
        await narrow.write(keeps("lost"))

    assert await narrow.write(keeps("a")) == "a"
    assert await narrow.read(names) == {"a"}
    assert await narrow.write(backend) != pid


async def test_a_connection_that_was_ended_costs_one_read(narrow: PostgresEngine, schema: PostgresDatabase) -> None:
    pid = await narrow.read(backend)
    schema.change(f"SELECT pg_terminate_backend({pid}, 5000)")

    with pytest.raises(StorageUnavailable):
        await narrow.read(names)

    assert await narrow.read(names) == set()


async def test_a_unit_whose_connection_ends_half_way_leaves_nothing(
    narrow: PostgresEngine, schema: PostgresDatabase
) -> None:
    told: list[Fact] = []
    narrow.subscribe(told.extend)

    def unit(conn: Connection) -> None:
        meta.put(conn, "half", "lost")
        conn.publish(WorkAvailable("half"))
        schema.change(f"SELECT pg_terminate_backend({backend(conn)}, 5000)")
        meta.put(conn, "other half", "lost")

    with pytest.raises(StorageUnavailable):
        await narrow.write(unit)

    assert await narrow.read(names) == set()
    assert told == []
    await narrow.write(keeps("a"))


async def test_an_engine_whose_connections_were_ended_can_be_closed(
    narrow: PostgresEngine, schema: PostgresDatabase
) -> None:
    for pid in (await narrow.write(backend), await narrow.read(backend)):
        schema.change(f"SELECT pg_terminate_backend({pid}, 5000)")

    await narrow.close()


def backend(conn: Connection) -> int:
    row = conn.fetch_one("SELECT pg_backend_pid()")
    assert row is not None
    return int(row[0])


# -- what errors say


ADDRESSES = {
    "where nobody answers": (f"postgresql://palyra:{SECRET}@127.0.0.1:1/palyra", StorageUnavailable),
    "with a port that is none": (f"postgresql://palyra:{SECRET}@127.0.0.1:port/palyra", StorageUnavailable),
    "with a second at sign": (f"postgresql://palyra:p@%2F{SECRET}@127.0.0.1:1/palyra", StorageUnavailable),
    "without a colon": (f"postgresql//palyra:{SECRET}@127.0.0.1/palyra", DatabaseUrlInvalid),
    "with an unknown option": (f"postgresql://palyra:{SECRET}@127.0.0.1:1/palyra?{SECRET}=1", DatabaseUrlInvalid),
    "with an open quote": (f"host=127.0.0.1 password='{SECRET}", DatabaseUrlInvalid),
}


@pytest.mark.parametrize(("address", "error"), ADDRESSES.values(), ids=ADDRESSES.keys())
async def test_an_error_of_the_connection_never_shows_what_is_in_the_address(
    address: str, error: type[PalyraError]
) -> None:
    engine = PostgresEngine(address)
    for door in (engine.write, engine.read):
        with pytest.raises(error) as caught:
            await door(names)
        assert SECRET not in "".join(traceback.format_exception(caught.value))
    await engine.close()


async def test_a_user_that_the_server_does_not_know_is_told_so_without_the_password(schema: PostgresDatabase) -> None:
    engine = PostgresEngine(schema.url.replace("postgres@", f"nobody:{SECRET}@"))

    with pytest.raises(StorageUnavailable) as caught:
        await engine.write(names)

    assert SECRET not in "".join(traceback.format_exception(caught.value))
    await engine.close()


async def test_a_fault_of_a_statement_says_what_it_was(postgres: PostgresEngine) -> None:
    with pytest.raises(JournalError, match="so it went"):
        await postgres.write(lambda conn: fail(conn, "P0001"))


@pytest.mark.parametrize(
    ("driver", "ours"),
    [
        (pg.DiskFull, StorageFull),
        (pg.ReadOnlySqlTransaction, StorageReadOnly),
        (pg.InsufficientPrivilege, StorageReadOnly),
        (pg.AdminShutdown, StorageUnavailable),
        (pg.TooManyConnections, StorageUnavailable),
        (psycopg.OperationalError, StorageUnavailable),
        (psycopg.InterfaceError, StorageUnavailable),
        (pg.UniqueViolation, JournalError),
        (pg.SyntaxError, JournalError),
    ],
)
def test_each_error_of_the_driver_has_a_meaning(driver: type[psycopg.Error], ours: type[PalyraError]) -> None:
    assert type(postgres.translate_error(driver("so it went"))) is ours


# -- commits


async def test_the_word_of_a_commit_comes_before_anybody_is_answered(schema: PostgresDatabase) -> None:
    order: list[str] = []

    def after_commit() -> None:
        order.append(f"commit of {len(schema.rows('SELECT name FROM meta'))}")

    engine = await migrated(schema, after_commit=after_commit)
    engine.subscribe(lambda facts: order.append("told"))
    order.clear()

    def unit(conn: Connection, name: str) -> None:
        meta.put(conn, name, "kept")
        conn.publish(WorkAvailable(name))

    for name in ("a", "b"):
        await engine.write(lambda conn, name=name: unit(conn, name))  # type: ignore[misc]
        order.append("answered")

    assert order == ["commit of 1", "told", "answered", "commit of 2", "told", "answered"]


# -- a database that is not the one it was


@pytest.fixture
def always_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_claim, "CHECK_SECONDS", -1.0)


@asynccontextmanager
async def claimed(url: str) -> AsyncIterator[PostgresEngine]:
    """The journal as a daemon has it."""
    claim = await asyncio.to_thread(PostgresClaim, url)
    engine = PostgresEngine(url, claim=claim)
    await engine.write(lambda conn: migrate(conn, now_ms=0))
    await engine.write(lambda conn: meta.put(conn, "before", "x"))
    try:
        yield engine
    finally:
        await engine.close()
        await asyncio.to_thread(claim.close)


@pytest.mark.usefixtures("always_checked")
async def test_tables_that_were_dropped_or_restored_are_noticed(schema: PostgresDatabase) -> None:
    async with claimed(schema.url) as engine:
        await engine.write(lambda conn: meta.put(conn, "after", "x"))
        schema.change("ALTER TABLE tape RENAME TO earlier; CREATE TABLE tape (LIKE earlier INCLUDING ALL)")

        for _ in range(2):
            with pytest.raises(JournalReplaced, match="palyra restart"):
                await engine.write(lambda conn: meta.put(conn, "lost", "x"))

    assert schema.rows("SELECT name FROM meta WHERE name IN ('before', 'lost')") == [("before",)]


@pytest.mark.usefixtures("always_checked")
async def test_a_database_that_stays_is_known_again_after_its_connections_ended(schema: PostgresDatabase) -> None:
    async with claimed(schema.url) as engine:
        claims = schema.rows(
            f"SELECT pid FROM pg_locks WHERE classid = {CLAIM_KEY}"
            " AND objid::bigint = hashtext(current_schema())::bigint & 4294967295"
        )
        for pid in (claims[0][0], await engine.write(backend)):
            schema.change(f"SELECT pg_terminate_backend({pid}, 5000)")

        await eventually_written(engine, "after")

    assert schema.rows("SELECT name FROM meta WHERE name = 'after'") == [("after",)]


async def test_a_connection_that_ends_while_it_is_set_up_is_no_fault_of_ours(
    schema: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with claimed(schema.url) as engine:
        for door in (engine.write, engine.read):
            pid = await door(backend)
            schema.change(f"SELECT pg_terminate_backend({pid}, 5000)")
            with monkeypatch.context() as patch:
                patch.setattr(PostgresClaim, "recognise", ending(PostgresClaim.recognise, schema))
                for _ in range(postgres_engine.WRITERS + 1):
                    with suppress(StorageUnavailable):
                        await door(names)

        await eventually_written(engine, "after")


def ending(
    recognise: Callable[[PostgresClaim, "psycopg.Connection[object]"], None], schema: PostgresDatabase
) -> Callable[[PostgresClaim, "psycopg.Connection[object]"], None]:
    """End each new connection once it is known to be the right one."""

    def recognise_and_end(claim: PostgresClaim, raw: "psycopg.Connection[object]") -> None:
        recognise(claim, raw)
        schema.change(f"SELECT pg_terminate_backend({raw.info.backend_pid}, 5000)")

    return recognise_and_end


@needs(POSTGRES)
async def test_a_server_whose_files_were_set_back_is_noticed() -> None:
    with own_postgres() as server:
        async with claimed(server.url) as engine:
            await asyncio.to_thread(server.save)
            await eventually_written(engine, "after the copy")
            await eventually_written(engine, "and more")

            await asyncio.to_thread(server.set_back)
            # The first one may only find that its connection has ended.
            with pytest.raises(JournalReplaced):
                await eventually_written(engine, "lost")


async def test_a_user_of_the_database_without_rights_on_the_server_is_enough(schema: PostgresDatabase) -> None:
    name = f"plain_{os.getpid()}"
    (current,) = schema.rows("SELECT current_schema()")[0]
    schema.change(f"CREATE ROLE {name} LOGIN; GRANT ALL ON SCHEMA {current} TO {name}")
    async with claimed(schema.url.replace("postgres@", f"{name}@")) as engine:
        await engine.write(lambda conn: meta.put(conn, "after", "x"))
    schema.change(f"DROP OWNED BY {name}; DROP ROLE {name}")


async def eventually_written(engine: PostgresEngine, name: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                return await engine.write(lambda conn: meta.put(conn, name, "x"))
            except StorageUnavailable:
                await asyncio.sleep(0.05)
