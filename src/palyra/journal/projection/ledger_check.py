"""Compares model turns, as the tapes add them up, with the ledger, and the ledger with the accounts.

Turns of sessions that were moved to the archive stay in the ledger, and are not checked: they were spent.
"""

from collections.abc import Iterator
from typing import NamedTuple

from palyra.core.clock import to_ms
from palyra.core.events import (
    BudgetWarned,
    EmbeddingsEnded,
    EmbeddingsOutcome,
    EmbeddingsStarted,
    ModelTurnDiscarded,
    ModelTurnEnded,
    ModelTurnStarted,
    RunCancelled,
    RunEvent,
    RunFailed,
    RunResumed,
    SessionEvent,
)
from palyra.core.ids import SessionId
from palyra.core.projection.ledger import (
    RESERVED,
    SETTLED,
    VOIDED,
    Account,
    LedgerTurn,
    embeddings_opened,
    turn_abandoned,
    turn_closed,
    turn_opened,
)
from palyra.core.run.state import RunState
from palyra.core.spending.budget import BudgetWarning
from palyra.journal import migrate
from palyra.journal.engines.base import Connection
from palyra.journal.ledger import accounts, budget_warnings, embeddings
from palyra.journal.ledger import turns as usage

STRAY = (
    "NOT EXISTS (SELECT 1 FROM runs r WHERE r.run_id = u.run_id AND r.session_id = u.session_id"
    " AND (r.parent_run_id IS NOT NULL OR u.root_run_id = u.run_id))"
    " AND NOT EXISTS (SELECT 1 FROM rotated x WHERE x.session_id = u.session_id)"
    " AND NOT (u.cause = 'embeddings' AND EXISTS (SELECT 1 FROM sessions s WHERE s.session_id = u.session_id))"
)
"""A turn of a run that does not exist. Calls for embeddings are not runs: those of a session are on its tape."""


class RecordedWarning(NamedTuple):
    """A reported budget warning, and where it was reported."""

    warned: BudgetWarning
    session_id: str
    run_id: str
    at_ms: int


class SessionSpending:
    """The usage of the model turns of one session, and its budget warnings."""

    def __init__(self, session_id: SessionId) -> None:
        self.session_id = session_id
        self.turns: dict[tuple[str, str], dict[int, LedgerTurn]] = {}
        """The turns of each run, by the id of its root run and its own id."""
        self.unreserved: set[tuple[str, int]] = set()
        """Turns without a reservation: from before there was a ledger, so they may have no row."""
        self.embedded: dict[str, LedgerTurn] = {}
        """Calls for embeddings, by their ids."""
        self.warned: list[RecordedWarning] = []

    def note(self, before: RunState, event: RunEvent) -> None:
        """Process an event of a run; `before` is the run's state before it."""
        turns = self.turns.setdefault((before.root_run_id, before.run_id), {})
        match event:
            case ModelTurnStarted():
                turns[event.turn] = turn_opened(before, event)
                if event.reserved is None:
                    self.unreserved.add((before.run_id, event.turn))
            case ModelTurnEnded():
                turns[event.turn] = turn_closed(turns[event.turn], SETTLED, event.usage, event.micros)
            case ModelTurnDiscarded():
                turns[event.turn] = turn_closed(turns[event.turn], VOIDED, event.usage, event.micros)
            case RunResumed() | RunFailed() | RunCancelled() if before.turn is not None:
                turns[before.turn] = turn_closed(turns[before.turn], VOIDED, *turn_abandoned(before.reserved))
            case BudgetWarned():
                warned = BudgetWarning(overdrawn=event.overdrawn, scope=event.scope, period=event.period)
                self.warned.append(RecordedWarning(warned, self.session_id, before.run_id, to_ms(event.at)))
            case _:
                pass

    def note_session(self, event: SessionEvent) -> None:
        """Process an event of the session itself."""
        match event:
            case EmbeddingsStarted(request_id=request_id):
                assert request_id not in self.embedded, f"embeddings {request_id} begin twice"
                self.embedded[request_id] = embeddings_opened(self.session_id, event)
                self.warned += [
                    RecordedWarning(one, self.session_id, request_id, to_ms(event.at)) for one in event.warned
                ]
            case EmbeddingsEnded(request_id=request_id):
                open_one = self.embedded[request_id]
                assert open_one.state == RESERVED, f"embeddings {request_id} end twice"
                self.embedded[request_id] = turn_closed(open_one, outcome_of(event), event.usage, event.micros)
            case _:
                pass


