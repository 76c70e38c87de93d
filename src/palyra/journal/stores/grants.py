"""Grants as rows: what a person has allowed for more than one call."""

from palyra.core.clock import MAX_AHEAD_MS, from_ms, to_ms
from palyra.core.ids import AgentId, PrincipalId, SessionId
from palyra.core.policy.approval import ApprovalScope, Grant
from palyra.journal.engines.base import Connection, Row

_COLUMNS = (
    "grant_id, principal, agent_id, tool, kind, policy_hash, label, scope, session_id, granted_ms, expires_ms,"
    " revoked_ms"
)


def insert(conn: Connection, grant: Grant) -> None:
    """Insert a grant."""
    values = ", ".join(f":{name.strip()}" for name in _COLUMNS.split(","))
    conn.execute(f"INSERT INTO grants ({_COLUMNS}) VALUES ({values})", _row(grant))


def remove(conn: Connection, grant_id: str) -> None:
    """Delete a grant that no answer has given."""
    conn.execute("DELETE FROM grants WHERE grant_id = :grant_id", {"grant_id": grant_id})


def valid(conn: Connection, principal: PrincipalId, agent_id: AgentId, *, now_ms: int) -> list[Grant]:
    """Return the grants that are valid for an agent of the principal now.

    A temporary grant from a time when the clock was ahead is not: by the present clock it would last for years.
    """
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM grants WHERE principal = :principal AND agent_id = :agent_id"
        " AND revoked_ms IS NULL AND (expires_ms IS NULL OR (expires_ms > :now_ms AND granted_ms <= :horizon_ms))"
        " ORDER BY granted_ms, grant_id",
        {"principal": principal, "agent_id": agent_id, "now_ms": now_ms, "horizon_ms": now_ms + MAX_AHEAD_MS},
    )
    return [_grant(row) for row in rows]


def all_of(
    conn: Connection, principal: PrincipalId, *, limit: int, before: tuple[int, str] | None = None
) -> list[Grant]:
    """Return the principal's grants, the latest first, including those that are no longer valid."""
    after = " AND (granted_ms, grant_id) < (:before_ms, :before_id)" if before is not None else ""
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM grants WHERE principal = :principal{after} ORDER BY granted_ms DESC, grant_id DESC"
        " LIMIT :limit",
        {"principal": principal, "limit": limit}
        | ({"before_ms": before[0], "before_id": before[1]} if before is not None else {}),
    )
    return [_grant(row) for row in rows]


def get(conn: Connection, grant_id: str, principal: PrincipalId) -> Grant | None:
    """Return the principal's grant of that id."""
    row = conn.fetch_one(
        f"SELECT {_COLUMNS} FROM grants WHERE grant_id = :grant_id AND principal = :principal",
        {"grant_id": grant_id, "principal": principal},
    )
    return _grant(row) if row else None


def revoke(conn: Connection, grant_id: str, *, at_ms: int) -> None:
    """Revoke a grant."""
    conn.execute(
        "UPDATE grants SET revoked_ms = :at_ms WHERE grant_id = :grant_id AND revoked_ms IS NULL",
        {"grant_id": grant_id, "at_ms": at_ms},
    )


def stored(conn: Connection, grant_id: str) -> Grant | None:
    """Return a grant by its id, of any principal; None if there is none, or one that cannot be read."""
    row = conn.fetch_one(f"SELECT {_COLUMNS} FROM grants WHERE grant_id = :grant_id", {"grant_id": grant_id})
    try:
        return _grant(row) if row is not None else None
    except (ValueError, TypeError, OverflowError):
        return None


def ids(conn: Connection) -> set[str]:
    """Return the ids of all grants."""
    return {row[0] for row in conn.fetch("SELECT grant_id FROM grants")}


def as_stored(grant: Grant) -> Grant:
    """Return a grant as it would be read back from its row."""
    row = _row(grant)
    return _grant(tuple(row[name.strip()] for name in _COLUMNS.split(",")))


def _row(grant: Grant) -> dict[str, object]:
    return {
        "grant_id": grant.grant_id,
        "principal": grant.principal,
        "agent_id": grant.agent_id,
        "tool": grant.tool,
        "kind": grant.kind,
        "policy_hash": grant.policy_hash,
        "label": grant.label,
        "scope": grant.scope.value,
        "session_id": grant.session_id,
        "granted_ms": to_ms(grant.granted_at),
        "expires_ms": to_ms(grant.expires_at) if grant.expires_at is not None else None,
        "revoked_ms": to_ms(grant.revoked_at) if grant.revoked_at is not None else None,
    }


def _grant(row: Row) -> Grant:
    return Grant(
        grant_id=row[0],
        principal=PrincipalId(row[1]),
        agent_id=AgentId(row[2]),
        tool=row[3],
        kind=row[4],
        policy_hash=row[5],
        label=row[6],
        scope=ApprovalScope(row[7]),
        session_id=SessionId(row[8]) if row[8] else None,
        granted_at=from_ms(row[9]),
        expires_at=from_ms(row[10]) if row[10] is not None else None,
        revoked_at=from_ms(row[11]) if row[11] is not None else None,
    )
