"""Which budgets were reported as exceeded. A projection of the tape."""

from palyra.core.ids import SessionId
from palyra.core.projection.changes import WarningAdded
from palyra.core.projection.ledger import Account
from palyra.journal.engines.base import Connection

WarningKey = tuple[str, str, str]
"""Budget, scope and period: each is reported once."""


def insert(conn: Connection, warned: WarningAdded) -> None:
    """Record that the warning was reported, and where."""
    budget, scope, period = key_of(warned)
    conn.execute(
        "INSERT INTO budget_warnings (budget, scope, period, session_id, run_id, at_ms)"
        " VALUES (:budget, :scope, :period, :session_id, :run_id, :at_ms)"
        " ON CONFLICT (budget, scope, period) DO NOTHING",
        {
            "budget": budget,
            "scope": scope,
            "period": period,
            "session_id": warned.session_id,
            "run_id": warned.run_id,
            "at_ms": warned.at_ms,
        },
    )


def key_of(warned: WarningAdded) -> WarningKey:
    """Return what identifies the row of a warning."""
    return warned.warning.overrun.budget, warned.warning.scope, warned.warning.period


def is_recorded(conn: Connection, budget: str, account: Account) -> bool:
    """Return whether this budget was reported as exceeded."""
    row = conn.fetch_one(
        "SELECT 1 FROM budget_warnings WHERE budget = :budget AND scope = :scope AND period = :period",
        {"budget": budget, **account._asdict()},
    )
    return row is not None


def of_session(conn: Connection, session_id: SessionId) -> dict[WarningKey, tuple[str, int]]:
    """Return the warnings that were reported in a session: the run of each, and when."""
    rows = conn.fetch(
        "SELECT budget, scope, period, run_id, at_ms FROM budget_warnings WHERE session_id = :session_id",
        {"session_id": session_id},
    )
    return {(row[0], row[1], row[2]): (row[3], row[4]) for row in rows}


def remove(conn: Connection, key: WarningKey) -> None:
    """Delete a warning that is on no tape."""
    conn.execute(
        "DELETE FROM budget_warnings WHERE budget = :budget AND scope = :scope AND period = :period",
        dict(zip(("budget", "scope", "period"), key, strict=True)),
    )
