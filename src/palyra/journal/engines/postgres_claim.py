"""The claim of a daemon to its PostgreSQL database: one daemon per database, and always the same database."""

import secrets
import threading
import time
from contextlib import suppress
from typing import Any

import psycopg

from palyra.core.errors import Conflict
from palyra.journal.engines.base import JournalReplaced, StorageUnavailable
from palyra.journal.engines.postgres import connect, translate_error

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


class DatabaseInUse(Conflict):
    """Another daemon uses this database. Only one daemon per database is supported: stop the other one."""


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
