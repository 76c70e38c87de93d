"""Compares model turns, as the tapes add them up, with the ledger, and the ledger with the accounts.

Turns of sessions that were moved to the archive stay in the ledger, and are not checked: they were spent.
"""

from collections.abc import Iterator

from palyra.core.projection.changes import WarningAdded
from palyra.core.projection.ledger import Account, LedgerTurn
from palyra.core.projection.session_rows import SessionRows
from palyra.journal import migrate
from palyra.journal.engines.base import Connection
from palyra.journal.ledger import accounts, budget_warnings, embeddings
from palyra.journal.ledger import turns as usage
from palyra.journal.ledger.budget_warnings import WarningKey

STRAY = (
    "NOT EXISTS (SELECT 1 FROM runs r WHERE r.run_id = u.run_id AND r.session_id = u.session_id"
    " AND (r.parent_run_id IS NOT NULL OR u.root_run_id = u.run_id))"
    " AND NOT EXISTS (SELECT 1 FROM rotated x WHERE x.session_id = u.session_id)"
    " AND NOT (u.cause = 'embeddings' AND EXISTS (SELECT 1 FROM sessions s WHERE s.session_id = u.session_id))"
)
"""A turn of a run that does not exist. Calls for embeddings are not runs: those of a session are on its tape."""


def has_rows(conn: Connection) -> bool:
    """Return whether the journal has a ledger; an early schema does not."""
    return migrate.current(conn) >= usage.FIRST_SCHEMA


def wrong_runs(
    conn: Connection, rows: SessionRows, *, complete: bool = False
) -> Iterator[tuple[tuple[str, str], list[LedgerTurn]]]:
    """Yield the runs whose turns are missing, wrong or superfluous in the ledger, each with the right turns.

    With `whole`, turns from before there was a ledger must be there too.
    """
    for (root_run_id, run_id), turns in rows.turns.items():
        stored = {turn.turn: turn for turn in usage.of_run(conn, root_run_id, run_id)}
        ledger_turns = {
            number: turn
            for number, turn in turns.items()
            if complete or number in stored or (run_id, number) not in rows.unreserved
        }
        if stored != ledger_turns:
            yield (root_run_id, run_id), list(turns.values())
    for turn in embeddings.of_session(conn, rows.session_id):
        if (turn.run_id, turn.run_id) not in rows.turns:
            yield (turn.run_id, turn.run_id), []


def wrong_warnings(conn: Connection, rows: SessionRows) -> tuple[list[WarningAdded], list[WarningKey]]:
    """Return the warnings that have no row, and the rows of the session that are no warning of its tape.

    Two sessions may exceed a budget at the same time: the row is that of the first.
    """
    warning_addeds = {budget_warnings.key_of(warned): warned for warned in reversed(rows.warnings)}
    stored = budget_warnings.of_session(conn, rows.session_id)
    right = [(budget_warnings.key_of(warned), (warned.run_id, warned.at_ms)) for warned in rows.warnings]
    wrong = [key for key, position in stored.items() if (key, position) not in right]
    missing = [
        warned
        for key, warned in warning_addeds.items()
        if key in wrong or not budget_warnings.is_recorded(conn, key[0], Account(key[1], key[2]))
    ]
    return missing, wrong


def orphaned_turns(conn: Connection) -> list[tuple[str, str]]:
    """Return runs that do not exist but have turns in the ledger, each with its session."""
    rows = conn.fetch(f"SELECT DISTINCT u.run_id, u.session_id FROM usage u WHERE {STRAY} ORDER BY u.run_id")
    return [(row[0], row[1]) for row in rows]


def wrong_accounts(conn: Connection) -> Iterator[Account]:
    """Yield the accounts that are not the sum of their turns."""
    for account, amount in accounts.all_of(conn):
        if accounts.sum_turns(conn, account, at=accounts.moment_in(account)) != amount:
            yield account


def repair(conn: Connection, rows: SessionRows) -> int:
    """Correct the turns and warnings of one session; return how many of its runs had a wrong turn."""
    wrong = list(wrong_runs(conn, rows, complete=True))
    for (root_run_id, run_id), turns in wrong:
        usage.remove(conn, root_run_id, run_id)
        usage.put(conn, turns)
    missing, superfluous = wrong_warnings(conn, rows)
    for key in superfluous:
        budget_warnings.remove(conn, key)
    for warned in missing:
        budget_warnings.insert(conn, warned)
    return len(wrong)


def repair_accounts(conn: Connection) -> int:
    """Delete turns of runs that do not exist, and wrong accounts; return how many there were."""
    removed = conn.execute(f"DELETE FROM usage AS u WHERE {STRAY}")
    wrong = list(wrong_accounts(conn))
    for account in wrong:
        accounts.close(conn, account)
    return removed + len(wrong)
