"""Calls for embeddings as rows of the ledger: those that are under way, who waits for them, and those of a session.

Whoever asks a provider holds the row for a while, and renews that. A row that nobody holds is of a daemon that died.
"""

from collections.abc import Sequence

from palyra.core.ids import PrincipalId, RunId, SessionId
from palyra.core.spending import Turn
from palyra.journal import migrate, usage
from palyra.journal.engine import Connection
from palyra.journal.leases import LENGTH_MS, UNHELD

FIRST_SCHEMA = 14
"""Since when there are such rows."""

_OPEN = "cause = 'embeddings' AND state = 'reserved'"
_DUE = f"{_OPEN} AND {UNHELD}"


def has_rows(conn: Connection) -> bool:
    """Tell whether the ledger can have such rows; one of an early schema can not."""
    return migrate.current(conn) >= FIRST_SCHEMA


def hold(conn: Connection, request_id: RunId, *, owner: str, now_ms: int) -> None:
    """Say who waits for a call that has begun."""
    conn.execute(
        "UPDATE usage SET lease_owner = :owner, lease_until_ms = :until_ms"
        " WHERE root_run_id = :request_id AND run_id = :request_id",
        {"request_id": request_id, "owner": owner, "until_ms": now_ms + LENGTH_MS},
    )


def renew(conn: Connection, request_ids: Sequence[RunId], *, owner: str, now_ms: int) -> None:
    """Go on holding what the owner waits for."""
    conn.execute_many(
        "UPDATE usage SET lease_until_ms = :until_ms WHERE root_run_id = :request_id AND run_id = :request_id"
        f" AND {_OPEN} AND lease_owner = :owner",
        [
            {"request_id": request_id, "owner": owner, "until_ms": now_ms + LENGTH_MS}
            for request_id in sorted(request_ids)
        ],
    )


def void(conn: Connection, *, home: str) -> int:
    """Let go of what earlier daemons of this home held, which its file lock proves to be dead."""
    return conn.execute(
        f"UPDATE usage SET lease_owner = NULL, lease_until_ms = 0 WHERE {_OPEN}"
        " AND SUBSTR(lease_owner, 1, :length) = :prefix",
        {"prefix": home + ":", "length": len(home) + 1},
    )


def left_behind(conn: Connection, *, now_ms: int, limit: int) -> list[tuple[SessionId, RunId]]:
    """Return calls that are open and that nobody waits for any more, each with its session; the first one first."""
    rows = conn.fetch(
        f"SELECT session_id, run_id FROM usage WHERE {_DUE} ORDER BY at_ms, run_id LIMIT :limit",
        {"now_ms": now_ms, "limit": limit},
    )
    return [(SessionId(row[0]), RunId(row[1])) for row in rows]


def is_left_behind(conn: Connection, request_id: RunId, *, now_ms: int) -> bool:
    """Tell the same of one call, and keep whoever may wait for it from saying otherwise until the unit ends."""
    row = conn.fetch_one(
        f"SELECT 1 FROM usage WHERE root_run_id = :request_id AND run_id = :request_id AND {_DUE}"
        + conn.dialect.for_update,
        {"request_id": request_id, "now_ms": now_ms},
    )
    return row is not None


def find(conn: Connection, request_id: str, principal: PrincipalId | None) -> Turn | None:
    """Return a call of the principal's, or of anybody's, as the ledger has it."""
    found = usage.of_run(conn, request_id, request_id, turn=1)
    if not found or found[0].cause != "embeddings" or principal not in (None, found[0].principal):
        return None
    return found[0]


def of_session(conn: Connection, session_id: SessionId) -> list[Turn]:
    """Return all calls that the ledger has of a session."""
    return usage.of_embeddings(conn, session_id) if has_rows(conn) else []
