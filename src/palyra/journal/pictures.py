"""Pictures of messages: the tape names them by their digests, and here stands which sessions keep them."""

from collections.abc import Sequence

from palyra.core.ids import SessionId
from palyra.journal import blobs
from palyra.journal.blobs import Packed
from palyra.journal.engine import Connection


def add(conn: Connection, session_id: SessionId, packed: Sequence[Packed], *, now_ms: int) -> None:
    """Keep pictures for a session, in the unit that writes the messages which they belong to."""
    for picture in packed:
        digest = blobs.put(conn, picture, now_ms=now_ms)
        conn.execute(
            "INSERT INTO pictures (session_id, digest) VALUES (:session_id, :digest) ON CONFLICT DO NOTHING",
            {"session_id": session_id, "digest": digest},
        )


def remove(conn: Connection, session_id: SessionId, *, limit: int) -> int:
    """Forget some of what was kept for a session; return how many. Their content is swept away later."""
    return conn.execute(
        "DELETE FROM pictures WHERE session_id = :session_id AND digest IN"
        " (SELECT digest FROM pictures WHERE session_id = :session_id LIMIT :limit)",
        {"session_id": session_id, "limit": limit},
    )
