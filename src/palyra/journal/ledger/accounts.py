"""Accounts: sums of the ledger for each scope and period that a budget needs.

An account is the sum of its turns, from the moment it is opened until it is swept. Every write to the ledger therefore
updates the open accounts of its turn, and opening an account adds up the existing turns. On PostgreSQL the two must
not overlap: a write to the ledger comes before the read of the accounts, and a unit that opens an account first waits
for those writes and blocks new ones. So each turn is either in the sum or sees the account.

Accounts are locked in the order of their names, and the ledger before all of them, so there is no deadlock.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from palyra.core.clock import from_ms, to_ms
from palyra.core.projection.ledger import EVERYTHING, Account, Amount, LedgerTurn, period_bounds, scopes
from palyra.core.spending.budget import BudgetPeriod, BudgetSubject, period_of
from palyra.journal.engines.base import Connection

KEPT = timedelta(days=40)
"""How long an account is kept after it was opened, or its day or month has ended."""

_SUMS = "settled_tokens, settled_micros, reserved_tokens, reserved_micros"
_ADDED_UP = ", ".join(
    # PostgreSQL returns a sum of integers as another type.
    f"CAST(COALESCE(SUM(CASE WHEN state {which} 'reserved' THEN {what} ELSE 0 END), 0) AS BIGINT)"
    for which, what in (
        ("<>", "input_tokens + output_tokens"),
        ("<>", "COALESCE(micros, 0)"),
        ("=", "reserved_input + reserved_output"),
        ("=", "COALESCE(reserved_micros, 0)"),
    )
)
_WHOSE = {
    BudgetSubject.PRINCIPAL: "principal = :whose",
    BudgetSubject.SESSION: "root_session_id = :whose",
    BudgetSubject.AGENT: "agent_id = :whose",
    BudgetSubject.MODEL: "provider || '/' || model = :whose",
}


def are_open(conn: Connection) -> bool:
    """Return whether there are any accounts: a journal without budgets has none."""
    return conn.fetch_one("SELECT 1 FROM spending LIMIT 1") is not None


def add_to_accounts(conn: Connection, turn: LedgerTurn, by: Amount) -> None:
    """Add an amount to the open accounts of a turn."""
    at = from_ms(turn.at_ms)
    named = dict(zip(("s0", "s1", "s2", "s3", "s4"), scopes(turn), strict=True))
    periods = {
        "day": period_of(BudgetPeriod.DAY, at, ""),
        "month": period_of(BudgetPeriod.MONTH, at, ""),
        "run": turn.root_run_id,
    }
    where = "scope IN (:s0, :s1, :s2, :s3, :s4) AND period IN (:day, :month, :run)"
    held = conn.fetch(
        f"SELECT scope FROM spending WHERE {where} ORDER BY scope, period{conn.dialect.for_update}", named | periods
    )
    if held:
        conn.execute(
            "UPDATE spending SET settled_tokens = settled_tokens + :settled_tokens,"
            " settled_micros = settled_micros + :settled_micros, reserved_tokens = reserved_tokens + :reserved_tokens,"
            f" reserved_micros = reserved_micros + :reserved_micros WHERE {where}",
            named | periods | by._asdict(),
        )


def lock_balances(
    conn: Connection, accounts: Iterable[Account], *, at: datetime, new_run: str | None
) -> dict[Account, Amount]:
    """Return the balances of accounts, and lock them until the unit ends; open those that are not open.

    `new_run` is the run that needs them, if its first turn is about to begin.
    """
    requested_accounts = sorted(set(accounts))
    if not requested_accounts:
        return {}
    held = _balances(conn, requested_accounts)
    while True:
        missing = [account for account in requested_accounts if account not in held]
        # No other unit can add to the account of a run that has not begun, so none has to be blocked.
        _hold_ledger(conn, alone=any(account.period != new_run for account in missing))
        for account in missing:
            _open(conn, account, sum_turns(conn, account, at=at), kept_until_ms=to_ms(_end(account, at) + KEPT))
        held = _balances(conn, requested_accounts, hold=True)
        # An account may have been swept between the two reads.
        if len(held) == len(requested_accounts):
            return held


def read_balances(conn: Connection, accounts: Iterable[Account], *, at: datetime) -> dict[Account, Amount]:
    """Return the balances of accounts, open or not, and change nothing."""
    requested_accounts = sorted(set(accounts))
    amounts = _balances(conn, requested_accounts) if requested_accounts else {}
    return {account: amounts.get(account) or sum_turns(conn, account, at=at) for account in requested_accounts}


def sum_turns(conn: Connection, account: Account, *, at: datetime) -> Amount:
    """Add up the turns of an account; `at` is a time in its period."""
    of, _, whose = account.scope.partition(":")
    params: dict[str, object] = {"whose": whose}
    where = [] if account.scope == EVERYTHING else [_WHOSE[BudgetSubject(of)]]
    if (per := _per(account.period)) is BudgetPeriod.RUN:
        where.append("root_run_id = :run")
        params["run"] = account.period
    else:
        begins, ends = period_bounds(per, at)
        where.append("at_ms >= :begins AND at_ms < :ends")
        params |= {"begins": to_ms(begins), "ends": to_ms(ends)}
    row = conn.fetch_one(f"SELECT {_ADDED_UP} FROM usage WHERE {' AND '.join(where)}", params)
    assert row is not None
    return Amount(*row)


def all_of(conn: Connection) -> list[tuple[Account, Amount]]:
    """Return every open account and its balance."""
    rows = conn.fetch(f"SELECT scope, period, {_SUMS} FROM spending ORDER BY scope, period")
    return [(Account(row[0], row[1]), Amount(*row[2:])) for row in rows]


def highest(conn: Connection, of: BudgetSubject, period: str | None, *, limit: int) -> list[tuple[Account, Amount]]:
    """Return the open accounts of a kind, in one period or of runs if none is named; the highest spending first."""
    scope = EVERYTHING if of is BudgetSubject.EVERYTHING else f"{of.value}:"
    where = "period = :period" if period is not None else "LENGTH(period) > 10"
    rows = conn.fetch(
        f"SELECT scope, period, {_SUMS} FROM spending WHERE SUBSTR(scope, 1, :length) = :scope AND {where}"
        " ORDER BY settled_micros + reserved_micros DESC, settled_tokens + reserved_tokens DESC, scope, period DESC"
        " LIMIT :limit",
        {"length": len(scope), "scope": scope, "limit": limit, **({"period": period} if period is not None else {})},
    )
    return [(Account(row[0], row[1]), Amount(*row[2:])) for row in rows]


def close(conn: Connection, account: Account) -> None:
    """Close an account; it is added up again when a budget needs it."""
    conn.execute("DELETE FROM spending WHERE scope = :scope AND period = :period", account._asdict())


def sweep(conn: Connection, *, now_ms: int) -> int:
    """Close accounts that were not used for a long time."""
    return conn.execute("DELETE FROM spending WHERE kept_until_ms < :now_ms", {"now_ms": now_ms})


def moment_in(account: Account) -> datetime:
    """Return a time within the account's day or month."""
    match _per(account.period):
        case BudgetPeriod.DAY:
            return datetime.fromisoformat(f"{account.period}T00:00:00+00:00")
        case BudgetPeriod.MONTH:
            return datetime.fromisoformat(f"{account.period}-01T00:00:00+00:00")
        case BudgetPeriod.RUN:
            return from_ms(0)


