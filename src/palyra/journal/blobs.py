"""Content by its digest: whatever is kept twice is stored once.

The content stands in the database, so that it is written in the same commit as the rows that speak of it, is seen by
every replica, and is in every backup. It is cut into parts, so that a slice of it can be read without the rest; each
part is compressed and written as text, which both engines and the copies of their tables take as it is.

A blob belongs to nobody: who may read it is decided by the rows that name its digest (`artifacts`, `checkpoints`,
`pictures`). When none does any more, it is swept away.
"""

import base64
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from palyra.core.errors import Broken
from palyra.journal import migrate
from palyra.journal.engine import Connection

SINCE_SCHEMA = 6
PICTURES_SINCE_SCHEMA = 13
PART_BYTES = 128 * 1024
LEVEL = 1
"""Text shrinks to a third already at the quickest level."""
SPARED_MS = 3600_000
"""How long a blob stays that nothing names: whoever stored it may be about to name it."""
SWEPT = 20

_UNUSED = (
    "NOT EXISTS (SELECT 1 FROM artifacts a WHERE a.digest = b.digest)"
    " AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.before_digest = b.digest)"
    " AND NOT EXISTS (SELECT 1 FROM pictures p WHERE p.digest = b.digest)"
)


class BlobDamaged(Broken):
    """Kept content is missing or was changed. Restore a backup to have it back."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Content made ready to be stored; making it takes time, so it is done before the unit."""

    digest: str
    size: int
    parts: tuple[str, ...]


def digest_of(content: bytes) -> str:
    """Return the name under which the content is kept."""
    return hashlib.sha256(content).hexdigest()


def pack(content: bytes) -> Packed:
    """Make content ready. Blocks for as long as compressing takes."""
    parts = (content[place : place + PART_BYTES] for place in range(0, len(content), PART_BYTES))
    packed = tuple(base64.b64encode(zlib.compress(part, LEVEL)).decode() for part in parts)
    return Packed(digest_of(content), len(content), packed)


def put(conn: Connection, packed: Packed, *, now_ms: int) -> str:
    """Store the content unless it is there, and return its digest. A row that names it goes into the same unit."""
    known = conn.execute(
        "UPDATE blobs SET stored_ms = :now_ms WHERE digest = :digest", {"digest": packed.digest, "now_ms": now_ms}
    )
    if known:
        return packed.digest
    conn.execute(
        "INSERT INTO blobs (digest, size, stored_ms) VALUES (:digest, :size, :now_ms)"
        # Somebody else may store the same in the same moment; then this waits for them, and the parts are there.
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
    """Return the content from a byte on, all of the rest or so much of it. Who may read it was decided before."""
    row = conn.fetch_one("SELECT size FROM blobs WHERE digest = :digest", {"digest": digest})
    if row is None:
        raise BlobDamaged
    end = row[0] if length is None else min(row[0], start + length)
    if start >= end:
        return b""
    first, last = start // PART_BYTES, (end - 1) // PART_BYTES
    rows = conn.fetch(
        "SELECT content FROM blob_parts WHERE digest = :digest AND part >= :first AND part <= :last ORDER BY part",
        {"digest": digest, "first": first, "last": last},
    )
    found = b"".join(_unpack(part[0]) for part in rows)
    content = found[start - first * PART_BYTES : end - first * PART_BYTES]
    if len(content) != end - start or ((start, end) == (0, row[0]) and digest_of(content) != digest):
        raise BlobDamaged
    return content


def sweep(conn: Connection, *, now_ms: int) -> bool:
    """Remove some of the blobs that nothing names any more; False if there were none."""
    # A blob that is stored again meanwhile has a new time, which is what PostgreSQL looks at again before it deletes.
    params = {"before_ms": now_ms - SPARED_MS, "swept": SWEPT}
    rows = conn.fetch(f"SELECT b.digest FROM blobs b WHERE b.stored_ms < :before_ms AND {_UNUSED} LIMIT :swept", params)
    for (digest,) in rows:
        gone = conn.execute(
            "DELETE FROM blobs WHERE digest = :digest AND stored_ms < :before_ms",
            {"digest": digest, "before_ms": params["before_ms"]},
        )
        if gone:
            conn.execute("DELETE FROM blob_parts WHERE digest = :digest", {"digest": digest})
    return bool(rows)


def check(conn: Connection) -> Iterator[str]:
    """Yield what is wrong with kept content: all of it is read."""
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
                except BlobDamaged:
                    yield f"the kept content {digest[:16]}… is missing or was changed"
            after = rows[-1][0]


def _unpack(part: str) -> bytes:
    try:
        return zlib.decompress(base64.b64decode(part))
    except (ValueError, zlib.error) as error:
        raise BlobDamaged from error
