"""The files of an open SQLite journal: checks that they are still those that the engine opened.

SQLite keeps its files open and does not check their names again. If another program deletes, replaces or truncates one
of them, or copies a backup over it, the daemon is left with files that no restart will find, or with pages that do not
fit together. So the engine checks before each group of units, with three `stat` calls, and records the files after
each commit.

What SQLite itself does is not a fault: it overwrites the write-ahead log from its start, and truncates it to its size
limit; a WAL checkpoint of another connection truncates it to nothing, and a VACUUM of another connection makes the
journal file smaller. Commits of other connections change `data_version`, which tells the engine of them.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

LOG_LIMIT_BYTES = 64 * 1024 * 1024
"""SQLite truncates the write-ahead log to this size once all of it is in the journal file."""
MAGIC = b"SQLite format 3\x00"
COUNTER = slice(24, 28)
HEADER_BYTES = 100


class Happened(StrEnum):
    """What happened to a file."""

    DELETED = "deleted"
    REPLACED = "replaced"
    TRUNCATED = "truncated"
    OVERWRITTEN = "overwritten"


@dataclass(frozen=True, slots=True)
class Fault:
    """A file that is not what it was, and what happened to it."""

    path: str
    happened: Happened


class SqliteFiles:
    """The journal file, its write-ahead log (`-wal`) and the index of that log (`-shm`).

    Create it when SQLite has opened them. It holds the journal file open until SQLite has closed it: closing any
    descriptor of a file drops the locks that the process holds on it.
    """

    def __init__(self, path: Path, *, sized: Callable[[], int]) -> None:
        """`sized` returns how many bytes SQLite gives the journal file once the whole log is written into it."""
        self._sized = sized
        self._path = str(path)
        self.log = f"{path}-wal"
        self.index = f"{path}-shm"
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._known: dict[str, os.stat_result] = {}
        self._min_bytes = {self._path: 0, self.log: 0, self.index: 0}
        self._counter = -1
        self._sure_bytes = 0
        """The journal file may be larger, but SQLite does not make it smaller than this."""

    def remember(self) -> None:
        """Record the present state of the files, before the first write and after each commit."""
        stat, matching_stat = self._known.get(self._path), self._remember(self._path)
        if stat is None or matching_stat is None or stat.st_mtime_ns != matching_stat.st_mtime_ns:
            self._counter = max(self._counter, self._read_counter())
            self._sure_bytes = self._sized()
        self._min_bytes[self._path] = min(self._min_bytes[self._path], self._sure_bytes)
        self._remember(self.log)
        self._min_bytes[self.log] = min(self._min_bytes[self.log], LOG_LIMIT_BYTES)
        if self.index not in self._known:
            self._remember(self.index)

    def allow(self) -> None:
        """Take into account that another connection has written: it may have made both files smaller."""
        self._sure_bytes = min(self._sure_bytes, self._sized())
        self._min_bytes[self._path] = min(self._min_bytes[self._path], self._sure_bytes)
        self._min_bytes[self.log] = 0

    def fault(self) -> Fault | None:
        """Return the first fault, that of the log last; raise `OSError` if the files cannot be checked.

        Only for the writer thread: sizes change while it writes.
        """
        for path, stat, matching_stat in self._looks():
            if matching_stat is None or not os.path.samestat(matching_stat, stat):
                return _moved(path, matching_stat)
            if matching_stat.st_size < self._min_bytes[path]:
                return Fault(path, Happened.TRUNCATED)
            # SQLite counts its changes of a file, and only upwards; a copy of another file has its own count.
            if (
                path == self._path
                and matching_stat.st_mtime_ns != stat.st_mtime_ns
                and self._read_counter() < self._counter
            ):
                return Fault(path, Happened.OVERWRITTEN)
        return None

    def moved(self) -> Fault | None:
        """Return the first file whose name is missing or names another file by now."""
        for path, stat, matching_stat in self._looks():
            if matching_stat is None or not os.path.samestat(matching_stat, stat):
                return _moved(path, matching_stat)
        return None

    def _looks(self) -> Iterator[tuple[str, os.stat_result, os.stat_result | None]]:
        for path in (self._path, self.index, self.log):
            if (stat := self._known.get(path)) is not None:
                yield path, stat, _look(path)

    def close(self) -> None:
        """Close the journal file, after SQLite has."""
        os.close(self._file)

    def _remember(self, path: str) -> os.stat_result | None:
        stat, cached_stat = _look(path), self._known.get(path)
        # A file that is missing or another one by now is left for the next check to report.
        if stat is not None and (cached_stat is None or stat.st_ino == cached_stat.st_ino):
            self._known[path] = stat
            self._min_bytes[path] = stat.st_size
        return stat

    def _read_counter(self) -> int:
        """Return how often SQLite has changed the file, -1 if it is not a database."""
        header = os.pread(self._file, HEADER_BYTES, 0)
        return int.from_bytes(header[COUNTER]) if header.startswith(MAGIC) else -1


def _moved(path: str, stat: os.stat_result | None) -> Fault:
    return Fault(path, Happened.DELETED if stat is None else Happened.REPLACED)


def _look(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
