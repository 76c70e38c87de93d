"""The port to the database: units of work in, answers out, nothing answered before it is durable."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from palyra.core.errors import Broken, Unavailable
from palyra.core.events import Entry
from palyra.core.ids import SessionId
from palyra.core.run import RunState
from palyra.journal.head import Head

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
    """The disk that holds the journal is full. Free some space: what was recorded is safe, and work will go on."""


class StorageReadOnly(Unavailable):
    """The journal can not be written: its folder or disk is read-only. Make it writable; work goes on by itself."""


class StorageUnavailable(Unavailable):
    """The journal can not be reached just now. What was recorded is safe; work goes on when it is back."""


class JournalReplaced(Unavailable):
    """The journal was deleted, replaced or truncated while the daemon ran. Nothing more is accepted. Stop the daemon,
    restore a backup, and start it again."""


JOURNAL_AWAY = (StorageFull, StorageReadOnly, StorageUnavailable, JournalReplaced)
"""What is wrong with the database itself, and no fault of whoever uses it."""


class EngineClosed(Unavailable):
    """The journal is closed: the daemon is stopping."""


class JournalDamaged(Broken):
    """The journal file is damaged. Stop the daemon and restore a backup."""


class JournalFault(Broken):
    """A statement of ours failed in a way that should never happen."""


@dataclass(frozen=True, slots=True)
class Woken:
    """A commit made work for somebody: `runs` or `tasks`."""

    topic: str


@dataclass(frozen=True, slots=True)
class Taken:
    """A commit made a run and gave it to a carrier at once, instead of leaving it for whoever comes first."""

    owner: str
    epoch: int
    state: RunState


Fact = Entry | Woken | Taken
Listener = Callable[[Sequence[Fact]], None]
FailureListener = Callable[[Unavailable], None]


@dataclass(frozen=True, slots=True)
class Dialect:
    """The fragments in which the engines differ."""

    name: str
    for_update: str
    """Ends a SELECT that must hold the rows it found until commit."""
    skip_locked: str
    """Ends a SELECT that takes work others may be taking too."""
    text_type: str
    """How a migration's TEXT columns are declared: compared byte by byte on either engine."""
    migration_lock: str
    """Makes other processes wait until the migration is through; empty where the transaction does it already."""


class Connection(Protocol):
    """What a store works with, inside one transaction that it neither opens nor ends.

    SQL is written once for both engines with named parameters (`:run_id`). Every statement is run to its end.
    """

    dialect: Dialect
    heads: dict[SessionId, Head]
    """The ends of tapes as this transaction has them, as far as they are known."""

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
        """Run a statement that returns one row at the most."""
        ...

    def append(self, entries: Sequence[Entry], rows: Sequence[TapeRow], *, head: Head) -> None:
        """Write entries of a tape, at least one, as these rows, and where it ends with them; publish them.

        They may be put off until the commit, with those of other units, unless a statement asks for them sooner.
        """
        ...

    def publish(self, fact: Fact) -> None:
        """Tell the engine's listeners of this fact once the unit is durable; never if it is not."""
        ...


Unit = Callable[[Connection], T]


def carry_out(unit: Unit[T], conn: Connection) -> T:
    """Run a unit. No future carries a `StopIteration`: whoever waits for it would wait for ever."""
    try:
        return unit(conn)
    except StopIteration as error:
        raise JournalFault("A unit took from an iterator that had no more.") from error


class Engine(Protocol):
    """A database.

    `write` runs the unit in one transaction off the event loop and returns its result when it is durable. The unit may
    run more than once, so it is a function of its connection and of frozen arguments. What it raises is
    raised here, and nothing of it is recorded. Once queued it is not cancelled: a caller that is cancelled
    meanwhile is held until the outcome is known. `read` is the same on a consistent snapshot, without effect.
    Listeners are called on the event loop, before the writer is answered, in the order of the commits of a session.
    Listeners to failures are called there too, for each unit that could not be recorded for want of the database
    itself: it is full, read-only, out of reach or another.
    """

    async def write(self, unit: Unit[T]) -> T: ...

    async def read(self, query: Unit[T]) -> T: ...

    def subscribe(self, listener: Listener) -> None: ...

    def on_failure(self, listener: FailureListener) -> None: ...

    async def close(self) -> None: ...