def outcome_of(event: EmbeddingsEnded) -> str:
    """Return the state of a call for embeddings in the ledger once it has ended."""
    return SETTLED if event.came is EmbeddingsOutcome.ANSWERED else VOIDED


def has_rows(conn: Connection) -> bool:
    """Return whether the journal has a ledger; an early schema does not."""
    return migrate.current(conn) >= usage.FIRST_SCHEMA


def wrong_runs(
    conn: Connection, spent: SessionSpending, *, whole: bool = False
) -> Iterator[tuple[tuple[str, str], list[LedgerTurn]]]:
    """Yield the runs whose turns are missing, wrong or superfluous in the ledger, each with the right turns.

    With `whole`, turns from before there was a ledger must be there too.
    """
    for (root_run_id, run_id), turns in spent.turns.items():
        rows = {turn.turn: turn for turn in usage.of_run(conn, root_run_id, run_id)}
        wanted = {
            number: turn
            for number, turn in turns.items()
            if whole or number in rows or (run_id, number) not in spent.unreserved
        }
        if rows != wanted:
            yield (root_run_id, run_id), list(turns.values())
    there = {turn.run_id: turn for turn in embeddings.of_session(conn, spent.session_id)}
    for request_id in sorted(there.keys() | spent.embedded.keys()):
        should = spent.embedded.get(request_id)
        if there.get(request_id) != should:
            yield (request_id, request_id), [should] if should is not None else []


def missing_warnings(conn: Connection, spent: SessionSpending) -> Iterator[RecordedWarning]:
    """Yield the warnings that have no row."""
    for told in spent.warned:
        warned = told.warned
        if not budget_warnings.is_recorded(conn, warned.overdrawn.budget, Account(warned.scope, warned.period)):
            yield told


def orphaned_turns(conn: Connection) -> list[tuple[str, str]]:
    """Return runs that do not exist but have turns in the ledger, each with its session."""
    rows = conn.fetch(f"SELECT DISTINCT u.run_id, u.session_id FROM usage u WHERE {STRAY} ORDER BY u.run_id")
    return [(row[0], row[1]) for row in rows]


def wrong_accounts(conn: Connection) -> Iterator[Account]:
    """Yield the accounts that are not the sum of their turns."""
    for account, amount in accounts.all_of(conn):
        if accounts.sum_turns(conn, account, at=accounts.moment_in(account)) != amount:
            yield account


def repair(conn: Connection, spent: SessionSpending) -> int:
    """Correct the turns and warnings of one session; return how many of its runs had a wrong turn."""
    wrong = list(wrong_runs(conn, spent, whole=True))
    for (root_run_id, run_id), turns in wrong:
        usage.remove(conn, root_run_id, run_id)
        usage.put(conn, turns)
    for told in list(missing_warnings(conn, spent)):
        budget_warnings.insert(conn, told.warned, session_id=told.session_id, run_id=told.run_id, at_ms=told.at_ms)
    return len(wrong)


def repair_accounts(conn: Connection) -> int:
    """Delete turns of runs that do not exist, and wrong accounts; return how many there were."""
    removed = conn.execute(f"DELETE FROM usage AS u WHERE {STRAY}")
    wrong = list(wrong_accounts(conn))
    for account in wrong:
        accounts.close(conn, account)
    return removed + len(wrong)
