"""PostgreSQL: connections to the database, and how they are opened."""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import Any, TypeVar, cast

import psycopg
from psycopg import errors as pg

from palyra.core.errors import Invalid, PalyraError
from palyra.core.events import Entry
from palyra.core.ids import SessionId
from palyra.journal.engines.base import (
    APPEND,
    MOVE,
    NO_PARAMS,
    Fact,
    JournalError,
    Params,
    Row,
    SqlDialect,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
    TapeRow,
    Unit,
    run_unit,
)
from palyra.journal.engines.tape_head import TapeHead

T = TypeVar("T")

DIALECT = SqlDialect(
    name="postgres",
    for_update=" FOR UPDATE",
    skip_locked=" FOR UPDATE SKIP LOCKED",
    text_type='TEXT COLLATE "C"',
    migration_lock="SELECT pg_advisory_xact_lock(7310582915)",
)
CONNECT_SECONDS = 5

_PARAMETER = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")


@lru_cache(maxsize=1024)
def _translate(sql: str) -> str:
    """Convert `:name` to the driver's syntax. The texts are constants of our stores, never input."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


_APPEND, _MOVE = _PARAMETER.sub("%s", APPEND), _PARAMETER.sub("%s", MOVE)


class DatabaseUrlInvalid(Invalid):
    """The database_url is not valid. Write it as postgresql://user:password@host/database."""


class PostgresConnection:
    """A connection with the interface for stores."""

    dialect = DIALECT

    def __init__(self, raw: "psycopg.Connection[Any]") -> None:
        self.raw = raw
        self.facts: list[Fact] = []
        self.heads: dict[SessionId, TapeHead] = {}

    def execute(self, sql: str, params: Params = NO_PARAMS) -> int:
        return self.raw.execute(_translate(sql), params).rowcount

    def execute_many(self, sql: str, rows: Sequence[Params]) -> None:
        if len(rows) == 1:
            self.execute(sql, rows[0])
        elif rows:
            with self.raw.cursor() as cursor:
                cursor.executemany(_translate(sql), rows)

    def fetch(self, sql: str, params: Params = NO_PARAMS) -> list[Row]:
        return self.raw.execute(_translate(sql), params).fetchall()

    def fetch_one(self, sql: str, params: Params = NO_PARAMS) -> Row | None:
        return cast("Row | None", self.raw.execute(_translate(sql), params).fetchone())

    def append(self, entries: Sequence[Entry], rows: Sequence[TapeRow], *, head: TapeHead) -> None:
        session_id = entries[0].session_id
        self.facts += entries
        if len(rows) == 1:
            self.raw.execute(_APPEND, rows[0])
        else:
            with self.raw.cursor() as cursor:
                cursor.executemany(_APPEND, rows)
        self.raw.execute(_MOVE, (head.tape_seq, head.hash, session_id))
        self.heads[session_id] = head

    def publish(self, fact: Fact) -> None:
        self.facts.append(fact)


class PostgresWriter:
    """Writes the units of one command, without an engine."""

    def __init__(self, raw: "psycopg.Connection[Any]") -> None:
        self._raw = raw

    def write(self, unit: Unit[T]) -> T:
        try:
            with self._raw.transaction():
                return run_unit(unit, PostgresConnection(self._raw))
        except pg.LockNotAvailable as error:
            raise StorageUnavailable(
                "The journal in the database is in use. Stop every daemon that uses it, then try again."
            ) from error
        except psycopg.Error as error:
            raise translate_error(error) from error


def connect(url: str, *, idle_seconds: int = 0) -> "psycopg.Connection[Any]":
    """Open a connection with our settings; the server ends a transaction that is idle for longer, 0 is for ever."""
    try:
        raw = psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_SECONDS)
        raw.execute("SET lock_timeout = '2s'")
        raw.execute(f"SET idle_in_transaction_session_timeout = '{idle_seconds}s'")
    # Without their cause: the driver quotes parts of the address, and a part may hold the password.
    except psycopg.ProgrammingError:
        raise DatabaseUrlInvalid from None
    except psycopg.Error as error:
        raise translate_error(error) from None
    return raw


@contextmanager
def open_snapshot(url: str) -> Iterator[PostgresConnection]:
    """Open the database for reading, in one snapshot."""
    with closing(connect(url)) as raw:
        try:
            raw.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield PostgresConnection(raw)
        except psycopg.Error as error:
            raise translate_error(error) from error


def translate_error(error: psycopg.Error) -> PalyraError:
    """Convert a driver's error into ours. The connection string is never part of it."""
    match error:
        case pg.DiskFull():
            return StorageFull()
        case pg.ReadOnlySqlTransaction() | pg.InsufficientPrivilege():
            return StorageReadOnly()
        case psycopg.OperationalError() | psycopg.InterfaceError() | pg.IdleInTransactionSessionTimeout():
            return StorageUnavailable(
                "The database cannot be reached. Check that it is running and that database_url is right."
            )
        case _:
            return JournalError(f"{type(error).__name__}: {error.diag.message_primary}")
