"""Calls for embeddings as rows of the ledger: those in progress, who waits for them, and those of a session.

The daemon that calls a provider leases the row, and renews the lease. A row without a lease holder is of a dead daemon.
"""

from collections.abc import Sequence

from palyra.core.ids import PrincipalId, RunId, SessionId
from palyra.core.projection.ledger import LedgerTurn
from palyra.journal import migrate
from palyra.journal.engines.base import Connection
from palyra.journal.ledger import turns
from palyra.journal.stores.leases import LENGTH_MS, UNHELD

FIRST_SCHEMA = 14
"""The first schema with such rows."""

_OPEN = "cause = 'embeddings' AND state = 'reserved'"
_DUE = f"{_OPEN} AND {UNHELD}"


def has_rows(conn: Connection) -> bool:
    """Return whether the ledger can have such rows; an early schema cannot."""
    return migrate.current(conn) >= FIRST_SCHEMA


def hold(conn: Connection, request_id: RunId, *, owner: str, now_ms: int) -> None:
    """Record who waits for a call that has begun."""
    conn.execute(
        "UPDATE usage SET lease_owner = :owner, lease_until_ms = :until_ms"
        " WHERE root_run_id = :request_id AND run_id = :request_id",
        {"request_id": request_id, "owner": owner, "until_ms": now_ms + LENGTH_MS},
    )


def renew(conn: Connection, request_ids: Sequence[RunId], *, owner: str, now_ms: int) -> None:
    """Renew the leases of the calls that the owner waits for."""
    conn.execute_many(
        "UPDATE usage SET lease_until_ms = :until_ms WHERE root_run_id = :request_id AND run_id = :request_id"
        f" AND {_OPEN} AND lease_owner = :owner",
        [
            {"request_id": request_id, "owner": owner, "until_ms": now_ms + LENGTH_MS}
            for request_id in sorted(request_ids)
        ],
    )


def release_dead_owners(conn: Connection, *, home: str) -> int:
    """Release the leases of earlier daemons of this home, which its file lock proves to be dead."""
    return conn.execute(
        f"UPDATE usage SET lease_owner = NULL, lease_until_ms = 0 WHERE {_OPEN}"
        " AND SUBSTR(lease_owner, 1, :length) = :prefix",
        {"prefix": home + ":", "length": len(home) + 1},
    )


def abandoned(conn: Connection, *, now_ms: int, limit: int) -> list[tuple[SessionId, RunId]]:
    """Return open calls without a lease holder, each with its session; the oldest first."""
    rows = conn.fetch(
        f"SELECT session_id, run_id FROM usage WHERE {_DUE} ORDER BY at_ms, run_id LIMIT :limit",
        {"now_ms": now_ms, "limit": limit},
    )
    return [(SessionId(row[0]), RunId(row[1])) for row in rows]


def is_abandoned(conn: Connection, request_id: RunId, *, now_ms: int) -> bool:
    """Return the same for one call, and lock its row, so that no lease changes until the unit ends."""
    row = conn.fetch_one(
        f"SELECT 1 FROM usage WHERE root_run_id = :request_id AND run_id = :request_id AND {_DUE}"
        + conn.dialect.for_update,
        {"request_id": request_id, "now_ms": now_ms},
    )
    return row is not None


def find(conn: Connection, request_id: str, principal: PrincipalId | None) -> LedgerTurn | None:
    """Return a call from the ledger: of the principal, or of any principal for None."""
    ledger_turns = turns.of_run(conn, request_id, request_id, turn=1)
    if not ledger_turns or ledger_turns[0].cause != "embeddings" or principal not in (None, ledger_turns[0].principal):
        return None
    return ledger_turns[0]


def of_session(conn: Connection, session_id: SessionId) -> list[LedgerTurn]:
    """Return all calls of a session in the ledger."""
    return turns.of_embeddings(conn, session_id) if has_rows(conn) else []
