"""A connection for long reads of a journal that is in use: it pauses for others, and stops on request.

A long read has its own thread, but Python runs one thread at a time. A thread that reads a million entries without a
pause makes every other thread wait for its turn again and again.
"""

import threading
from collections.abc import Sequence

from palyra.core.errors import Unavailable
from palyra.core.events import Entry
from palyra.journal.engines.base import NO_PARAMS, Connection, Fact, Params, Row, TapeRow
from palyra.journal.engines.tape_head import TapeHead

ROWS_BETWEEN_PAUSES = 250
PAUSE_SECONDS = 0.001


class JournalReadCancelled(Unavailable):
    """The read was cancelled because the daemon is stopping. Try again when it is running."""


class ThrottledConnection:
    """Reads through another connection; raises `JournalReadCancelled` instead of the next read once `stop` is set."""

    def __init__(self, conn: Connection, stop: threading.Event, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self.dialect = conn.dialect
        self.heads = conn.heads
        self._conn = conn
        self._stop = stop
        self._pause_seconds = pause_seconds
        self._rows = 0

    def execute(self, sql: str, params: Params = NO_PARAMS) -> int:
        self._pace(0)
        return self._conn.execute(sql, params)

    def execute_many(self, sql: str, rows: Sequence[Params]) -> None:
        self._pace(len(rows))
        self._conn.execute_many(sql, rows)

    def fetch(self, sql: str, params: Params = NO_PARAMS) -> list[Row]:
        self._pace(0)
        rows = self._conn.fetch(sql, params)
        self._pace(len(rows))
        return rows

    def fetch_one(self, sql: str, params: Params = NO_PARAMS) -> Row | None:
        self._pace(0)
        return self._conn.fetch_one(sql, params)

    def append(self, entries: Sequence[Entry], rows: Sequence[TapeRow], *, head: TapeHead) -> None:
        self._pace(len(rows))
        self._conn.append(entries, rows, head=head)

    def publish(self, fact: Fact) -> None:
        self._conn.publish(fact)

    def _pace(self, rows: int) -> None:
        self._rows += 1 + rows
        if self._rows >= ROWS_BETWEEN_PAUSES:
            self._rows = 0
            self._stop.wait(self._pause_seconds)
        if self._stop.is_set():
            raise JournalReadCancelled
