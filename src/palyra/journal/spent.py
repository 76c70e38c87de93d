"""Model turns as the tapes add them up, held against the ledger, and the ledger against the accounts.

Turns of sessions that were moved to the archive stay in the ledger, and are not looked at: what was spent is spent.
"""

from collections.abc import Iterator

from palyra.core.events import (
    BudgetWarned,
    ModelTurnEnded,
    ModelTurnStarted,
    ModelTurnVoided,
    RunCancelled,
    RunEvent,
    RunFailed,
    RunResumed,
)
from palyra.core.run import RunState
from palyra.core.spending import SETTLED, VOIDED, Account, Turn, closed, left_open, opened
from palyra.journal import budget_warnings, migrate, spending, usage
from palyra.journal.engine import Connection

STRAY = (
    "NOT EXISTS (SELECT 1 FROM runs r WHERE r.run_id = u.run_id AND r.session_id = u.session_id"
    " AND (r.parent_run_id IS NOT NULL OR u.root_run_id = u.run_id))"
    " AND NOT EXISTS (SELECT 1 FROM rotated x WHERE x.session_id = u.session_id)"
)
"""A turn of a run that never was."""


class Spent:
    """What the model turns of one session took, and of which budgets it was told there."""

    def __init__(self) -> None:
        self.turns: dict[tuple[str, str], dict[int, Turn]] = {}
        """Those of each run, by the run that it works for and its own id."""
        self.unreserved: set[tuple[str, int]] = set()
        """Turns for which nothing was set aside: from before there was a ledger, they may have no row."""
        self.warned: list[tuple[RunState, BudgetWarned]] = []

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
                self.warned.append((before, event))
            case _:
                pass


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


def untold(conn: Connection, spent: Spent) -> Iterator[tuple[RunState, BudgetWarned]]:
    """Yield the warnings that no row tells of."""
    for state, event in spent.warned:
        if not budget_warnings.was_told(conn, event.overdrawn.budget, Account(event.scope, event.period)):
            yield state, event


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
    for state, event in list(untold(conn, spent)):
        budget_warnings.insert(conn, state, event)
    return len(wrong)


def mend_sums(conn: Connection) -> int:
    """Remove turns of runs that never were, and accounts that are wrong; return how many there were."""
    removed = conn.execute(f"DELETE FROM usage AS u WHERE {STRAY}")
    wrong = list(wrong_accounts(conn))
    for account in wrong:
        spending.close(conn, account)
    return removed + len(wrong)
