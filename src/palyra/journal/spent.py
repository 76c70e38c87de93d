"""Model turns as the tapes add them up, held against the ledger, and the ledger against the accounts.

Turns of sessions that were moved to the archive stay in the ledger, and are not looked at: what was spent is spent.
"""

from collections.abc import Iterator
from typing import NamedTuple

from palyra.core.budget import Warned
from palyra.core.clock import to_ms
from palyra.core.events import (
    BudgetWarned,
    Came,
    EmbeddingsEnded,
    EmbeddingsStarted,
    ModelTurnEnded,
    ModelTurnStarted,
    ModelTurnVoided,
    RunCancelled,
    RunEvent,
    RunFailed,
    RunResumed,
    SessionEvent,
)
from palyra.core.ids import SessionId
from palyra.core.run import RunState
from palyra.core.spending import RESERVED, SETTLED, VOIDED, Account, Turn, closed, embedded, left_open, opened
from palyra.journal import budget_warnings, embeddings, migrate, spending, usage
from palyra.journal.engine import Connection

STRAY = (
    "NOT EXISTS (SELECT 1 FROM runs r WHERE r.run_id = u.run_id AND r.session_id = u.session_id"
    " AND (r.parent_run_id IS NOT NULL OR u.root_run_id = u.run_id))"
    " AND NOT EXISTS (SELECT 1 FROM rotated x WHERE x.session_id = u.session_id)"
    " AND NOT (u.cause = 'embeddings' AND EXISTS (SELECT 1 FROM sessions s WHERE s.session_id = u.session_id))"
)
"""A turn of a run that never was. Calls for embeddings are no runs: those of a session are held against its tape."""


class Told(NamedTuple):
    """That it was told of a budget, and where."""

    warned: Warned
    session_id: str
    run_id: str
    at_ms: int


class Spent:
    """What the model turns of one session took, and of which budgets it was told there."""

    def __init__(self, session_id: SessionId) -> None:
        self.session_id = session_id
        self.turns: dict[tuple[str, str], dict[int, Turn]] = {}
        """Those of each run, by the run that it works for and its own id."""
        self.unreserved: set[tuple[str, int]] = set()
        """Turns for which nothing was set aside: from before there was a ledger, they may have no row."""
        self.embedded: dict[str, Turn] = {}
        """Calls for embeddings, by their ids."""
        self.warned: list[Told] = []

    def note(self, before: RunState, event: RunEvent) -> None:
        """Take in an event of a run that stood so."""
        turns = self.turns.setdefault((before.root_run_id, before.run_id), {})
        match event:
            case ModelTurnStarted():
                turns[event.turn] = opened(before, event)
                if event.reserved is None:
                    self.unreserved.add((before.run_id, event.turn))
            case ModelTurnEnded():
                turns[event.turn] = closed(turns[event.turn], SETTLED, event.usage, event.micros)
            case ModelTurnVoided():
                turns[event.turn] = closed(turns[event.turn], VOIDED, event.usage, event.micros)
            case RunResumed() | RunFailed() | RunCancelled() if before.turn is not None:
                turns[before.turn] = closed(turns[before.turn], VOIDED, *left_open(before.reserved))
            case BudgetWarned():
                warned = Warned(overdrawn=event.overdrawn, scope=event.scope, period=event.period)
                self.warned.append(Told(warned, self.session_id, before.run_id, to_ms(event.at)))
            case _:
                pass

    def note_session(self, event: SessionEvent) -> None:
        """Take in an event of the session itself."""
        match event:
            case EmbeddingsStarted(request_id=request_id):
                assert request_id not in self.embedded, f"embeddings {request_id} begin twice"
                self.embedded[request_id] = embedded(self.session_id, event)
                self.warned += [Told(one, self.session_id, request_id, to_ms(event.at)) for one in event.warned]
            case EmbeddingsEnded(request_id=request_id):
                open_one = self.embedded[request_id]
                assert open_one.state == RESERVED, f"embeddings {request_id} end twice"
                self.embedded[request_id] = closed(open_one, outcome_of(event), event.usage, event.micros)
            case _:
                pass


def outcome_of(event: EmbeddingsEnded) -> str:
    """Return how a call for embeddings stands in the ledger once it is over."""
    return SETTLED if event.came is Came.ANSWERED else VOIDED


def has_rows(conn: Connection) -> bool:
    """Tell whether the journal has a ledger at all; one of an early schema does not."""
    return migrate.current(conn) >= usage.FIRST_SCHEMA


def wrong_runs(conn: Connection, spent: Spent, *, whole: bool = False) -> Iterator[tuple[tuple[str, str], list[Turn]]]:
    """Yield the runs whose turns are missing, wrong or too many in the ledger, each with what they should be.

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


def untold(conn: Connection, spent: Spent) -> Iterator[Told]:
    """Yield the warnings that no row tells of."""
    for told in spent.warned:
        warned = told.warned
        if not budget_warnings.was_told(conn, warned.overdrawn.budget, Account(warned.scope, warned.period)):
            yield told


def strays(conn: Connection) -> list[tuple[str, str]]:
    """Return runs that never were, and that the ledger has turns of: each with its session."""
    rows = conn.fetch(f"SELECT DISTINCT u.run_id, u.session_id FROM usage u WHERE {STRAY} ORDER BY u.run_id")
    return [(row[0], row[1]) for row in rows]


def wrong_accounts(conn: Connection) -> Iterator[Account]:
    """Yield the accounts that are not the sum of their turns."""
    for account, amount in spending.all_of(conn):
        if spending.added_up(conn, account, at=spending.moment_in(account)) != amount:
            yield account


def mend(conn: Connection, spent: Spent) -> int:
    """Set the turns and warnings of one session right; return how many of its runs had a turn that was wrong."""
    wrong = list(wrong_runs(conn, spent, whole=True))
    for (root_run_id, run_id), turns in wrong:
        usage.remove(conn, root_run_id, run_id)
        usage.put(conn, turns)
    for told in list(untold(conn, spent)):
        budget_warnings.insert(conn, told.warned, session_id=told.session_id, run_id=told.run_id, at_ms=told.at_ms)
    return len(wrong)


def mend_sums(conn: Connection) -> int:
    """Remove turns of runs that never were, and accounts that are wrong; return how many there were."""
    removed = conn.execute(f"DELETE FROM usage AS u WHERE {STRAY}")
    wrong = list(wrong_accounts(conn))
    for account in wrong:
        spending.close(conn, account)
    return removed + len(wrong)
