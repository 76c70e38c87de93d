"""Leases: who works on a row, until when, and proof that no other worker does.

A row of work has an owner, an epoch and a time. Claiming raises the epoch, so a holder that lost its lease cannot act
as the new one: every write it makes names its owner and its epoch, and matches no row. One module for every table that
has the three columns.
"""

from dataclasses import dataclass

from palyra.core.clock import MAX_AHEAD_MS
from palyra.core.errors import Conflict
from palyra.journal.engines.base import Connection, Row

LENGTH_MS = 10_000
RENEW_MS = 3_000


class LeaseLost(Conflict):
    """Another worker holds the lease. Nothing was recorded."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Proof of a holder that it still holds the row."""

    item_id: str
    owner: str
    epoch: int


@dataclass(frozen=True, slots=True)
class LeasedTable:
    """A table whose rows can be leased. The texts are constants of ours, never input."""

    table: str
    id_column: str
    claimable: str
    """Which rows are work at all; matches the table's partial index."""
    order: str
    """The order of claims: columns, of which the last is the id."""
    shared_by: str | None = None
    """The column that says whose work a row is, if rows are claimed in turn by it."""


RUNS = LeasedTable(
    table="runs",
    id_column="run_id",
    claimable="ready = 1",
    order="accepted_ms, run_id",
    shared_by="principal",
)
TASKS = LeasedTable(
    table="tasks",
    id_column="task_id",
    claimable="status = 'pending' AND not_before_ms <= :now_ms",
    order="not_before_ms, task_id",
)


UNHELD = f"(lease_owner IS NULL OR lease_until_ms <= :now_ms OR lease_until_ms > :now_ms + {MAX_AHEAD_MS})"
"""A row without a valid lease. A lease that ends later than any can was taken while the clock was wrong."""


def claim(conn: Connection, kind: LeasedTable, *, owner: str, now_ms: int, limit: int, own: int = 0) -> list[Lease]:
    """Take up to `limit` rows without a lease holder, the longest waiting first.

    Shared rows are taken in turn: first those of the principal for whom the owner holds the fewest. Each principal has
    `own` rows beyond the limit, so claims of others never keep a principal waiting.
    """
    if kind.shared_by is None:
        chosen = [row[0] for row in _unheld(conn, kind, now_ms=now_ms, limit=limit)]
    else:
        chosen = _in_turn(conn, kind, owner=owner, now_ms=now_ms, limit=limit, own=own)
    return [_take(conn, kind, item_id, owner=owner, now_ms=now_ms) for item_id in chosen]


def _in_turn(conn: Connection, kind: LeasedTable, *, owner: str, now_ms: int, limit: int, own: int) -> list[str]:
    """Return the rows to take, the longest waiting first."""
    counts = conn.fetch(
        f"SELECT {kind.shared_by}, SUM(CASE WHEN {UNHELD} THEN 1 ELSE 0 END) AS waiting,"
        f" SUM(CASE WHEN {UNHELD} OR lease_owner <> :owner THEN 0 ELSE 1 END) AS held"
        f" FROM {kind.table} WHERE {kind.claimable} GROUP BY {kind.shared_by}",
        {"now_ms": now_ms, "owner": owner},
    )
    # A row's seat is how many rows the owner would hold for its principal, including this one.
    seated = [
        (held + number, *reversed(row))
        for whose, waiting, held in counts
        if waiting and (limit > 0 or held < own)
        for number, row in enumerate(_unheld(conn, kind, now_ms=now_ms, limit=max(limit, own - held), whose=whose), 1)
    ]
    ordered = sorted(seated)
    claimed = {row[-1]: row for row in (*ordered[:limit], *(row for row in ordered if row[0] <= own))}
    return sorted(claimed, key=lambda item_id: claimed[item_id][1:])


