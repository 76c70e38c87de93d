"""Idempotency keys: the same request with the same key gets the same answer, for seven days."""

from dataclasses import dataclass

from palyra.core.errors import Conflict
from palyra.core.ids import PrincipalId
from palyra.journal.engines.base import Connection

KEPT_MS = 7 * 24 * 3600 * 1000
SLICE = 500


class IdempotencyKeyConflict(Conflict):
    """This idempotency key was used for another request. Use a new key for a new message."""


@dataclass(frozen=True, slots=True)
class IdempotencyClaim:
    """The idempotency key of a request, with the request's digest."""

    principal: PrincipalId
    key: str
    digest: str


def answer(conn: Connection, claim: IdempotencyClaim) -> str | None:
    """Return the answer recorded under the key, None if it is new; raise if the key belongs to another request."""
    row = conn.fetch_one(
        "SELECT digest, answer FROM idempotency WHERE principal = :principal AND key = :key",
        {"principal": claim.principal, "key": claim.key},
    )
    if row is None:
        return None
    if row[0] != claim.digest:
        raise IdempotencyKeyConflict
    return str(row[1])


def keep(conn: Connection, claim: IdempotencyClaim, answer_text: str, *, now_ms: int) -> bool:
    """Record the answer; False if another unit was faster with the same key."""
    row = conn.fetch_one(
        "INSERT INTO idempotency (principal, key, digest, answer, created_ms)"
        " VALUES (:principal, :key, :digest, :answer, :now_ms) ON CONFLICT DO NOTHING RETURNING key",
        {
            "principal": claim.principal,
            "key": claim.key,
            "digest": claim.digest,
            "answer": answer_text,
            "now_ms": now_ms,
        },
    )
    return row is not None


def expire(conn: Connection, *, now_ms: int) -> int:
    """Delete a slice of the keys that are older than seven days; return how many."""
    return conn.execute(
        "DELETE FROM idempotency WHERE (principal, key) IN (SELECT principal, key FROM idempotency"
        " WHERE created_ms < :before_ms ORDER BY created_ms LIMIT :slice)",
        {"before_ms": now_ms - KEPT_MS, "slice": SLICE},
    )
