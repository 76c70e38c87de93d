"""The journal for one command, without a daemon: held so that none starts meanwhile, and written in units."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Protocol, TypeVar

from palyra.core.errors import Conflict
from palyra.home import Home
from palyra.journal import sqlite
from palyra.journal.engine import Unit
from palyra.journal.verify import NoJournal
from palyra.journal.whole import written
from palyra.references import secret_of
from palyra.settings import Settings

T = TypeVar("T")


class DaemonRunning(Conflict):
    """A daemon is running on this home. Stop it first with `palyra down`."""


class Writer(Protocol):
    """Carries out units one after the other, each in a transaction of its own."""

    def write(self, unit: Unit[T]) -> T: ...


@contextmanager
def held(home: Home) -> Iterator[None]:
    """Hold the home as a daemon would; raise `DaemonRunning` if one does."""
    with written(home.path):
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
def writer(home: Home, settings: Settings) -> Iterator[Writer]:
    """Open the journal for units of one command; the caller holds the home."""
    if settings.journal.database_url is not None:
        # Imported here: the driver is an extra that a home on SQLite does not have.
        from palyra.journal import postgres

        with closing(postgres.connect(secret_of(settings.journal.database_url, base=home.path))) as database:
            yield postgres.PostgresWriter(database)
        return
    if not home.journal.exists():
        raise NoJournal(f"There is no journal at {home.journal} yet. `palyra chat` starts one.")
    with closing(sqlite.open_for_writing(home.journal)) as file:
        yield sqlite.SqliteWriter(file)
