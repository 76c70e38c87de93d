"""The SQLite engine: one writer thread that commits in groups, several readers.

Theory of operation. All units that wait when the writer is free become one transaction: one COMMIT and so one fsync
for all, then all are answered. Most units succeed, and of those that fail most have changed nothing yet; so a group
first runs without savepoints, which would cost each unit as much as a statement. If one fails after it changed
something, all is rolled back, and the group runs once more, each unit in its own savepoint: then a unit that fails
undoes its own changes and the others continue, as long as the transaction lives. A full disk, an I/O error or a failed
COMMIT ends the whole transaction with every savepoint; a statement run after that would commit on its own. So the
group stops at once, the unit that failed gets its error, and each of the others runs again alone.

Before a group the engine checks that its files still exist (`sqlite_files.py`). If not, it writes nothing from then
on, and leaves the files as they are when it closes; its open files can still be read.
"""

import asyncio
import ctypes
import errno
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import apsw

from palyra.core.errors import JournalClosed, PalyraError, Unavailable
from palyra.core.events import Entry
from palyra.core.ids import SessionId
from palyra.journal.engines.base import (
    APPEND,
    JOURNAL_AWAY,
    MOVE,
    NO_PARAMS,
    Connection,
    Fact,
    FailureListener,
    JournalDamaged,
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
from palyra.journal.engines.sqlite_files import LOG_LIMIT_BYTES, Fault, Happened, SqliteFiles
from palyra.journal.engines.tape_head import TapeHead
from palyra.threads import Threads

T = TypeVar("T")

DIALECT = SqlDialect(name="sqlite", for_update="", skip_locked="", text_type="TEXT", migration_lock="")
READERS = 2
MAX_GROUP_UNITS = 512
BUSY_MS = 5_000
STATEMENTS_CACHED = 256
HEADS_KNOWN = 1_024
SAFE = "Everything recorded so far is safe. Restart the daemon with `palyra restart`."
NOT_SAFE = (
    "Copy the home folder as it is, stop the daemon with `palyra down`, then restore a backup with"
    " `palyra backup restore`."
)
LOST = "A unit ended the transaction that it ran in."

_TAPES = re.compile(r"\b(tape|heads)\b")

log = logging.getLogger(__name__)


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


class _Job(WriteResult[Any]):
    """A queued unit and its result. One object and not two, without a constructor: every write creates one."""

    __slots__ = ("answer", "error", "unit")

    unit: Unit[Any]
    answer: Any
    error: BaseException | None


class SqliteEngine:
    """See the module. `after_commit` runs in the writer thread after each commit, before callers are answered."""

    def __init__(self, path: Path, *, after_commit: Callable[[], None] | None = None) -> None:
        self._path = path
        self._after_commit = after_commit
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Listener] = []
        self._failure_listeners: list[FailureListener] = []
        self._version = -1
        """The `data_version` that the writer last saw; another connection's commit changes it."""
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._replaced: JournalReplaced | None = None
        """Set permanently once the files are not those that were opened."""
        # Opened here, so that an unusable file is an error of the start and not of the first write.
        self._writer = SqliteConnection(open_for_writing(path))
        _keep_files(self._writer.raw)
        raw = self._writer.raw
        self._files = SqliteFiles(path, sized=lambda: int(raw.pragma("page_count")) * int(raw.pragma("page_size")))
        self._thread = threading.Thread(target=self._write_for_ever, name="journal-writer", daemon=True)
        self._thread.start()
        self._idle: queue.SimpleQueue[SqliteConnection] = queue.SimpleQueue()
        self._opened: list[apsw.Connection] = []
        self._readers = Threads(READERS, name="journal-reader")

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def on_failure(self, listener: FailureListener) -> None:
        self._failure_listeners.append(listener)

    async def write(self, unit: Unit[T]) -> T:
        if self._closed:
            raise JournalClosed
        job = _Job(self._loop)
        job.unit = unit
        self._jobs.put(job)
        answer: T = await job.wait()
        return answer

    async def read(self, query: Unit[T]) -> T:
        if self._closed:
            raise JournalClosed
        return await self._loop.run_in_executor(self._readers, self._read, query)

    async def close(self) -> None:
        """Answer the queued units, then close the file."""
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        await self._loop.run_in_executor(None, self._thread.join)
        await self._loop.run_in_executor(None, self._readers.shutdown)
        await self._loop.run_in_executor(None, self._let_go)

    def _let_go(self) -> None:
        left_alone = self._moved() is not None
        for connection in (*self._opened, self._writer.raw):
            if left_alone:
                # The last connection to close would write the log into the file, and delete what has the log's name.
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()
        self._files.close()

    def _read(self, query: Unit[T]) -> T:
        connection = self._take_reader()
        try:
            connection.execute("BEGIN")
            try:
                return run_unit(query, connection)
            finally:
                connection.execute("COMMIT")
        except apsw.Error as error:
            raise self._moved() or translate_error(error) from error
        finally:
            self._idle.put(connection)

    def _take_reader(self) -> SqliteConnection:
        with suppress(queue.Empty):
            return self._idle.get_nowait()
        if (error := self._moved()) is None:
            raw = open_for_reading(self._path)
            # It has opened its files by now, so they can be compared with ours.
            if (error := self._moved()) is None:
                self._opened.append(raw)
                return SqliteConnection(raw)
            raw.close()
        if not self._opened:
            raise error
        return self._idle.get()

    def _moved(self) -> JournalReplaced | None:
        """Return the error for all callers if a file's name is missing or names another file; for any thread."""
        if self._replaced is None:
            with suppress(OSError):
                if (fault := self._files.moved()) is not None:
                    return _replaced_error(fault, NOT_SAFE)
        return self._replaced

    # -- the writer thread

    def _write_for_ever(self) -> None:
        self._files.remember()
        while (job := self._jobs.get()) is not None:
            group = [job]
            stop = False
            while len(group) < MAX_GROUP_UNITS:
                try:
                    further = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if further is None:
                    stop = True
                    break
                group.append(further)
            self._run_group(group)
            if stop:
                return

    def _run_group(self, group: list[_Job]) -> None:
        # Nothing of a unit that must run again is recorded. A unit that is alone in its group always gets its answer.
        for again in self._try_group(group, careful=False):
            for alone in self._try_group(again, careful=True):
                self._try_group(alone, careful=True)

    def _try_group(self, group: list[_Job], *, careful: bool) -> list[list[_Job]]:
        """Run the units in one transaction and answer them; return the groups that must run again."""
        connection, raw = self._writer, self._writer.raw
        connection.facts = []
        try:
            if self._replaced is not None:
                raise self._replaced
            raw.execute("BEGIN IMMEDIATE")
            self._remember()
            self._look_at_files()
        except (apsw.Error, PalyraError) as error:
            # No unit has run, so none caused it; waiting again for each of them would only take longer.
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            for job in group:
                job.answer, job.error = None, translate_error(error) if isinstance(error, apsw.Error) else error
            self._answer(group)
            return []
        try:
            for job in group:
                if self._run(job, careful=careful):
                    continue
                connection.forget()
                if not raw.in_transaction:
                    self._answer([job])
                    return [[other] for other in group if other is not job]
                raw.execute("ROLLBACK")
                if len(group) > 1:
                    return [group]
                self._answer(group)
                return []
            connection.flush()
            raw.execute("COMMIT")
            self._files.remember()
        except apsw.Error as error:
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            connection.forget()
            if len(group) > 1:
                return [[job] for job in group]
            group[0].error = translate_error(error)
            self._answer(group)
            return []
        if self._after_commit is not None:
            self._after_commit()
        self._answer(group, connection.facts)
        return []

    def _remember(self) -> None:
        """Keep the known heads of the tapes, unless another connection has committed since."""
        version = int(self._writer.raw.pragma("data_version"))
        if version != self._version or len(self._writer.heads) > HEADS_KNOWN:
            self._version = version
            self._writer.forget()
            self._files.allow()

    def _look_at_files(self) -> None:
        """Raise `JournalReplaced`, permanently from then on, unless the files are those that were opened."""
        try:
            fault = self._files.fault()
        except OSError as error:
            raise StorageUnavailable(f"{self._path} cannot be read: {error.strerror}.") from error
        if fault is not None:
            self._replaced = _replaced_error(fault, self._rescue(fault))
            raise self._replaced

    def _rescue(self, fault: Fault) -> str:
        """Write a deleted log, which SQLite still has open, into the journal file; return what the user must do."""
        if fault.path == self._files.index:
            return SAFE  # the next start creates it again from the log
        if fault != Fault(self._files.log, Happened.DELETED):
            return NOT_SAFE
        try:
            self._writer.raw.execute("ROLLBACK")
            frames, written = self._writer.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
        except apsw.Error:
            return NOT_SAFE
        return SAFE if frames == written else NOT_SAFE

    def _run(self, job: _Job, *, careful: bool) -> bool:
        """Run one unit inside the open transaction; False if the others cannot continue in it."""
        connection, raw = self._writer, self._writer.raw
        connection.changed, count, job.error = False, len(connection.facts), None
        try:
            if careful:
                raw.execute("SAVEPOINT unit")
            job.answer = run_unit(job.unit, connection)
            if not raw.in_transaction:
                raise JournalError(LOST)
            if careful:
                connection.flush()
                raw.execute("RELEASE unit")
        except BaseException as error:
            job.answer, job.error = None, translate_error(error) if isinstance(error, apsw.Error) else error
            del connection.facts[count:]
            if not raw.in_transaction or not careful:
                return raw.in_transaction and not connection.changed
            connection.forget()
            raw.execute("ROLLBACK TO unit")
            raw.execute("RELEASE unit")
        return True

    def _answer(self, group: list[_Job], facts: Sequence[Fact] = ()) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deliver, group, facts)
        except RuntimeError:
            log.warning("the event loop is closed; %d completed writes have no reader", len(group))

    def _deliver(self, group: list[_Job], facts: Sequence[Fact]) -> None:
        try:
            if facts:
                for listener in self._listeners:
                    listener(facts)
        finally:
            # An error of a listener must not let writers wait forever.
            for job in group:
                if isinstance(job.error, JOURNAL_AWAY):
                    for failed in self._failure_listeners:
                        failed(job.error)
                job.settle(job.answer, job.error)


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


def _keep_files(raw: apsw.Connection) -> None:
    """Keep the files next to the journal when it is closed: on a full disk they could not be created again.

    Without `-shm` nothing can be read. The log itself is emptied.
    """
    on = ctypes.c_int(1)
    raw.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(on))


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


def _replaced_error(fault: Fault, advice: str) -> JournalReplaced:
    return JournalReplaced(
        f"{fault.path} was {fault.happened} while the daemon was running. The daemon accepts no more "
        f"work, and the files are left as they are. {advice}"
    )


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
