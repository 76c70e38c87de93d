"""The PostgreSQL engine: runs units on a pool of threads, each with its own connection.

READ COMMITTED with row locks: a unit that writes to a session's tape locks its head first, so units of one session
run in sequence and those of different sessions do not wait. After a deadlock or serialisation failure it runs again.
"""

import asyncio
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import lru_cache
from typing import Any, TypeVar, cast

import psycopg
from psycopg import errors as pg

from palyra.core.errors import Conflict, Invalid, JournalClosed, PalyraError
from palyra.core.events import Entry
from palyra.core.ids import SessionId
from palyra.journal.engines.base import (
    APPEND,
    JOURNAL_AWAY,
    MOVE,
    NO_PARAMS,
    Fact,
    FailureListener,
    JournalError,
    JournalReplaced,
    Listener,
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
from palyra.journal.engines.job_result import WriteResult
from palyra.journal.engines.tape_head import TapeHead
from palyra.threads import Threads

T = TypeVar("T")

DIALECT = SqlDialect(
    name="postgres",
    for_update=" FOR UPDATE",
    skip_locked=" FOR UPDATE SKIP LOCKED",
    text_type='TEXT COLLATE "C"',
    migration_lock="SELECT pg_advisory_xact_lock(7310582915)",
)
WRITERS = 8
READERS = 4
TRIES = 3
CONNECT_SECONDS = 5
TURNS = 64
CLAIM_KEY = 7_310_583
CHECK_SECONDS = 5.0
IDENTITY = (
    "SELECT (SELECT system_identifier FROM pg_control_system()), d.oid, to_regclass('tape')::oid,"
    " CASE WHEN pg_is_in_recovery() THEN '0/0' ELSE pg_current_wal_flush_lsn() END"
    " FROM pg_database d WHERE d.datname = current_database()"
)
"""The server, database and table of the tapes, and how far the server's log is durable: it never goes back.

A server in recovery cannot be written, and reports no position of its log.
"""
MARK = "SELECT value FROM meta WHERE name = 'last_check'"
LEAVE_MARK = (
    "INSERT INTO meta (name, value) VALUES ('last_check', %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)
REPLACED = (
    "The database was replaced, restored or used by another daemon while this one was running. The "
    "daemon accepts no more work. Run `palyra restart` to continue with what the database contains "
    "now, or restore a backup first."
)
CLAIM_NOT_FREE = (
    "Another connection holds this daemon's claim to the database: the server has not released it yet, or another "
    "daemon uses the database. Nothing was recorded; work continues when the claim is free."
)
IDLE_SECONDS = 15
"""The server ends a transaction of a frozen daemon after this time: its row locks block others."""

log = logging.getLogger(__name__)

_PARAMETER = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")


@lru_cache(maxsize=1024)
def _translate(sql: str) -> str:
    """Convert `:name` to the driver's syntax. The texts are constants of our stores, never input."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


_APPEND, _MOVE = _PARAMETER.sub("%s", APPEND), _PARAMETER.sub("%s", MOVE)


class DatabaseUrlInvalid(Invalid):
    """The database_url is not valid. Write it as postgresql://user:password@host/database."""


class DatabaseInUse(Conflict):
    """Another daemon uses this database. Only one daemon per database is supported: stop the other one."""


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


class PostgresEngine:
    """See the module. `after_commit` runs after each commit, before the writer is answered.

    With a claim, nothing is written unless this daemon holds the database.
    """

    def __init__(
        self, url: str, *, after_commit: Callable[[], None] | None = None, claim: "PostgresClaim | None" = None
    ) -> None:
        self._url = url
        self._claim = claim
        self._after_commit = after_commit
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Listener] = []
        self._failure_listeners: list[FailureListener] = []
        self._local = threading.local()
        self._opened: list[psycopg.Connection[Any]] = []
        self._closed = False
        self._turns = [threading.Lock() for _ in range(TURNS)]
        self._writers = Threads(WRITERS, name="journal-writer")
        self._readers = Threads(READERS, name="journal-reader")

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def on_failure(self, listener: FailureListener) -> None:
        self._failure_listeners.append(listener)

    async def write(self, unit: Unit[T]) -> T:
        if self._closed:
            raise JournalClosed
        outcome: WriteResult[T] = WriteResult(self._loop)
        self._writers.submit(self._run_unit, unit, outcome)
        return await outcome.wait()

    async def read(self, query: Unit[T]) -> T:
        if self._closed:
            raise JournalClosed
        return await self._loop.run_in_executor(self._readers, self._read, query)

    async def close(self) -> None:
        """Finish the units in progress, then close the connections."""
        if self._closed:
            return
        self._closed = True
        await self._loop.run_in_executor(None, self._writers.shutdown)
        await self._loop.run_in_executor(None, self._readers.shutdown)
        for raw in self._opened:
            raw.close()

    def _run_unit(self, unit: Unit[T], outcome: WriteResult[T]) -> None:
        result, failure = None, None
        try:
            result = self._write(unit)
        except BaseException as error:
            failure = error
        try:
            self._loop.call_soon_threadsafe(self._answer, outcome, result, failure)
        except RuntimeError:
            log.warning("the event loop is closed; a completed write has no reader")

    def _write(self, unit: Unit[T]) -> T:
        if self._claim is not None:
            self._claim.hold()
        for last in (False,) * (TRIES - 1) + (True,):
            connection = PostgresConnection(self._connect())
            try:
                with ExitStack() as turns:
                    with connection.raw.transaction():
                        result = run_unit(unit, connection)
                        self._take_turns(connection.facts, turns)
                    if self._claim is not None:
                        self._claim.has_written = True
                    self._spread(connection.facts)
                return result
            except (pg.DeadlockDetected, pg.SerializationFailure, pg.LockNotAvailable) as error:
                if last:
                    raise StorageUnavailable from error
            except psycopg.Error as error:
                self._forget(connection.raw, error)
                raise translate_error(error) from error
        raise AssertionError("the last attempt neither returned nor raised")

    def _take_turns(self, facts: list[Fact], turns: ExitStack) -> None:
        """Hold the lock of each session that has new entries, from before the commit until the listeners are notified.

        The commit unlocks the head: without this the next unit of the session could publish its entries first.
        """
        positions = {hash(fact.session_id) % TURNS for fact in facts if isinstance(fact, Entry)}
        for index in sorted(positions):  # in one order, so that two units never wait for each other
            turns.enter_context(self._turns[index])

    def _spread(self, facts: list[Fact]) -> None:
        if self._after_commit is not None:
            self._after_commit()
        if facts:
            self._loop.call_soon_threadsafe(self._notify, facts)

    def _notify(self, facts: list[Fact]) -> None:
        for listener in self._listeners:
            listener(facts)

    def _answer(self, outcome: WriteResult[T], result: T | None, failure: BaseException | None) -> None:
        if isinstance(failure, JOURNAL_AWAY):
            for failed in self._failure_listeners:
                failed(failure)
        outcome.settle(result, failure)

    def _read(self, query: Unit[T]) -> T:
        raw = self._connect()
        try:
            with raw.transaction():
                raw.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                return run_unit(query, PostgresConnection(raw))
        except psycopg.Error as error:
            self._forget(raw, error)
            raise translate_error(error) from error

    def _connect(self) -> "psycopg.Connection[Any]":
        raw: psycopg.Connection[Any] | None = getattr(self._local, "raw", None)
        if raw is None or raw.closed:
            raw = connect(self._url, idle_seconds=IDLE_SECONDS)
            if self._claim is not None:
                self._claim.recognise(raw)
            self._local.raw = raw
            self._opened.append(raw)
        return raw

    def _forget(self, raw: "psycopg.Connection[Any]", error: psycopg.Error) -> None:
        """Drop a connection that cannot be used any more; the next unit of this thread opens another.

        A read-only connection stays so after the database can be written again: it is a setting of the session.
        """
        if raw.closed or raw.broken or isinstance(error, pg.ReadOnlySqlTransaction):
            raw.close()
            self._opened.remove(raw)
            self._local.raw = None


class PostgresClaim:
    """Claims the database for one daemon with its own connection. Everything here blocks.

    The server releases the claim when that connection ends. A frozen daemon keeps it, and so keeps others out. A daemon
    that starts is refused if another has the claim. One that has held it waits until it is free again: the server tells
    a client that its connection ends before it releases what the connection held.

    It also recognises the database: one that was recreated, restored from a dump, or set back with the files of its
    server is refused permanently, with every new connection and every few seconds. After a failover the new server is
    accepted, as long as it has everything that the daemon has seen. The position of the server's log alone does not
    show that: a server that was set back may have written as much again. So each check leaves a new mark in the
    database, and the next one must find it. Until the daemon has written something it leaves none: it may find that it
    must not change this database.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._raw: psycopg.Connection[Any] | None = None
        self._turn = threading.Lock()
        self._checked = 0.0
        self._identity: tuple[object, ...] | None = None
        self._log_end = 0
        self._marks: tuple[str | None, ...] | None = None
        """What the mark may be: two values after a write whose outcome is unknown, None before the first check."""
        self._replaced = False
        self._held = False
        """Whether this daemon has held the claim before."""
        self.has_written = False
        """Whether the daemon has committed something; set by its engine."""
        self.hold()

    def hold(self) -> None:
        """Check from time to time that the claim is held; take it again if its connection has ended."""
        with self._turn:
            now = time.monotonic()
            if self._raw is None or self._raw.closed or now - self._checked > CHECK_SECONDS:
                self._leave_mark(self._hold())
                self._checked = now
            self._refuse_replaced()

    def recognise(self, raw: "psycopg.Connection[Any]") -> None:
        """Raise `JournalReplaced`, and close the connection, unless it leads to the known database.

        A new connection often follows the end of others, the claim's own among them: that one is checked first.
        """
        with self._turn:
            try:
                self._leave_mark(self._hold())
                self._recognise(raw)
                self._refuse_replaced()
            except BaseException:
                raw.close()
                raise

    def _hold(self) -> "psycopg.Connection[Any]":
        try:
            if self._raw is not None:
                self._recognise(self._raw)
                return self._raw
        except StorageUnavailable:
            # The server was restarted, or it ended this connection.
            self.close()
        raw = connect(self._url)
        try:
            row = raw.execute("SELECT pg_try_advisory_lock(%s, hashtext(current_schema()))", (CLAIM_KEY,)).fetchone()
            if row is None or not row[0]:
                raise StorageUnavailable(CLAIM_NOT_FREE) if self._held else DatabaseInUse()
            self._recognise(raw)
        except psycopg.Error as error:
            raw.close()
            raise translate_error(error) from error
        except BaseException:
            raw.close()
            raise
        self._raw, self._held = raw, True
        return raw

    def _leave_mark(self, raw: "psycopg.Connection[Any]") -> None:
        if not self.has_written or self._identity is None or self._replaced:
            return
        mark = secrets.token_hex(8)
        # A database that cannot be written, such as one on a full disk, still serves reads: its next write reports it.
        with suppress(psycopg.Error):
            row = raw.execute(MARK).fetchone()
            self._marks = (row[0] if row else None, mark)
            raw.execute(LEAVE_MARK, (mark,))
            self._marks = (mark,)

    def _recognise(self, raw: "psycopg.Connection[Any]") -> None:
        try:
            row = raw.execute(IDENTITY).fetchone()
            assert row is not None
            *identity, log_end = row
            mark = raw.execute(MARK).fetchone() if self._marks is not None and identity[-1] is not None else None
        except psycopg.Error as error:
            raise translate_error(error) from error
        if self._identity is None and identity[-1] is not None:
            # Before the first start there are no tables yet.
            self._identity = tuple(identity)
        same = self._identity is None or self._identity == tuple(identity)
        same = same and (self._marks is None or (mark[0] if mark else None) in self._marks)
        self._replaced = self._replaced or not same or 0 < _lsn(log_end) < self._log_end
        self._log_end = max(self._log_end, _lsn(log_end))

    def _refuse_replaced(self) -> None:
        if self._replaced:
            raise JournalReplaced(REPLACED)

    def close(self) -> None:
        """Release the database."""
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.close()


def _lsn(text: str) -> int:
    """Parse a position in the server's log: two hexadecimal numbers."""
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


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
