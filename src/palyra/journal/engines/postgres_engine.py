"""The PostgreSQL engine: runs units on a pool of threads, each with its own connection.

READ COMMITTED with row locks: a unit that writes to a session's tape locks its head first, so units of one session
run in sequence and those of different sessions do not wait. After a deadlock or serialisation failure it runs again.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg

from palyra.core.errors import JournalClosed
from palyra.core.events import Entry
from palyra.journal.engines.base import Fact, StorageUnavailable, Unit, run_unit
from palyra.journal.engines.postgres import PostgresConnection, connect, translate_error
from palyra.journal.engines.postgres_claim import PostgresClaim
from palyra.journal.engines.threaded_engine import ThreadedEngine
from palyra.journal.engines.write_result import WriteResult
from palyra.threads import Threads

T = TypeVar("T")

WRITERS = 8
READERS = 4
TRIES = 3
TURNS = 64
IDLE_SECONDS = 15
"""The server ends a transaction of a frozen daemon after this time: its row locks block others."""


class PostgresEngine(ThreadedEngine):
    """See the module. `after_commit` runs after each commit, before the writer is answered.

    With a claim, nothing is written unless this daemon holds the database.
    """

    def __init__(
        self, url: str, *, after_commit: Callable[[], None] | None = None, claim: PostgresClaim | None = None
    ) -> None:
        super().__init__(readers=READERS, after_commit=after_commit)
        self._url = url
        self._claim = claim
        self._local = threading.local()
        self._opened: list[psycopg.Connection[Any]] = []
        self._turns = [threading.Lock() for _ in range(TURNS)]
        self._writers = Threads(WRITERS, name="journal-writer")

    async def write(self, unit: Unit[T]) -> T:
        if self._closed:
            raise JournalClosed
        outcome: WriteResult[T] = WriteResult(self._loop)
        self._writers.submit(self._run_unit, unit, outcome)
        return await outcome.wait()

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
        self._on_loop(self._settle, outcome, result, failure)

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
