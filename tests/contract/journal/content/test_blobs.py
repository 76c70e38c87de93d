"""Content is kept once under its digest, read in slices, and swept away when nothing names it."""

import random
from datetime import timedelta

import msgspec
import pytest

from palyra.core.artifact import Artifact, FileCheckpoint
from palyra.core.clock import to_ms
from palyra.core.ids import CallId
from palyra.journal.content import artifacts, blobs, file_checkpoints
from palyra.journal.content.artifacts import ArtifactNotFound
from palyra.journal.content.blobs import PART_BYTES, UNREFERENCED_GRACE_MS, ContentDamaged, digest_of, pack
from palyra.journal.content.file_checkpoints import FileCheckpointNotFound
from palyra.journal.engines.base import Connection
from tests.contract.journal.builders import BEN, a_run_id, a_session_id, an_id
from tests.support.builders import ANA, AT

NOW_MS = to_ms(AT)
LONG = random.Random(1).randbytes(2 * PART_BYTES + 17)


def an_artifact(content: bytes, place: int = 1) -> Artifact:
    return Artifact(
        artifact_id=an_id(place),
        principal=ANA,
        session_id=a_session_id(),
        run_id=a_run_id(),
        call_id=CallId("c1"),
        what="shell.run",
        digest=digest_of(content),
        size=len(content),
        made_at=AT,
    )


def a_checkpoint(before: bytes | None = b"old", place: int = 1, *, path: str = "/ws/notes.txt") -> FileCheckpoint:
    return FileCheckpoint(
        checkpoint_id=an_id(place),
        principal=ANA,
        session_id=a_session_id(),
        run_id=a_run_id(),
        call_id=CallId("c1"),
        what="files.write",
        root="/ws",
        path=path,
        before_digest=None if before is None else digest_of(before),
        before_mode=None if before is None else 0o644,
        after_digest=digest_of(b"new"),
        at=AT,
    )


def keep(conn: Connection, checkpoint: FileCheckpoint, before: bytes | None = b"old") -> FileCheckpoint:
    file_checkpoints.add(conn, checkpoint, None if before is None else pack(before))
    return checkpoint


def count(conn: Connection, table: str) -> int:
    row = conn.fetch_one(f"SELECT COUNT(*) FROM {table}")
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("content", [b"", b"x", b"\0\xff\n" * 9, LONG, b"a" * PART_BYTES])
def test_what_was_put_is_got_again(conn: Connection, content: bytes) -> None:
    digest = blobs.put(conn, pack(content), now_ms=NOW_MS)
    assert digest == digest_of(content)
    assert blobs.get(conn, digest) == content


@pytest.mark.parametrize(
    ("start", "length"), [(0, 10), (PART_BYTES - 3, 6), (5, 2 * PART_BYTES), (len(LONG) - 4, 99), (len(LONG), 1)]
)
def test_a_slice_is_read_across_parts(conn: Connection, start: int, length: int) -> None:
    digest = blobs.put(conn, pack(LONG), now_ms=NOW_MS)
    assert blobs.get(conn, digest, start=start, length=length) == LONG[start : start + length]


def test_the_same_content_is_stored_once(conn: Connection) -> None:
    for place in (1, 2):
        artifacts.add(conn, an_artifact(LONG, place), pack(LONG))
    assert (count(conn, "artifacts"), count(conn, "blobs"), count(conn, "blob_parts")) == (2, 1, 3)


def test_content_that_was_changed_is_never_given_out(conn: Connection) -> None:
    artifacts.add(conn, an_artifact(b"true"), pack(b"true"))
    assert list(blobs.check(conn)) == []
    conn.execute("UPDATE blob_parts SET content = :c", {"c": pack(b"fals").parts[0]})
    with pytest.raises(ContentDamaged):
        blobs.get(conn, digest_of(b"true"))
    assert len(list(blobs.check(conn))) == 1


def test_only_its_owner_reads_an_artifact(conn: Connection) -> None:
    kept = an_artifact(b"0123456789")
    artifacts.add(conn, kept, pack(b"0123456789"))
    assert artifacts.read(conn, kept.artifact_id, ANA, start=2, length=3) == (kept, b"234")
    for artifact_id, who in ((kept.artifact_id, BEN), (an_id(9), ANA)):
        with pytest.raises(ArtifactNotFound):
            artifacts.read(conn, artifact_id, who, start=0, length=1)


def test_only_its_owner_gets_a_checkpoint(conn: Connection) -> None:
    kept = keep(conn, a_checkpoint())
    assert file_checkpoints.get(conn, kept.checkpoint_id, ANA) == kept
    assert file_checkpoints.content(conn, kept) == b"old"
    with pytest.raises(FileCheckpointNotFound):
        file_checkpoints.get(conn, kept.checkpoint_id, BEN)
    assert file_checkpoints.page(conn, BEN, limit=9) == []


def test_a_file_that_was_not_there_is_a_checkpoint_too(conn: Connection) -> None:
    kept = keep(conn, a_checkpoint(None), None)
    assert file_checkpoints.content(conn, file_checkpoints.get(conn, kept.checkpoint_id, ANA)) is None


def test_checkpoints_are_listed_latest_first_by_file_and_by_session(conn: Connection) -> None:
    first, second = keep(conn, a_checkpoint(place=1)), keep(conn, a_checkpoint(place=2, path="/ws/b"))
    third = keep(conn, msgspec.structs.replace(a_checkpoint(place=3), session_id=a_session_id(2)))
    assert file_checkpoints.page(conn, ANA, limit=9) == [third, second, first]
    assert file_checkpoints.page(conn, ANA, limit=1, before=third.checkpoint_id) == [second]
    assert file_checkpoints.page(conn, ANA, path=first.path, limit=9) == [third, first]
    assert file_checkpoints.page(conn, ANA, path=first.path, session_id=a_session_id(2), limit=9) == [third]
    assert file_checkpoints.of_call(conn, a_run_id(), CallId("c1")) == [first, second, third]


def test_content_goes_when_nothing_names_it_any_more(conn: Connection) -> None:
    artifacts.add(conn, an_artifact(b"old"), pack(b"old"))
    keep(conn, a_checkpoint())
    later = to_ms(AT + timedelta(days=1))
    assert not blobs.sweep(conn, now_ms=later)
    assert artifacts.remove(conn, a_session_id(), limit=10) == 1
    assert not blobs.sweep(conn, now_ms=later)
    assert file_checkpoints.remove(conn, a_session_id(), limit=10) == 1
    # Whoever stored it last may be about to name it.
    assert not blobs.sweep(conn, now_ms=NOW_MS + UNREFERENCED_GRACE_MS)
    assert blobs.sweep(conn, now_ms=later)
    assert (count(conn, "blobs"), count(conn, "blob_parts")) == (0, 0)
