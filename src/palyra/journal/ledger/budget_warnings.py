"""Which budgets were reported as exceeded. A projection of the tape."""

from palyra.core.projection.ledger import Account
from palyra.core.spending.budget import BudgetWarning
from palyra.journal.engines.base import Connection


def insert(conn: Connection, warned: BudgetWarning, *, session_id: str, run_id: str, at_ms: int) -> None:
    """Record that the warning was reported, and where."""
    conn.execute(
        "INSERT INTO budget_warnings (budget, scope, period, session_id, run_id, at_ms)"
        " VALUES (:budget, :scope, :period, :session_id, :run_id, :at_ms)"
        " ON CONFLICT (budget, scope, period) DO NOTHING",
        {
            "budget": warned.overdrawn.budget,
            "scope": warned.scope,
            "period": warned.period,
            "session_id": session_id,
            "run_id": run_id,
            "at_ms": at_ms,
        },
    )


def is_recorded(conn: Connection, budget: str, account: Account) -> bool:
    """Return whether this budget was reported as exceeded."""
    row = conn.fetch_one(
        "SELECT 1 FROM budget_warnings WHERE budget = :budget AND scope = :scope AND period = :period",
        {"budget": budget, **account._asdict()},
    )
    return row is not None
