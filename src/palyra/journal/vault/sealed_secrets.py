"""Secrets that were found in texts, as rows: the encrypted values, and where each came from.

A value has an origin for each session in which it was found. Origins are deleted with the session, and a value is
deleted with its last origin.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from palyra.core.ids import PrincipalId, SessionId
from palyra.journal.engines.base import Connection


@dataclass(frozen=True, slots=True)
class SealedValue:
    """A value as it is stored."""

    principal: PrincipalId
    sealed_id: str
    key_id: str
    """The id of the key that decrypts it."""
    sealed: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class SealedOrigin:
    """Where a value came from."""

    sealed_id: str
    origin: str
    proof: str
    """Made with the vault key: an origin that another program wrote into the database does not count."""


@dataclass(frozen=True, slots=True)
class SealedListing:
    """A value in a list: everything except the value."""

    sealed_id: str
    created_ms: int
    origins: tuple[str, ...]


def keep(
    conn: Connection,
    session_id: SessionId,
    values: Sequence[SealedValue],
    origins: Sequence[SealedOrigin],
) -> None:
    """Store values and where they came from. Existing ones stay as they are."""
    for value in values:
        conn.execute(
            "INSERT INTO sealed_values (principal, sealed_id, key_id, sealed, created_ms)"
            " VALUES (:principal, :sealed_id, :key_id, :sealed, :created_ms)"
            " ON CONFLICT (principal, sealed_id) DO NOTHING",
            {
                "principal": value.principal,
                "sealed_id": value.sealed_id,
                "key_id": value.key_id,
                "sealed": value.sealed,
                "created_ms": value.created_ms,
            },
        )
    for origin in origins:
        conn.execute(
            "INSERT INTO sealed_origins (principal, sealed_id, session_id, origin, proof, first_ms)"
            " VALUES (:principal, :sealed_id, :session_id, :origin, :proof, :first_ms)"
            " ON CONFLICT (principal, sealed_id, session_id, origin) DO NOTHING",
            {
                "principal": values[0].principal,
                "sealed_id": origin.sealed_id,
                "session_id": session_id,
                "origin": origin.origin,
                "proof": origin.proof,
                "first_ms": values[0].created_ms,
            },
        )


def get(conn: Connection, principal: PrincipalId, ids: Collection[str]) -> list[SealedValue]:
    """Return those of the values that belong to the principal."""
    rows = (
        conn.fetch_one(
            "SELECT principal, sealed_id, key_id, sealed, created_ms FROM sealed_values"
            " WHERE principal = :principal AND sealed_id = :sealed_id",
            {"principal": principal, "sealed_id": sealed_id},
        )
        for sealed_id in sorted(ids)
    )
    return [SealedValue(PrincipalId(row[0]), *row[1:]) for row in rows if row is not None]


def origins_of(conn: Connection, principal: PrincipalId, sealed_id: str) -> list[SealedOrigin]:
    """Return where a value came from, the oldest first."""
    rows = conn.fetch(
        "SELECT origin, proof, MIN(first_ms) FROM sealed_origins"
        " WHERE principal = :principal AND sealed_id = :sealed_id GROUP BY origin, proof"
        " ORDER BY MIN(first_ms), origin",
        {"principal": principal, "sealed_id": sealed_id},
    )
    return [SealedOrigin(sealed_id, origin, proof) for origin, proof, _ in rows]


def page(
    conn: Connection, principal: PrincipalId, *, limit: int, before: tuple[int, str] | None = None
) -> list[SealedListing]:
    """Return the principal's values, the latest first."""
    after = " AND (created_ms, sealed_id) < (:before_ms, :before_id)" if before is not None else ""
    rows = conn.fetch(
        f"SELECT sealed_id, created_ms FROM sealed_values WHERE principal = :principal{after}"
        " ORDER BY created_ms DESC, sealed_id DESC LIMIT :limit",
        {"principal": principal, "limit": limit}
        | ({"before_ms": before[0], "before_id": before[1]} if before is not None else {}),
    )
    return [
        SealedListing(sealed_id, created_ms, tuple(one.origin for one in origins_of(conn, principal, sealed_id)))
        for sealed_id, created_ms in rows
    ]


def count(conn: Connection, principal: PrincipalId) -> int:
    """Return how many values the principal has."""
    row = conn.fetch_one("SELECT COUNT(*) FROM sealed_values WHERE principal = :p", {"p": principal})
    return int(row[0]) if row is not None else 0


def exist(conn: Connection) -> bool:
    """Return whether any principal has a value."""
    return conn.fetch_one("SELECT 1 FROM sealed_values LIMIT 1") is not None


def delete(conn: Connection, principal: PrincipalId, sealed_id: str) -> bool:
    """Delete a value; return whether there was one."""
    mine = {"principal": principal, "sealed_id": sealed_id}
    conn.execute("DELETE FROM sealed_origins WHERE principal = :principal AND sealed_id = :sealed_id", mine)
    return bool(conn.execute("DELETE FROM sealed_values WHERE principal = :principal AND sealed_id = :sealed_id", mine))


def remove(conn: Connection, session_id: SessionId, *, limit: int) -> int:
    """Delete the origins in a session, and the values that have no other origin."""
    rows = conn.fetch(
        "SELECT DISTINCT principal, sealed_id FROM sealed_origins WHERE session_id = :session_id LIMIT :limit",
        {"session_id": session_id, "limit": limit},
    )
    for principal, sealed_id in rows:
        mine = {"principal": principal, "sealed_id": sealed_id}
        conn.execute(
            "DELETE FROM sealed_origins WHERE principal = :principal AND sealed_id = :sealed_id"
            " AND session_id = :session_id",
            {**mine, "session_id": session_id},
        )
        conn.execute(
            "DELETE FROM sealed_values WHERE principal = :principal AND sealed_id = :sealed_id AND NOT EXISTS"
            " (SELECT 1 FROM sealed_origins o WHERE o.principal = :principal AND o.sealed_id = :sealed_id)",
            mine,
        )
    return len(rows)
