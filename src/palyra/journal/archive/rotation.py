"""Rotation: moves the tapes of sessions that were archived long ago to files; the chain can still be verified.

A tape is first exported, and the file verified; then one unit records where it went and removes the session from the
lists, so that nothing can be added to it any more; then its rows are deleted in slices, from the end of the tape
backwards, so that the remaining entries are always a valid beginning. The head is kept permanently, and with the
record and the anchors it proves the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from palyra.core.clock import to_ms
from palyra.core.errors import Internal
from palyra.core.ids import SessionId
from palyra.journal import tape
from palyra.journal.archive.backup import digest_of
from palyra.journal.atomic_file import atomic_file, explain_write_errors
from palyra.journal.content import artifacts, file_checkpoints, images
from palyra.journal.engines.base import Connection
from palyra.journal.engines.tape_head import TapeHead
from palyra.journal.proof import export
from palyra.journal.proof.export_proof import verify_file
from palyra.journal.stores import rotated_tapes
from palyra.journal.stores.rotated_tapes import ARCHIVE, RotatedTape
from palyra.journal.vault import sealed_secrets

SLICE = 500

_AT_REST = (
    "NOT EXISTS (SELECT 1 FROM runs r WHERE r.session_id = s.session_id AND r.ended_ms IS NULL)"
    # The usage of an open call for embeddings is still to be written to the tape.
    " AND NOT EXISTS (SELECT 1 FROM usage u WHERE u.session_id = s.session_id"
    " AND u.cause = 'embeddings' AND u.state = 'reserved')"
)


class ArchiveInvalid(Internal):
    """The export of a tape could not be verified, so the tape was not moved. `palyra journal verify` says why."""


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A row of the search index on SQLite, where only the row number finds it quickly."""

    row: int
    tape_seq: int


def due(conn: Connection, *, before_ms: int, after: str, limit: int) -> list[SessionId]:
    """Return sessions to rotate, by id: archived before a time, or children of one that is rotated.

    Only idle sessions are due: no run and no call for embeddings is open, and an anchor covers the whole tape.
    """
    rows = conn.fetch(
        "SELECT s.session_id FROM sessions s JOIN heads h ON h.session_id = s.session_id"
        " JOIN anchored a ON a.session_id = s.session_id AND a.tape_seq = h.tape_seq"
        " WHERE s.session_id > :after AND (s.archived_ms < :before_ms"
        " OR EXISTS (SELECT 1 FROM rotated p WHERE p.session_id = s.parent_session_id))"
        f" AND {_AT_REST} ORDER BY s.session_id LIMIT :limit",
        {"after": after, "before_ms": before_ms, "limit": limit},
    )
    return [SessionId(row[0]) for row in rows]


def write_archive(conn: Connection, session_id: SessionId, *, folder: Path, at: datetime) -> RotatedTape:
    """Write the tape to a file below the folder and verify it; the journal is not changed."""
    file = f"{ARCHIVE}/{at:%Y}/{session_id}.ndjson"
    path = folder / file
    with explain_write_errors(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Only the daemon of this home writes here, so these are left from an export that was killed.
        for unfinished in path.parent.glob(f".{path.name}.*.new"):
            unfinished.unlink()
    with atomic_file(path, replace=True) as out:
        export.write(conn, out.write, made_at=at, session_id=session_id)
    proof = verify_file(path)
    head = proof.heads.get(session_id)
    if head is None or not proof.report.ok:
        raise ArchiveInvalid
    return RotatedTape(head.tape_seq, head.hash, file, digest_of(path), to_ms(at))


def detach_session(conn: Connection, session_id: SessionId, record: RotatedTape) -> bool:
    """Record where the tape went and remove the session from the lists; False if it has changed since."""
    if tape.lock(conn, session_id) != TapeHead(record.tape_seq, record.hash):
        return False
    removed = conn.execute(
        "DELETE FROM sessions WHERE session_id = :session_id AND session_id IN (SELECT s.session_id FROM sessions s"
        f" WHERE s.session_id = :session_id AND (s.archived_ms IS NOT NULL OR s.parent_session_id IS NOT NULL)"
        f" AND {_AT_REST})",
        {"session_id": session_id},
    )
    if removed == 0:
        return False
    rotated_tapes.add(conn, session_id, record)
    return True


def unfinished(conn: Connection) -> list[SessionId]:
    """Return the detached sessions that still have rows to delete."""
    rows = conn.fetch(
        "SELECT r.session_id FROM rotated r WHERE EXISTS (SELECT 1 FROM tape t WHERE t.session_id = r.session_id)"
        " ORDER BY r.session_id"
    )
    return [SessionId(row[0]) for row in rows]


def index_rows_of(conn: Connection, session_id: SessionId) -> list[IndexRow]:
    """Find the session's rows in the search index on SQLite; this scans all of it."""
    if conn.dialect.name != "sqlite":
        return []
    rows = conn.fetch("SELECT rowid, tape_seq FROM message_words WHERE session_id = :s", {"s": session_id})
    return [IndexRow(row[0], row[1]) for row in rows]


def remove_slice(conn: Connection, session_id: SessionId, words: Sequence[IndexRow]) -> bool:
    """Delete the next slice of a detached session; False if nothing was left. The tape is deleted last."""
    params = {"session_id": session_id, "slice": SLICE}
    top = conn.fetch_one("SELECT MAX(tape_seq) FROM messages WHERE session_id = :session_id", params)
    if top is not None and top[0] is not None:
        _remove_messages(conn, session_id, words, above=top[0] - SLICE)
        return True
    if any(
        noun.remove(conn, session_id, limit=SLICE) for noun in (artifacts, file_checkpoints, images, sealed_secrets)
    ):
        return True
    if conn.execute(
        "DELETE FROM runs WHERE run_id IN (SELECT run_id FROM runs WHERE session_id = :session_id LIMIT :slice)", params
    ):
        return True
    removed = conn.execute(
        "DELETE FROM tape WHERE session_id = :session_id AND tape_seq >"
        " (SELECT MAX(tape_seq) FROM tape WHERE session_id = :session_id) - :slice",
        params,
    )
    return removed > 0


def _remove_messages(conn: Connection, session_id: SessionId, words: Sequence[IndexRow], *, above: int) -> None:
    params = {"session_id": session_id, "above": above}
    conn.execute("DELETE FROM messages WHERE session_id = :session_id AND tape_seq > :above", params)
    if conn.dialect.name == "sqlite":
        values = [{"row": word.row} for word in words if word.tape_seq > above]
        if values:
            conn.execute_many("DELETE FROM message_words WHERE rowid = :row", values)
    else:
        conn.execute("DELETE FROM message_words WHERE session_id = :session_id AND tape_seq > :above", params)
