"""Tokens as rows. Only a digest is stored: a token can be recognised, but not recovered."""

import hashlib
import secrets
from dataclasses import dataclass

from palyra.core.clock import MAX_AHEAD_MS
from palyra.core.ids import PrincipalId, TokenId
from palyra.core.token import TokenScope
from palyra.journal.engines.base import Connection, Row

_COLUMNS = "token_id, principal, name, created_ms, scopes, expires_ms, revoked_ms"


ALL = frozenset(TokenScope)


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token without its secret."""

    token_id: TokenId
    principal: PrincipalId
    name: str
    created_ms: int
    scopes: frozenset[TokenScope] = ALL
    expires_ms: int | None = None
    """It is valid before this time only."""
    revoked_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """The principal and scopes that a token proves."""

    principal: PrincipalId
    scopes: frozenset[TokenScope]
    token_id: TokenId
    expires_ms: int | None
    created_ms: int = 0

    def has_expired(self, *, now_ms: int) -> bool:
        """Return whether it has expired. One that was created while the clock was ahead counts as expired."""
        return self.expires_ms is not None and (self.expires_ms <= now_ms or self.created_ms > now_ms + MAX_AHEAD_MS)


def new_secret() -> str:
    """Return a new random token, with a prefix that distinguishes it from other secrets."""
    return "palyra_" + secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """Return the stored digest of a token. It has 256 random bits, so a plain hash cannot be searched."""
    return hashlib.sha256(secret.encode()).hexdigest()


def insert(conn: Connection, record: TokenRecord, secret: str) -> None:
    """Store a token, which makes it valid."""
    conn.execute(
        "INSERT INTO tokens (token_id, principal, digest, name, created_ms, scopes, expires_ms)"
        " VALUES (:token_id, :principal, :digest, :name, :created_ms, :scopes, :expires_ms)",
        {
            "token_id": record.token_id,
            "principal": record.principal,
            "digest": digest(secret),
            "name": record.name,
            "created_ms": record.created_ms,
            "scopes": ",".join(sorted(record.scopes)),
            "expires_ms": record.expires_ms,
        },
    )


def principal_of(conn: Connection, token_digest: str) -> TokenHolder | None:
    """Return the holder of the token with this digest, None if there is none or it was revoked; it may have expired."""
    row = conn.fetch_one(
        f"SELECT {_COLUMNS} FROM tokens WHERE digest = :digest AND revoked_ms IS NULL", {"digest": token_digest}
    )
    if row is None:
        return None
    record = _record(row)
    return TokenHolder(record.principal, record.scopes, record.token_id, record.expires_ms, record.created_ms)


def is_revoked(conn: Connection, token_digest: str) -> bool:
    """Return whether there was a token with this digest that was revoked."""
    row = conn.fetch_one(
        "SELECT 1 FROM tokens WHERE digest = :digest AND revoked_ms IS NOT NULL", {"digest": token_digest}
    )
    return row is not None


def get(conn: Connection, token_id: TokenId) -> TokenRecord | None:
    """Return the token of that id, revoked or not."""
    row = conn.fetch_one(f"SELECT {_COLUMNS} FROM tokens WHERE token_id = :token_id", {"token_id": token_id})
    return _record(row) if row else None


def page(conn: Connection, *, before: TokenId, limit: int) -> list[TokenRecord]:
    """Return the tokens of all principals that were not revoked, the latest first."""
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM tokens WHERE revoked_ms IS NULL AND token_id < :before"
        " ORDER BY token_id DESC LIMIT :limit",
        {"before": before, "limit": limit},
    )
    return [_record(row) for row in rows]


def page_of(conn: Connection, principal: PrincipalId, *, before: TokenId, limit: int) -> list[TokenRecord]:
    """Return the principal's tokens that were not revoked, the latest first."""
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM tokens WHERE principal = :principal AND revoked_ms IS NULL AND token_id < :before"
        " ORDER BY token_id DESC LIMIT :limit",
        {"principal": principal, "before": before, "limit": limit},
    )
    return [_record(row) for row in rows]


def count(conn: Connection, principal: PrincipalId, *, now_ms: int) -> int:
    """Return how many valid tokens the principal has."""
    row = conn.fetch_one(
        "SELECT COUNT(*) FROM tokens WHERE principal = :principal AND revoked_ms IS NULL"
        " AND (expires_ms IS NULL OR expires_ms > :now_ms)",
        {"principal": principal, "now_ms": now_ms},
    )
    assert row is not None
    return int(row[0])


def administers(conn: Connection, principal: PrincipalId, *, now_ms: int) -> bool:
    """Return whether the principal has a valid token that lets it administer the daemon."""
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM tokens WHERE principal = :principal AND revoked_ms IS NULL"
        " AND (expires_ms IS NULL OR expires_ms > :now_ms)",
        {"principal": principal, "now_ms": now_ms},
    )
    return any(TokenScope.ADMIN in _record(row).scopes for row in rows)


def revoke(conn: Connection, token_id: TokenId, *, now_ms: int) -> None:
    """Revoke a token; one that was revoked before keeps its time."""
    conn.execute(
        "UPDATE tokens SET revoked_ms = :now_ms WHERE token_id = :token_id AND revoked_ms IS NULL",
        {"token_id": token_id, "now_ms": now_ms},
    )


def _record(row: Row) -> TokenRecord:
    token_id, principal, name, created_ms, scopes, expires_ms, revoked_ms = row
    return TokenRecord(
        token_id=TokenId(token_id),
        principal=PrincipalId(principal),
        name=name,
        created_ms=created_ms,
        # A scope of a later version grants nothing here.
        scopes=frozenset(scope for scope in TokenScope if scope in scopes.split(",")),
        expires_ms=expires_ms,
        revoked_ms=revoked_ms,
    )
