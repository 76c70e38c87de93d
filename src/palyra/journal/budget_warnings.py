"""Of which budgets it was told that they are exceeded. A projection of the tape."""

from palyra.core.clock import to_ms
from palyra.core.events import BudgetWarned
from palyra.core.run import RunState
from palyra.core.spending import Account
from palyra.journal.engine import Connection


def insert(conn: Connection, state: RunState, event: BudgetWarned) -> None:
    """Write down that it was told."""
    conn.execute(
        "INSERT INTO budget_warnings (budget, scope, period, session_id, run_id, at_ms)"
        " VALUES (:budget, :scope, :period, :session_id, :run_id, :at_ms)"
        " ON CONFLICT (budget, scope, period) DO NOTHING",
        {
            "budget": event.overdrawn.budget,
            "scope": event.scope,
            "period": event.period,
            "session_id": state.session_id,
            "run_id": state.run_id,
            "at_ms": to_ms(event.at),
        },
    )


def was_told(conn: Connection, budget: str, account: Account) -> bool:
    """Tell whether it was told of this budget."""
    row = conn.fetch_one(
        "SELECT 1 FROM budget_warnings WHERE budget = :budget AND scope = :scope AND period = :period",
        {"budget": budget, **account._asdict()},
    )
    return row is not None
