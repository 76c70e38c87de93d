"""Tokens as rows. Only a digest is kept: a token can be recognised, never read back."""

import hashlib
import secrets
from dataclasses import dataclass
from enum import StrEnum

from palyra.core.clock import MAX_AHEAD_MS
from palyra.core.ids import PrincipalId, TokenId
from palyra.journal.engine import Connection, Row

_COLUMNS = "token_id, principal, name, created_ms, scopes, expires_ms, revoked_ms"


class Scope(StrEnum):
    """What a token lets its bearer do."""

    ADMIN = "admin"
    """Look after the daemon, and after the tokens of others."""
    READ = "read"
    WRITE = "write"


ALL = frozenset(Scope)


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token without its secret."""

    token_id: TokenId
    principal: PrincipalId
    name: str
    created_ms: int
    scopes: frozenset[Scope] = ALL
    expires_ms: int | None = None
    """From this moment on it proves nothing."""
    revoked_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """Whoever shows a token: what it proves."""

    principal: PrincipalId
    scopes: frozenset[Scope]
    token_id: TokenId
    expires_ms: int | None
    created_ms: int = 0

    def has_expired(self, *, now_ms: int) -> bool:
        """Tell whether its time is over. Of one that was made while the clock was ahead nobody knows, so it is."""
        return self.expires_ms is not None and (self.expires_ms <= now_ms or self.created_ms > now_ms + MAX_AHEAD_MS)


def new_secret() -> str:
    """Return a token that nobody can guess, told from other secrets by its first word."""
    return "palyra_" + secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """Return what is stored of a token. It has 256 random bits, so a plain hash can not be searched."""
    return hashlib.sha256(secret.encode()).hexdigest()


def insert(conn: Connection, record: TokenRecord, secret: str) -> None:
    """Make a token valid."""
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


def principal_of(conn: Connection, token_digest: str) -> Holder | None:
    """Return what the token of this digest proves, None if there is none or it was revoked; it may have expired."""
    row = conn.fetch_one(
        f"SELECT {_COLUMNS} FROM tokens WHERE digest = :digest AND revoked_ms IS NULL", {"digest": token_digest}
    )
    if row is None:
        return None
    record = _record(row)
    return Holder(record.principal, record.scopes, record.token_id, record.expires_ms, record.created_ms)


def is_revoked(conn: Connection, token_digest: str) -> bool:
    """Tell whether there was a token of this digest that is valid no more."""
    found = conn.fetch_one(
        "SELECT 1 FROM tokens WHERE digest = :digest AND revoked_ms IS NOT NULL", {"digest": token_digest}
    )
    return found is not None


def get(conn: Connection, token_id: TokenId) -> TokenRecord | None:
    """Return the token of that id, revoked or not."""
    row = conn.fetch_one(f"SELECT {_COLUMNS} FROM tokens WHERE token_id = :token_id", {"token_id": token_id})
    return _record(row) if row else None


def page(conn: Connection, *, before: TokenId, limit: int) -> list[TokenRecord]:
    """Return everybody's tokens that were not revoked, the latest first."""
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
    """Tell whether the principal has a valid token that lets it look after the daemon."""
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM tokens WHERE principal = :principal AND revoked_ms IS NULL"
        " AND (expires_ms IS NULL OR expires_ms > :now_ms)",
        {"principal": principal, "now_ms": now_ms},
    )
    return any(Scope.ADMIN in _record(row).scopes for row in rows)


def revoke(conn: Connection, token_id: TokenId, *, now_ms: int) -> None:
    """Make a token prove nothing from now on; one that was revoked before keeps its time."""
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
        # A scope that a later version knows gives nothing here.
        scopes=frozenset(scope for scope in Scope if scope in scopes.split(",")),
        expires_ms=expires_ms,
        revoked_ms=revoked_ms,
    )
