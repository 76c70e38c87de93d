"""Content by its digest: identical content is stored once.

The content is in the database, so that it is written in the same commit as the rows that refer to it, is visible to
every replica, and is in every backup. It is split into parts, so that a slice of it can be read without the rest; each
part is compressed and stored as text, which both engines and their table dumps accept unchanged.

A blob has no owner: the rows that refer to its digest (`artifacts`, `checkpoints`, `pictures`) decide who may read it.
When no row refers to it any more, it is swept.
"""

import base64
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from palyra.core.errors import Internal
from palyra.journal import migrate
from palyra.journal.engines.base import Connection

SINCE_SCHEMA = 6
PICTURES_SINCE_SCHEMA = 13
PART_BYTES = 128 * 1024
LEVEL = 1
"""The fastest level already shrinks text to a third."""
UNREFERENCED_GRACE_MS = 3600_000
"""How long a blob without references is kept: the row that refers to it may be about to be written."""
SWEEP_BLOBS = 20

_UNUSED = (
    "NOT EXISTS (SELECT 1 FROM artifacts a WHERE a.digest = b.digest)"
    " AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.before_digest = b.digest)"
    " AND NOT EXISTS (SELECT 1 FROM pictures p WHERE p.digest = b.digest)"
)


class ContentDamaged(Internal):
    """Stored content is missing or was changed. Restore it from a backup."""


@dataclass(frozen=True, slots=True)
class PackedContent:
    """Content prepared for storage; this takes time, so it is done before the unit."""

    digest: str
    size: int
    parts: tuple[str, ...]


def digest_of(content: bytes) -> str:
    """Return the digest under which the content is stored."""
    return hashlib.sha256(content).hexdigest()


def pack(content: bytes) -> PackedContent:
    """Prepare content. Blocks while it compresses."""
    parts = (content[index : index + PART_BYTES] for index in range(0, len(content), PART_BYTES))
    packed = tuple(base64.b64encode(zlib.compress(part, LEVEL)).decode() for part in parts)
    return PackedContent(digest_of(content), len(content), packed)


def put(conn: Connection, packed: PackedContent, *, now_ms: int) -> str:
    """Store the content unless it exists, and return its digest. Write the row that refers to it in the same unit."""
    known_count = conn.execute(
        "UPDATE blobs SET stored_ms = :now_ms WHERE digest = :digest", {"digest": packed.digest, "now_ms": now_ms}
    )
    if known_count:
        return packed.digest
    conn.execute(
        "INSERT INTO blobs (digest, size, stored_ms) VALUES (:digest, :size, :now_ms)"
        # Another unit may store the same at the same moment; then this waits for it, and the parts exist.
        " ON CONFLICT (digest) DO UPDATE SET stored_ms = excluded.stored_ms",
        {"digest": packed.digest, "size": packed.size, "now_ms": now_ms},
    )
    if packed.parts:
        conn.execute_many(
            "INSERT INTO blob_parts (digest, part, content) VALUES (:digest, :part, :content)"
            " ON CONFLICT (digest, part) DO NOTHING",
            [
                {"digest": packed.digest, "part": number, "content": content}
                for number, content in enumerate(packed.parts)
            ],
        )
    return packed.digest


def get(conn: Connection, digest: str, *, start: int = 0, length: int | None = None) -> bytes:
    """Return the content from a byte offset, up to `length` bytes. The caller has checked the permission."""
    row = conn.fetch_one("SELECT size FROM blobs WHERE digest = :digest", {"digest": digest})
    if row is None:
        raise ContentDamaged
    end = row[0] if length is None else min(row[0], start + length)
    if start >= end:
        return b""
    first, last = start // PART_BYTES, (end - 1) // PART_BYTES
    rows = conn.fetch(
        "SELECT content FROM blob_parts WHERE digest = :digest AND part >= :first AND part <= :last ORDER BY part",
        {"digest": digest, "first": first, "last": last},
    )
    data = b"".join(_unpack(part[0]) for part in rows)
    content = data[start - first * PART_BYTES : end - first * PART_BYTES]
    if len(content) != end - start or ((start, end) == (0, row[0]) and digest_of(content) != digest):
        raise ContentDamaged
    return content


def sweep(conn: Connection, *, now_ms: int) -> bool:
    """Delete some of the blobs that no row refers to; False if there were none."""
    # A blob that is stored again meanwhile has a new time, which PostgreSQL checks again before it deletes.
    params = {"before_ms": now_ms - UNREFERENCED_GRACE_MS, "swept": SWEEP_BLOBS}
    rows = conn.fetch(f"SELECT b.digest FROM blobs b WHERE b.stored_ms < :before_ms AND {_UNUSED} LIMIT :swept", params)
    for (digest,) in rows:
        removed = conn.execute(
            "DELETE FROM blobs WHERE digest = :digest AND stored_ms < :before_ms",
            {"digest": digest, "before_ms": params["before_ms"]},
        )
        if removed:
            conn.execute("DELETE FROM blob_parts WHERE digest = :digest", {"digest": digest})
    return bool(rows)


def check(conn: Connection) -> Iterator[str]:
    """Yield the problems of stored content: all of it is read."""
    named = [("artifacts", "digest"), ("checkpoints", "before_digest")]
    if migrate.current(conn) >= PICTURES_SINCE_SCHEMA:
        named.append(("pictures", "digest"))
    for noun, column in named:
        after = ""
        while rows := conn.fetch(
            f"SELECT DISTINCT {column} FROM {noun} WHERE {column} > :after ORDER BY {column} LIMIT 100",
            {"after": after},
        ):
            for (digest,) in rows:
                try:
                    get(conn, digest)
                except ContentDamaged:
                    yield f"the stored content {digest[:16]}… is missing or was changed"
            after = rows[-1][0]


def _unpack(part: str) -> bytes:
    try:
        return zlib.decompress(base64.b64decode(part))
    except (ValueError, zlib.error) as error:
        raise ContentDamaged from error
