"""Grants as rows: what a person has allowed for more than one call."""

from palyra.core.clock import MAX_AHEAD_MS
from palyra.core.ids import AgentId, PrincipalId
from palyra.core.policy.approval import Grant
from palyra.journal.engines.base import Connection
from palyra.journal.row_mapping import RowMapping

_ROWS = RowMapping(Grant, "grants")

as_stored = _ROWS.as_stored


def insert(conn: Connection, grant: Grant) -> None:
    """Insert a grant."""
    conn.execute(_ROWS.insert, _ROWS.write(grant))


def remove(conn: Connection, grant_id: str) -> None:
    """Delete a grant that no answer has given."""
    conn.execute("DELETE FROM grants WHERE grant_id = :grant_id", {"grant_id": grant_id})


def valid(conn: Connection, principal: PrincipalId, agent_id: AgentId, *, now_ms: int) -> list[Grant]:
    """Return the grants that are valid for an agent of the principal now.

    A temporary grant from a time when the clock was ahead is not: by the present clock it would last for years.
    """
    rows = conn.fetch(
        f"{_ROWS.select} WHERE principal = :principal AND agent_id = :agent_id"
        " AND revoked_ms IS NULL AND (expires_ms IS NULL OR (expires_ms > :now_ms AND granted_ms <= :horizon_ms))"
        " ORDER BY granted_ms, grant_id",
        {"principal": principal, "agent_id": agent_id, "now_ms": now_ms, "horizon_ms": now_ms + MAX_AHEAD_MS},
    )
    return [_ROWS.read(row) for row in rows]


def all_of(
    conn: Connection, principal: PrincipalId, *, limit: int, before: tuple[int, str] | None = None
) -> list[Grant]:
    """Return the principal's grants, the latest first, including those that are no longer valid."""
    after = " AND (granted_ms, grant_id) < (:before_ms, :before_id)" if before is not None else ""
    rows = conn.fetch(
        f"{_ROWS.select} WHERE principal = :principal{after} ORDER BY granted_ms DESC, grant_id DESC LIMIT :limit",
        {"principal": principal, "limit": limit}
        | ({"before_ms": before[0], "before_id": before[1]} if before is not None else {}),
    )
    return [_ROWS.read(row) for row in rows]


def get(conn: Connection, grant_id: str, principal: PrincipalId) -> Grant | None:
    """Return the principal's grant of that id."""
    row = conn.fetch_one(
        f"{_ROWS.select} WHERE grant_id = :grant_id AND principal = :principal",
        {"grant_id": grant_id, "principal": principal},
    )
    return _ROWS.read(row) if row else None


def revoke(conn: Connection, grant_id: str, *, at_ms: int) -> None:
    """Revoke a grant."""
    conn.execute(
        "UPDATE grants SET revoked_ms = :at_ms WHERE grant_id = :grant_id AND revoked_ms IS NULL",
        {"grant_id": grant_id, "at_ms": at_ms},
    )


def stored(conn: Connection, grant_id: str) -> Grant | None:
    """Return a grant by its id, of any principal; None if there is none, or one that cannot be read."""
    row = conn.fetch_one(f"{_ROWS.select} WHERE grant_id = :grant_id", {"grant_id": grant_id})
    try:
        return _ROWS.read(row) if row is not None else None
    except (ValueError, TypeError, OverflowError):
        return None


def ids(conn: Connection) -> set[str]:
    """Return the ids of all grants."""
    return {row[0] for row in conn.fetch("SELECT grant_id FROM grants")}
