"""A journal file, opened beside whoever has it open."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

# A daemon holds the file while it creates the log, recovers it or writes; without a wait SQLite refuses at once.
WAIT_MS = 30_000


@contextmanager
def opened(path: Path, *, read_only: bool = False) -> Iterator[apsw.Connection]:
    """Open the file for a test; wait for others that hold it."""
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    raw = apsw.Connection(str(path), flags=flags)
    try:
        raw.set_busy_timeout(WAIT_MS)
        yield raw
    finally:
        raw.close()