def _unheld(conn: Connection, kind: LeasedTable, *, now_ms: int, limit: int, whose: str | None = None) -> list[Row]:
    """Return rows without a lease holder, the longest waiting first: the id of each, and its sort columns."""
    of = f" AND {kind.shared_by} = :whose" if whose is not None else ""
    return conn.fetch(
        f"SELECT {kind.id_column}, {kind.order.partition(',')[0]} FROM {kind.table} WHERE {kind.claimable}{of}"
        f" AND {UNHELD} ORDER BY {kind.order} LIMIT :limit{conn.dialect.skip_locked}",
        {"now_ms": now_ms, "limit": limit, **({"whose": whose} if whose is not None else {})},
    )


def _take(conn: Connection, kind: LeasedTable, item_id: str, *, owner: str, now_ms: int) -> Lease:
    row = conn.fetch_one(
        f"UPDATE {kind.table} SET lease_owner = :owner, lease_epoch = lease_epoch + 1, lease_until_ms = :until_ms"
        f" WHERE {kind.id_column} = :item_id RETURNING lease_epoch",
        {"owner": owner, "until_ms": now_ms + LENGTH_MS, "item_id": item_id},
    )
    assert row is not None
    return Lease(item_id, owner, row[0])


def held(conn: Connection, kind: LeasedTable, *, owner: str, now_ms: int) -> list[Lease]:
    """Return the leases that the owner holds."""
    rows = conn.fetch(
        f"SELECT {kind.id_column}, lease_epoch FROM {kind.table} WHERE {kind.claimable} AND lease_owner = :owner",
        {"owner": owner, "now_ms": now_ms},
    )
    return [Lease(row[0], owner, row[1]) for row in rows]


def check(conn: Connection, kind: LeasedTable, lease: Lease) -> None:
    """Raise `LeaseLost` unless the lease is still valid for its row."""
    held = conn.fetch_one(
        f"SELECT 1 FROM {kind.table}"
        f" WHERE {kind.id_column} = :item_id AND lease_owner = :owner AND lease_epoch = :epoch"
        + conn.dialect.for_update,
        {"item_id": lease.item_id, "owner": lease.owner, "epoch": lease.epoch},
    )
    if held is None:
        raise LeaseLost


def renew(conn: Connection, kind: LeasedTable, *, owner: str, now_ms: int) -> set[str]:
    """Renew all leases of the owner; return the ids of their rows."""
    rows = conn.fetch(
        f"UPDATE {kind.table} SET lease_until_ms = :until_ms WHERE {kind.claimable} AND lease_owner = :owner"
        f" RETURNING {kind.id_column}",
        {"owner": owner, "until_ms": now_ms + LENGTH_MS, "now_ms": now_ms},
    )
    return {row[0] for row in rows}


def release(conn: Connection, kind: LeasedTable, lease: Lease) -> None:
    """Release the row; do nothing if it is no longer held."""
    conn.execute(
        f"UPDATE {kind.table} SET lease_owner = NULL, lease_until_ms = 0"
        f" WHERE {kind.id_column} = :item_id AND lease_owner = :owner AND lease_epoch = :epoch",
        {"item_id": lease.item_id, "owner": lease.owner, "epoch": lease.epoch},
    )


def release_all(conn: Connection, kind: LeasedTable, *, owner: str) -> None:
    """Release all rows that the owner holds."""
    conn.execute(
        f"UPDATE {kind.table} SET lease_owner = NULL, lease_until_ms = 0 WHERE lease_owner = :owner", {"owner": owner}
    )


def release_dead_owners(conn: Connection, kind: LeasedTable, *, home: str) -> int:
    """Release the rows of earlier daemons of this home, which its file lock proves to be dead."""
    return conn.execute(
        f"UPDATE {kind.table} SET lease_owner = NULL, lease_until_ms = 0"
        " WHERE SUBSTR(lease_owner, 1, :length) = :prefix",
        {"prefix": home + ":", "length": len(home) + 1},
    )
