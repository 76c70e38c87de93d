"""A database under test: opened the way the daemon opens it, and looked at behind the engine's back."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg

from palyra.journal import migrate
from palyra.journal.engines.base import Engine, Row
from palyra.journal.engines.postgres_engine import PostgresEngine
from palyra.journal.engines.sqlite_engine import SqliteEngine
from tests.support.sqlite_file import opened

NOW_MS = 1_767_323_045_678


class Database(Protocol):
    """One of the kinds of database. `rows` and `change` go around the engine, over a connection of their own."""

    name: str
    engines: list[Engine]

    def engine(self, *, after_commit: Callable[[], None] | None = None) -> Engine:
        """Open an engine as it is; the fixture closes it."""
        ...

    def rows(self, sql: str) -> list[Row]: ...

    def change(self, sql: str) -> None: ...

    def dump(self) -> dict[str, list[Row]]:
        """Return the whole schema, and all rows of every table."""
        ...


@dataclass
class SqliteDatabase:
    """A file."""

    path: Path
    name: str = "sqlite"
    engines: list[Engine] = field(default_factory=list)

    def engine(self, *, after_commit: Callable[[], None] | None = None) -> SqliteEngine:
        engine = SqliteEngine(self.path, after_commit=after_commit)
        self.engines.append(engine)
        return engine

    def rows(self, sql: str) -> list[Row]:
        with opened(self.path, read_only=True) as raw:
            return raw.execute(sql).fetchall()

    def change(self, sql: str) -> None:
        with opened(self.path) as raw:
            raw.execute(sql).fetchall()

    def dump(self) -> dict[str, list[Row]]:
        schema = self.rows("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name")
        tables = [str(row[1]) for row in schema if row[0] == "table"]
        return {"": schema, **{table: self.rows(f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables}}


@dataclass
class PostgresDatabase:
    """A schema of a running server."""

    url: str
    name: str = "postgres"
    engines: list[Engine] = field(default_factory=list)

    def engine(self, *, after_commit: Callable[[], None] | None = None) -> PostgresEngine:
        engine = PostgresEngine(self.url, after_commit=after_commit)
        self.engines.append(engine)
        return engine

    def rows(self, sql: str) -> list[Row]:
        with psycopg.connect(self.url, autocommit=True) as raw:
            return self._execute(raw, sql).fetchall()

    def change(self, sql: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as raw:
            self._execute(raw, sql)

    def dump(self) -> dict[str, list[Row]]:
        of_ours = "WHERE table_schema = current_schema()"
        schema = self.rows(f"SELECT * FROM information_schema.columns {of_ours} ORDER BY table_name, column_name")
        tables = self.rows(f"SELECT table_name FROM information_schema.tables {of_ours} ORDER BY 1")
        return {"": schema, **{row[0]: self.rows(f"SELECT * FROM {row[0]} ORDER BY 1, 2") for row in tables}}

    def _execute(self, raw: "psycopg.Connection[Any]", sql: str) -> "psycopg.Cursor[Any]":
        return raw.execute(sql.encode())


async def migrated(database: Database, *, after_commit: Callable[[], None] | None = None) -> Engine:
    """Open an engine whose schema is up to date."""
    engine = database.engine(after_commit=after_commit)
    await engine.write(lambda conn: migrate.migrate(conn, now_ms=NOW_MS))
    return engine


async def closed(database: Database) -> None:
    """Close whatever was opened."""
    async with asyncio.timeout(60):
        for engine in database.engines:
            await engine.close()
