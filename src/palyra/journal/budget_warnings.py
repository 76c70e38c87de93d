"""Of which budgets it was told that they are exceeded. A projection of the tape."""

from palyra.core.budget import Warned
from palyra.core.spending import Account
from palyra.journal.engine import Connection


def insert(conn: Connection, warned: Warned, *, session_id: str, run_id: str, at_ms: int) -> None:
    """Write down that it was told, and where."""
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


def was_told(conn: Connection, budget: str, account: Account) -> bool:
    """Tell whether it was told of this budget."""
    row = conn.fetch_one(
        "SELECT 1 FROM budget_warnings WHERE budget = :budget AND scope = :scope AND period = :period",
        {"budget": budget, **account._asdict()},
    )
    return row is not None
