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

import ctypes
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import apsw

from palyra.core.errors import JournalClosed, PalyraError
from palyra.journal.engines.base import Fact, JournalError, JournalReplaced, StorageUnavailable, Unit, run_unit
from palyra.journal.engines.sqlite import LOST, SqliteConnection, open_for_reading, open_for_writing, translate_error
from palyra.journal.engines.sqlite_files import Fault, Happened, SqliteFiles
from palyra.journal.engines.threaded_engine import ThreadedEngine
from palyra.journal.engines.write_result import WriteResult

T = TypeVar("T")

READERS = 2
MAX_GROUP_UNITS = 512
HEADS_KNOWN = 1_024
SAFE = "Everything recorded so far is safe. Restart the daemon with `palyra restart`."
NOT_SAFE = (
    "Copy the home folder as it is, stop the daemon with `palyra down`, then restore a backup with"
    " `palyra backup restore`."
)


class _Job(WriteResult[Any]):
    """A queued unit and its result. One object and not two, without a constructor: every write creates one."""

    __slots__ = ("answer", "error", "unit")

    unit: Unit[Any]
    answer: Any
    error: BaseException | None


class SqliteEngine(ThreadedEngine):
    """See the module. `after_commit` runs in the writer thread after each commit, before callers are answered."""

    def __init__(self, path: Path, *, after_commit: Callable[[], None] | None = None) -> None:
        # Opened first, so that an unusable file is an error of the start and not of the first write.
        self._writer = SqliteConnection(open_for_writing(path))
        super().__init__(readers=READERS, after_commit=after_commit)
        self._path = path
        self._version = -1
        """The `data_version` that the writer last saw; another connection's commit changes it."""
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._replaced: JournalReplaced | None = None
        """Set permanently once the files are not those that were opened."""
        raw = self._writer.raw
        _keep_files(raw)
        self._files = SqliteFiles(path, sized=lambda: int(raw.pragma("page_count")) * int(raw.pragma("page_size")))
        self._thread = threading.Thread(target=self._write_for_ever, name="journal-writer", daemon=True)
        self._thread.start()
        self._idle: queue.SimpleQueue[SqliteConnection] = queue.SimpleQueue()
        self._opened: list[apsw.Connection] = []

    async def write(self, unit: Unit[T]) -> T:
        if self._closed:
            raise JournalClosed
        job = _Job(self._loop)
        job.unit = unit
        self._jobs.put(job)
        answer: T = await job.wait()
        return answer

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
        self._on_loop(self._deliver, group, facts)

    def _deliver(self, group: list[_Job], facts: Sequence[Fact]) -> None:
        try:
            if facts:
                self._notify(facts)
        finally:
            # An error of a listener must not let writers wait forever.
            for job in group:
                self._settle(job, job.answer, job.error)


def _keep_files(raw: apsw.Connection) -> None:
    """Keep the files next to the journal when it is closed: on a full disk they could not be created again.

    Without `-shm` nothing can be read. The log itself is emptied.
    """
    on = ctypes.c_int(1)
    raw.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(on))


def _replaced_error(fault: Fault, advice: str) -> JournalReplaced:
    return JournalReplaced(
        f"{fault.path} was {fault.happened} while the daemon was running. The daemon accepts no more "
        f"work, and the files are left as they are. {advice}"
    )
