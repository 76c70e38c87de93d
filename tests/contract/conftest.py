"""Both engines, each as its users meet it: SQLite in a file, PostgreSQL in a schema of its own."""

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from palyra.journal.engines import postgres as on_postgres
from palyra.journal.engines import sqlite as on_sqlite
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.engines.postgres import PostgresConnection
from palyra.journal.engines.postgres_engine import PostgresEngine
from palyra.journal.engines.sqlite import SqliteConnection
from palyra.journal.engines.sqlite_engine import SqliteEngine
from palyra.journal.migrate import migrate
from tests.contract.database import NOW_MS, Database, PostgresDatabase, SqliteDatabase, closed, migrated
from tests.support.postgres import drop_schema, new_schema


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    """An empty place for a journal on SQLite."""
    database = SqliteDatabase(tmp_path / "journal.sqlite")
    yield database
    await closed(database)


@pytest.fixture
async def schema(postgres_url: str) -> AsyncIterator[PostgresDatabase]:
    """An empty place for a journal on PostgreSQL."""
    database = PostgresDatabase(postgres_url)
    yield database
    await closed(database)


@pytest.fixture(params=["file", "schema"], ids=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    """An empty place for a journal, on either engine."""
    found: Database = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def engine(database: Database) -> Engine:
    """A journal on either engine, its schema up to date."""
    return await migrated(database)


@pytest.fixture
async def sqlite(file: SqliteDatabase) -> SqliteEngine:
    """A journal on SQLite, its schema up to date."""
    engine = await migrated(file)
    assert isinstance(engine, SqliteEngine)
    return engine


@pytest.fixture
async def postgres(schema: PostgresDatabase) -> PostgresEngine:
    """A journal on PostgreSQL, its schema up to date."""
    engine = await migrated(schema)
    assert isinstance(engine, PostgresEngine)
    return engine


# -- one unit, for the stores: they need no engine, and nothing of it is kept


@pytest.fixture(params=["sqlite_unit", "postgres_unit"], ids=["sqlite", "postgres"])
def conn(request: pytest.FixtureRequest) -> Connection:
    """The inside of one unit on either engine, with empty tables; it is rolled back after the test."""
    found: Connection = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def sqlite_unit(sqlite_opened: SqliteConnection) -> Iterator[SqliteConnection]:
    sqlite_opened.execute("BEGIN IMMEDIATE")
    sqlite_opened.facts = []
    yield sqlite_opened
    sqlite_opened.execute("ROLLBACK")
    sqlite_opened.forget()


@pytest.fixture
def postgres_unit(postgres_opened: PostgresConnection) -> Iterator[PostgresConnection]:
    postgres_opened.execute("BEGIN")
    postgres_opened.facts = []
    yield postgres_opened
    postgres_opened.execute("ROLLBACK")
    postgres_opened.heads = {}


@pytest.fixture(scope="session")
def sqlite_opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteConnection]:
    path = tmp_path_factory.mktemp("units") / "journal.sqlite"
    with closing(on_sqlite.open_for_writing(path)) as raw:
        conn = SqliteConnection(raw)
        with raw:
            migrate(conn, now_ms=NOW_MS)
        yield conn


@pytest.fixture(scope="session")
def postgres_opened(postgres_server: str) -> Iterator[PostgresConnection]:
    url = new_schema(postgres_server)
    with closing(on_postgres.connect(url)) as raw:
        conn = PostgresConnection(raw)
        with raw.transaction():
            migrate(conn, now_ms=NOW_MS)
        yield conn
    drop_schema(url)
