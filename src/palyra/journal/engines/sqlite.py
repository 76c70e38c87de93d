"""SQLite: connections to the journal file, and how it is opened."""

import errno
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import apsw

from palyra.core.errors import PalyraError, Unavailable
from palyra.core.events import Entry
from palyra.core.ids import SessionId
from palyra.journal.engines.base import (
    APPEND,
    MOVE,
    NO_PARAMS,
    Connection,
    Fact,
    JournalDamaged,
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
from palyra.journal.engines.sqlite_files import LOG_LIMIT_BYTES
from palyra.journal.engines.tape_head import TapeHead

T = TypeVar("T")

DIALECT = SqlDialect(name="sqlite", for_update="", skip_locked="", text_type="TEXT", migration_lock="")
BUSY_MS = 5_000
STATEMENTS_CACHED = 256
LOST = "A unit ended the transaction that it ran in."

_TAPES = re.compile(r"\b(tape|heads)\b")


class JournalLogNotReadable(Unavailable):
    """The journal's write-ahead log cannot be read in a read-only folder. Copy the home to a writable one."""


class SqliteConnection:
    """A connection with the interface for stores."""

    dialect = DIALECT

    def __init__(self, raw: apsw.Connection) -> None:
        self.raw = raw
        # One for all statements: each runs to completion, and a new cursor costs as much as a small statement.
        self._cursor = raw.cursor()
        self.facts: list[Fact] = []
        self.heads: dict[SessionId, TapeHead] = {}
        self._rows: list[TapeRow] = []
        """Entries that are still to be written,"""
        self._moved: dict[SessionId, TapeHead] = {}
        """and the new heads of their tapes."""
        self.changed = False
        """Whether a statement ran that may have changed something."""

    def execute(self, sql: str, params: Params = NO_PARAMS) -> int:
        self._prepare(sql)
        self._cursor.execute(sql, params).fetchall()
        return self.raw.changes()

    def execute_many(self, sql: str, rows: Sequence[Params]) -> None:
        self._prepare(sql)
        self._cursor.executemany(sql, rows).fetchall()

    def fetch(self, sql: str, params: Params = NO_PARAMS) -> list[Row]:
        self._prepare(sql)
        return self._cursor.execute(sql, params).fetchall()

    def fetch_one(self, sql: str, params: Params = NO_PARAMS) -> Row | None:
        self._prepare(sql)
        rows = self._cursor.execute(sql, params).fetchall()
        return rows[0] if rows else None

    def append(self, entries: Sequence[Entry], rows: Sequence[TapeRow], *, head: TapeHead) -> None:
        session_id = entries[0].session_id
        self.changed = True
        self.facts += entries
        self._rows += rows
        self._moved[session_id] = self.heads[session_id] = head

    def flush(self) -> None:
        """Write the deferred entries. Call it before a commit."""
        if not self._rows:
            return
        if not self.raw.in_transaction:
            # Each row would commit on its own, and some belong to units that will run again.
            raise JournalError(LOST)
        rows, moved = self._rows, self._moved
        self._rows, self._moved = [], {}
        self._cursor.executemany(APPEND, rows).fetchall()
        heads = [(head.tape_seq, head.hash, session_id) for session_id, head in moved.items()]
        self._cursor.executemany(MOVE, heads).fetchall()

    def forget(self) -> None:
        """Drop known heads and deferred entries: the transaction was rolled back, or another connection has written."""
        self._rows, self._moved, self.heads = [], {}, {}

    def _prepare(self, sql: str) -> None:
        """Record whether the statement may change something, and write the deferred entries if it needs them."""
        reads, concerned = _kind(sql)
        if not reads:
            self.changed = True
        if concerned:
            self.flush()
            if not reads:
                self.heads.clear()

    def publish(self, fact: Fact) -> None:
        self.facts.append(fact)


@lru_cache(maxsize=1_024)
def _kind(sql: str) -> tuple[bool, bool]:
    """Return whether a statement only reads, and whether deferred entries concern it."""
    concerned = _TAPES.search(sql) is not None and not sql.startswith("INSERT INTO heads (")
    return sql.startswith("SELECT"), concerned


class SqliteWriter:
    """Writes the units of one command, without an engine: the caller has locked the home, so no daemon writes."""

    def __init__(self, raw: apsw.Connection) -> None:
        self._raw = raw

    def write(self, unit: Unit[T]) -> T:
        try:
            self._raw.execute("BEGIN IMMEDIATE")
            try:
                connection = SqliteConnection(self._raw)
                result = run_unit(unit, connection)
                connection.flush()
                self._raw.execute("COMMIT")
            finally:
                if self._raw.in_transaction:
                    self._raw.execute("ROLLBACK")
        except apsw.Error as error:
            raise translate_error(error) from error
        return result


def open_for_writing(path: Path) -> apsw.Connection:
    """Open the journal file, for its owner only; create it if it is missing."""
    try:
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        raw = apsw.Connection(str(path), statementcachesize=STATEMENTS_CACHED)
        if raw.readonly("main"):
            # Ask SQLite instead of opening the file: closing it again would drop the locks that this process has on it.
            raise StorageReadOnly(f"{path} cannot be opened for writing.")
        raw.set_busy_timeout(BUSY_MS)
        _log_ahead(raw)
        raw.execute("PRAGMA synchronous = FULL")
        raw.execute("PRAGMA foreign_keys = ON")
        raw.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT_BYTES}").fetchall()
    except apsw.Error as error:
        raise translate_error(error) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull from error
        raise StorageReadOnly(f"{path} cannot be opened for writing: {error.strerror}.") from error
    return raw