def _per(period: str) -> BudgetPeriod:
    return {10: BudgetPeriod.DAY, 7: BudgetPeriod.MONTH}.get(len(period), BudgetPeriod.RUN)


def _end(account: Account, at: datetime) -> datetime:
    per = _per(account.period)
    return at if per is BudgetPeriod.RUN else period_bounds(per, at)[1]


def _hold_ledger(conn: Connection, *, alone: bool) -> None:
    if conn.dialect.name == "postgres":
        conn.execute(f"LOCK TABLE usage IN {'SHARE ROW EXCLUSIVE' if alone else 'ROW EXCLUSIVE'} MODE")


def _open(conn: Connection, account: Account, amount: Amount, *, kept_until_ms: int) -> None:
    conn.execute(
        f"INSERT INTO spending (scope, period, kept_until_ms, {_SUMS}) VALUES (:scope, :period, :kept_until_ms,"
        " :settled_tokens, :settled_micros, :reserved_tokens, :reserved_micros) ON CONFLICT (scope, period) DO NOTHING",
        account._asdict() | amount._asdict() | {"kept_until_ms": kept_until_ms},
    )


def _balances(conn: Connection, accounts: Sequence[Account], *, hold: bool = False) -> dict[Account, Amount]:
    params: dict[str, object] = {}
    pairs = []
    for index, account in enumerate(accounts):
        params |= {f"s{index}": account.scope, f"p{index}": account.period}
        pairs.append(f"(scope = :s{index} AND period = :p{index})")
    lock = conn.dialect.for_update if hold else ""
    rows = conn.fetch(
        f"SELECT scope, period, {_SUMS} FROM spending WHERE {' OR '.join(pairs)} ORDER BY scope, period{lock}", params
    )
    return {Account(row[0], row[1]): Amount(*row[2:]) for row in rows}
