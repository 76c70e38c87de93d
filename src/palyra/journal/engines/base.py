"""The interface to the database: runs units of work, and answers only when they are durable."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from palyra.core.errors import Internal, Unavailable
from palyra.core.events import Entry
from palyra.core.ids import SessionId
from palyra.core.run.state import RunState
from palyra.journal.engines.tape_head import TapeHead

T = TypeVar("T")
Row = tuple[Any, ...]
Params = Mapping[str, object]
NO_PARAMS: Params = {}
TapeRow = tuple[object, ...]
"""The columns of an entry, in the order of `APPEND`."""

APPEND = (
    "INSERT INTO tape (session_id, tape_seq, run_id, run_seq, kind, at_ms, content, salt, hash)"
    " VALUES (:session_id, :tape_seq, :run_id, :run_seq, :kind, :at_ms, :content, :salt, :hash)"
)
MOVE = "UPDATE heads SET tape_seq = :tape_seq, hash = :hash WHERE session_id = :session_id"


class StorageFull(Unavailable):
    """The disk that holds the journal is full. Free some space: recorded data is safe, and work then continues by
    itself.
    """


class StorageReadOnly(Unavailable):
    """The journal cannot be written: its folder or disk is read-only. Make it writable; work then resumes by itself."""


class StorageUnavailable(Unavailable):
    """The journal cannot be reached right now. Recorded data is safe; work continues when the journal is back."""


class JournalReplaced(Unavailable):
    """The journal was deleted, replaced or truncated while the daemon was running. The daemon accepts no more work.
    Stop it, restore a backup, and start it again.
    """


JOURNAL_AWAY = (StorageFull, StorageReadOnly, StorageUnavailable, JournalReplaced)
"""Errors of the database itself, not of the code that uses it."""


class JournalDamaged(Internal):
    """The journal file is damaged. Stop the daemon and restore a backup."""


class JournalError(Internal):
    """An SQL statement failed unexpectedly."""


@dataclass(frozen=True, slots=True)
class WorkAvailable:
    """A commit created work: `runs` or `tasks`."""

    topic: str


@dataclass(frozen=True, slots=True)
class RunLeased:
    """A commit created a run and leased it to a worker at once, instead of leaving it in the queue."""

    owner: str
    epoch: int
    state: RunState


Fact = Entry | WorkAvailable | RunLeased
Listener = Callable[[Sequence[Fact]], None]
FailureListener = Callable[[Unavailable], None]


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """The SQL fragments in which the engines differ."""

    name: str
    for_update: str
    """Ends a SELECT that must lock its rows until commit."""
    skip_locked: str
    """Ends a SELECT that takes work that others may be taking too."""
    text_type: str
    """How a migration's TEXT columns are declared: compared byte by byte on either engine."""
    migration_lock: str
    """Makes other processes wait until the migration is done; empty where the transaction already does it."""


class Connection(Protocol):
    """The interface that stores use, inside one transaction that they neither open nor end.

    SQL is written once for both engines with named parameters (`:run_id`). Every statement runs to completion.
    """

    dialect: SqlDialect
    heads: dict[SessionId, TapeHead]
    """The known ends of tapes, as this transaction sees them."""

    def execute(self, sql: str, params: Params = NO_PARAMS) -> int:
        """Run a statement that returns no rows; return how many it changed."""
        ...

    def execute_many(self, sql: str, rows: Sequence[Params]) -> None:
        """Run the statement once for each row of parameters."""
        ...

    def fetch(self, sql: str, params: Params = NO_PARAMS) -> list[Row]:
        """Run a statement and return all its rows."""
        ...

    def fetch_one(self, sql: str, params: Params = NO_PARAMS) -> Row | None:
        """Run a statement that returns at most one row."""
        ...

    def append(self, entries: Sequence[Entry], rows: Sequence[TapeRow], *, head: TapeHead) -> None:
        """Append entries to a tape, at least one, as these rows, and set its new head; publish them.

        They may be deferred until the commit, with those of other units, unless a statement needs them sooner.
        """
        ...

    def publish(self, fact: Fact) -> None:
        """Notify the engine's listeners of this fact once the unit is durable; never if it is not."""
        ...


Unit = Callable[[Connection], T]


def run_unit(unit: Unit[T], conn: Connection) -> T:
    """Run a unit. A future cannot hold a `StopIteration`: its waiter would wait forever."""
    try:
        return unit(conn)
    except StopIteration as error:
        raise JournalError("A unit read from an iterator that was exhausted.") from error


class Engine(Protocol):
    """A database.

    `write` runs the unit in one transaction off the event loop and returns its result when it is durable. The unit may
    run more than once, so it is a function of its connection and of frozen arguments. An error of the unit is raised
    here, and nothing of the unit is recorded. A queued unit is not cancelled: a caller that is cancelled meanwhile
    waits until the result is known. `read` does the same on a consistent snapshot, without effects.
    Listeners are called on the event loop, before the writer is answered, in the order of the commits of a session.
    Failure listeners are called there too, for each unit that could not be recorded because of the database itself: it
    is full, read-only, unreachable or was replaced.
    """

    async def write(self, unit: Unit[T]) -> T: ...

    async def read(self, query: Unit[T]) -> T: ...

    def subscribe(self, listener: Listener) -> None: ...

    def on_failure(self, listener: FailureListener) -> None: ...

    async def close(self) -> None: ...
