"""Secrets as rows: names and scopes in plain text, values encrypted. Nothing here can decrypt them."""

from dataclasses import dataclass

import msgspec

from palyra.core.clock import from_ms, to_ms
from palyra.core.ids import PrincipalId
from palyra.core.secret import SecretRecord, SecretScope
from palyra.journal.engines.base import Connection, Row

_COLUMNS = "name, principal, version, scope, created_ms, updated_ms, last_used_ms, key_id, sealed"

_scope = msgspec.json.Decoder(SecretScope)


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A secret as it is stored."""

    record: SecretRecord
    scope: str
    """The record's scope as it is stored."""
    key_id: str
    """The id of the key that decrypts it."""
    sealed: str


def scope_text(scope: SecretScope) -> str:
    """Return a scope as it is stored."""
    return msgspec.json.encode(scope).decode()


def put(conn: Connection, stored_secret: StoredSecret) -> None:
    """Store a secret; it replaces one of the same name."""
    record = stored_secret.record
    conn.execute(
        f"INSERT INTO secrets ({_COLUMNS}) VALUES (:name, :principal, :version, :scope, :created_ms, :updated_ms,"
        " NULL, :key_id, :sealed) ON CONFLICT (principal, name) DO UPDATE SET version = excluded.version,"
        " scope = excluded.scope, updated_ms = excluded.updated_ms, last_used_ms = NULL, key_id = excluded.key_id,"
        " sealed = excluded.sealed",
        {
            "name": record.name,
            "principal": record.principal,
            "version": record.version,
            "scope": stored_secret.scope,
            "created_ms": to_ms(record.created_at),
            "updated_ms": to_ms(record.updated_at),
            "key_id": stored_secret.key_id,
            "sealed": stored_secret.sealed,
        },
    )


def get(conn: Connection, principal: PrincipalId, name: str) -> StoredSecret | None:
    """Return the principal's secret of that name."""
    row = conn.fetch_one(
        f"SELECT {_COLUMNS} FROM secrets WHERE principal = :principal AND name = :name",
        {"principal": principal, "name": name},
    )
    return _stored_secret(row) if row else None


def of(conn: Connection, principal: PrincipalId) -> list[StoredSecret]:
    """Return the principal's secrets by name."""
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM secrets WHERE principal = :principal ORDER BY name", {"principal": principal}
    )
    return [_stored_secret(row) for row in rows]


def keys(conn: Connection) -> dict[str, int]:
    """Return how many values each key has encrypted, stored ones and those found in texts, by the id of the key."""
    rows = conn.fetch(
        "SELECT key_id, COUNT(*) FROM (SELECT key_id FROM secrets UNION ALL SELECT key_id FROM sealed_values) k"
        " GROUP BY key_id"
    )
    return {key_id: count for key_id, count in rows}


def exist(conn: Connection) -> bool:
    """Return whether any principal has a secret."""
    return conn.fetch_one("SELECT 1 FROM secrets LIMIT 1") is not None


def note_use(conn: Connection, principal: PrincipalId, name: str, *, now_ms: int) -> None:
    """Record that the secret is being used."""
    conn.execute(
        "UPDATE secrets SET last_used_ms = :now_ms WHERE principal = :principal AND name = :name",
        {"principal": principal, "name": name, "now_ms": now_ms},
    )


def delete(conn: Connection, principal: PrincipalId, name: str) -> bool:
    """Delete the secret; return whether there was one."""
    return bool(
        conn.execute(
            "DELETE FROM secrets WHERE principal = :principal AND name = :name", {"principal": principal, "name": name}
        )
    )


def _stored_secret(row: Row) -> StoredSecret:
    name, principal, version, scope, created_ms, updated_ms, last_used_ms, key_id, sealed = row
    record = SecretRecord(
        name=name,
        principal=PrincipalId(principal),
        version=version,
        scope=_scope.decode(scope),
        created_at=from_ms(created_ms),
        updated_at=from_ms(updated_ms),
        last_used_at=from_ms(last_used_ms) if last_used_ms is not None else None,
    )
    return StoredSecret(record, scope, key_id, sealed)