def _log_ahead(raw: apsw.Connection) -> None:
    """Put the file into WAL mode, even while other processes open the same new file.

    Two processes that both change the mode hold each other's read lock, so SQLite refuses one of them at once, without
    its busy timeout. Requesting the exclusive lock does wait; after that the mode is most likely changed already.
    """
    until = time.monotonic() + BUSY_MS / 1_000
    while True:
        try:
            raw.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except apsw.BusyError:
            if time.monotonic() > until:
                raise
        raw.execute("BEGIN EXCLUSIVE; ROLLBACK")


def open_for_reading(path: Path) -> apsw.Connection:
    """Open the journal file without ever changing it, whether a daemon writes to it or not."""
    try:
        raw = _open_read_only(path)
        raw.execute("PRAGMA query_only = ON")
    except apsw.Error as error:
        raise translate_error(error) from error
    return raw


def _open_read_only(path: Path) -> apsw.Connection:
    raw = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=STATEMENTS_CACHED)
    # Before the first read: a writer that makes the log or recovers it holds readers off for a moment.
    raw.set_busy_timeout(BUSY_MS)
    try:
        # SQLite opens the log and its index with the first read.
        raw.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
    except (apsw.CantOpenError, apsw.ReadOnlyError):  # on a read-only mount, and without write permission
        raw.close()
        if os.access(path.parent, os.W_OK):
            raise
        return _open_unchanging(path)
    return raw


def _open_unchanging(path: Path) -> apsw.Connection:
    """Open a file in a folder where SQLite cannot create the index of the log, which it needs even without a log."""
    log_file = Path(f"{path}-wal")
    if log_file.exists() and log_file.stat().st_size > 0:
        # Opening the file as immutable ignores its log.
        raise JournalLogNotReadable(
            f"{log_file} contains entries that are not in {path.name} yet, and cannot be read in a "
            "read-only folder. Copy both files, journal.key and the archive to a writable folder, and "
            "name it with --home."
        )
    return apsw.Connection(
        f"file:{quote(str(path))}?immutable=1",
        flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
        statementcachesize=STATEMENTS_CACHED,
    )


def copy(path: Path, target: Path) -> None:
    """Write a consistent copy of the journal file into an empty file; another process may be writing to the journal."""
    try:
        with closing(_open_read_only(path)) as raw:
            raw.execute("VACUUM INTO :target", {"target": str(target)}).fetchall()
    except apsw.Error as error:
        raise translate_error(error) from error


def file_problems(conn: Connection) -> list[str]:
    """Return the problems that SQLite finds in the file itself, none if it is undamaged."""
    matches = [str(row[0]) for row in conn.fetch("PRAGMA integrity_check(20)")]
    return [] if matches == ["ok"] else matches


@contextmanager
def open_snapshot(path: Path) -> Iterator[SqliteConnection]:
    """Open the journal file for reading, in one snapshot."""
    with closing(open_for_reading(path)) as raw:
        try:
            raw.execute("BEGIN")
            yield SqliteConnection(raw)
        except apsw.Error as error:
            raise translate_error(error) from error


def translate_error(error: apsw.Error) -> PalyraError:
    """Convert a driver's error into ours."""
    match error:
        case apsw.FullError():
            return StorageFull()
        case apsw.IOError() if getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_SHMSIZE:
            return StorageFull()
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
            return StorageReadOnly()
        case apsw.CorruptError() | apsw.NotADBError():
            return JournalDamaged()
        case apsw.IOError() | apsw.BusyError() | apsw.LockedError() | apsw.InterruptError() | apsw.NoMemError():
            return StorageUnavailable(f"{StorageUnavailable.__doc__} ({type(error).__name__}: {error})")
        case _:
            return JournalError(f"{type(error).__name__}: {error}")
