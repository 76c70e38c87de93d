"""Images of messages: the tape names them by their digests, and these rows say which sessions keep them."""

from collections.abc import Sequence

from palyra.core.ids import SessionId
from palyra.journal.content import blobs
from palyra.journal.content.blobs import PackedContent
from palyra.journal.engines.base import Connection


def add(conn: Connection, session_id: SessionId, packed: Sequence[PackedContent], *, now_ms: int) -> None:
    """Store images for a session, in the unit that writes their messages."""
    for picture in packed:
        digest = blobs.put(conn, picture, now_ms=now_ms)
        conn.execute(
            "INSERT INTO pictures (session_id, digest) VALUES (:session_id, :digest) ON CONFLICT DO NOTHING",
            {"session_id": session_id, "digest": digest},
        )


def remove(conn: Connection, session_id: SessionId, *, limit: int) -> int:
    """Delete some images of a session; return how many. Their content is swept later."""
    return conn.execute(
        "DELETE FROM pictures WHERE session_id = :session_id AND digest IN"
        " (SELECT digest FROM pictures WHERE session_id = :session_id LIMIT :limit)",
        {"session_id": session_id, "limit": limit},
    )
