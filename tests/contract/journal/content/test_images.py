"""Pictures of messages, on both engines."""

from palyra.core.ids import SessionId
from palyra.journal.content import blobs, images
from palyra.journal.engines.base import Connection

ONE, TWO = SessionId("one"), SessionId("two")
PICTURE = b"\x89PNG\r\n\x1a\n"
LATER = blobs.UNREFERENCED_GRACE_MS + 2


def keep(conn: Connection, session_id: SessionId) -> str:
    packed = blobs.pack(PICTURE)
    images.add(conn, session_id, [packed, packed], now_ms=1)
    return packed.digest


def test_a_picture_is_kept_for_as_long_as_a_session_has_it(conn: Connection) -> None:
    digest = keep(conn, ONE)
    assert keep(conn, TWO) == digest
    for session_id in (ONE, TWO):
        assert not blobs.sweep(conn, now_ms=LATER)
        assert blobs.get(conn, digest) == PICTURE
        assert images.remove(conn, session_id, limit=10) == 1
    assert blobs.sweep(conn, now_ms=LATER)
    assert images.remove(conn, ONE, limit=10) == 0


def test_a_picture_that_was_changed_is_found(conn: Connection) -> None:
    digest = keep(conn, ONE)
    assert not list(blobs.check(conn))
    conn.execute("UPDATE blob_parts SET content = 'eJwDAAAAAAE=' WHERE digest = :digest", {"digest": digest})
    assert list(blobs.check(conn)) == [f"the stored content {digest[:16]}… is missing or was changed"]
