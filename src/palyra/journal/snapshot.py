"""Opens the journal of a home for reading, beside a daemon or without one."""

from collections.abc import Iterator
from contextlib import contextmanager

from palyra.core.errors import NotFound
from palyra.home import Home
from palyra.journal.engines import sqlite
from palyra.journal.engines.base import Connection
from palyra.secret_references import secret_of
from palyra.settings import Settings


class JournalNotFound(NotFound):
    """There is no journal here yet."""


@contextmanager
def open_snapshot(home: Home, settings: Settings) -> Iterator[Connection]:
    """Open the journal for reading only, in one snapshot."""
    if settings.journal.database_url is not None:
        # Imported here: the driver is an extra that a home on SQLite does not have.
        from palyra.journal.engines import postgres

        with postgres.open_snapshot(secret_of(settings.journal.database_url, base=home.path)) as database:
            yield database
        return
    if not home.journal.exists():
        raise JournalNotFound(f"There is no journal at {home.journal} yet. `palyra chat` starts one.")
    with sqlite.open_snapshot(home.journal) as file:
        yield file
