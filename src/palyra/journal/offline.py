"""The journal for one command, without a daemon: locked so that none starts meanwhile, and written in units."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Protocol, TypeVar

from palyra.home import DaemonRunning, Home
from palyra.journal.atomic_file import explain_write_errors
from palyra.journal.engines import sqlite
from palyra.journal.engines.base import Unit
from palyra.journal.snapshot import JournalNotFound
from palyra.secret_references import secret_of
from palyra.settings import Settings

T = TypeVar("T")


class OfflineWriter(Protocol):
    """Runs units one after the other, each in its own transaction."""

    def write(self, unit: Unit[T]) -> T: ...


@contextmanager
def hold_home(home: Home) -> Iterator[None]:
    """Lock the home as a daemon would; raise `DaemonRunning` if one is running."""
    with explain_write_errors(home.path):
        home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DaemonRunning(
                f"A daemon is running on {home.path}. Stop it first with `palyra down`, then try again."
            ) from None
        yield
    finally:
        os.close(lock)


@contextmanager
def open_writer(home: Home, settings: Settings) -> Iterator[OfflineWriter]:
    """Open the journal for the units of one command; the caller has locked the home."""
    if settings.journal.database_url is not None:
        # Imported here: the driver is an extra that a home on SQLite does not have.
        from palyra.journal.engines import postgres

        with closing(postgres.connect(secret_of(settings.journal.database_url, base=home.path))) as database:
            yield postgres.PostgresWriter(database)
        return
    if not home.journal.exists():
        raise JournalNotFound(f"There is no journal at {home.journal} yet. `palyra chat` starts one.")
    with closing(sqlite.open_for_writing(home.journal)) as file:
        yield sqlite.SqliteWriter(file)
