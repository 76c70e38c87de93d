"""Rotation: the tapes of sessions that were archived long ago move to files, and the chain stays provable.

A tape is first exported, and the file proved; then one unit records where it went and takes the session out of the
lists, so that nothing can be added to it any more; then its rows are removed in slices, from the end of the tape
backwards, so that what is left of it at any moment is a beginning that holds. The head stays for ever, and with the
record and the anchors it proves the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from palyra.core.clock import to_ms
from palyra.core.errors import Broken
from palyra.core.ids import SessionId
from palyra.journal import artifacts, checkpoints, export, pictures, rotated, sealed, tape
from palyra.journal.backup import digest_of
from palyra.journal.engine import Connection
from palyra.journal.exported import verify_file
from palyra.journal.head import Head
from palyra.journal.rotated import ARCHIVE, Rotated
from palyra.journal.whole import whole_file, written

SLICE = 500

_AT_REST = (
    "NOT EXISTS (SELECT 1 FROM runs r WHERE r.session_id = s.session_id AND r.ended_ms IS NULL)"
    # What a call for embeddings took is yet to be written to the tape.
    " AND NOT EXISTS (SELECT 1 FROM usage u WHERE u.session_id = s.session_id"
    " AND u.cause = 'embeddings' AND u.state = 'reserved')"
)


class ArchiveUnproved(Broken):
    """The export of a tape does not hold, so the tape stays where it is. `palyra journal verify` says why."""


@dataclass(frozen=True, slots=True)
class Word:
    """A row of the search index on SQLite, where only its number finds it quickly."""

    row: int
    tape_seq: int


def due(conn: Connection, *, before_ms: int, after: str, limit: int) -> list[SessionId]:
    """Return sessions to rotate, by id: archived before a time, or children of one that is rotated.

    Only what has come to rest is due: no run is open and no call for embeddings, and an anchor covers the whole tape.
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


def put_into_archive(conn: Connection, session_id: SessionId, *, folder: Path, at: datetime) -> Rotated:
    """Write the tape to a file below the folder and prove it; the journal is as it was."""
    file = f"{ARCHIVE}/{at:%Y}/{session_id}.ndjson"
    path = folder / file
    with written(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Only the daemon of this home writes here, so that these are of an export that was killed.
        for unfinished in path.parent.glob(f".{path.name}.*.new"):
            unfinished.unlink()
    with whole_file(path, replace=True) as out:
        export.write(conn, out.write, made_at=at, session_id=session_id)
    proof = verify_file(path)
    head = proof.heads.get(session_id)
    if head is None or not proof.report.ok:
        raise ArchiveUnproved
    return Rotated(head.tape_seq, head.hash, file, digest_of(path), to_ms(at))


def take_out(conn: Connection, session_id: SessionId, record: Rotated) -> bool:
    """Record where the tape went and take the session out of the lists; False if it has moved on since."""
    if tape.lock(conn, session_id) != Head(record.tape_seq, record.hash):
        return False
    gone = conn.execute(
        "DELETE FROM sessions WHERE session_id = :session_id AND session_id IN (SELECT s.session_id FROM sessions s"
        f" WHERE s.session_id = :session_id AND (s.archived_ms IS NOT NULL OR s.parent_session_id IS NOT NULL)"
        f" AND {_AT_REST})",
        {"session_id": session_id},
    )
    if gone == 0:
        return False
    rotated.add(conn, session_id, record)
    return True


def unfinished(conn: Connection) -> list[SessionId]:
    """Return the sessions that are taken out, and still have rows to remove."""
    rows = conn.fetch(
        "SELECT r.session_id FROM rotated r WHERE EXISTS (SELECT 1 FROM tape t WHERE t.session_id = r.session_id)"
        " ORDER BY r.session_id"
    )
    return [SessionId(row[0]) for row in rows]


def words_of(conn: Connection, session_id: SessionId) -> list[Word]:
    """Find the session's rows in the search index, where that takes a walk through all of it."""
    if conn.dialect.name != "sqlite":
        return []
    rows = conn.fetch("SELECT rowid, tape_seq FROM message_words WHERE session_id = :s", {"s": session_id})
    return [Word(row[0], row[1]) for row in rows]


def remove_slice(conn: Connection, session_id: SessionId, words: Sequence[Word]) -> bool:
    """Remove the next slice of a session that is taken out; False if nothing was left. The tape goes last."""
    params = {"session_id": session_id, "slice": SLICE}
    top = conn.fetch_one("SELECT MAX(tape_seq) FROM messages WHERE session_id = :session_id", params)
    if top is not None and top[0] is not None:
        _remove_messages(conn, session_id, words, above=top[0] - SLICE)
        return True
    if any(noun.remove(conn, session_id, limit=SLICE) for noun in (artifacts, checkpoints, pictures, sealed)):
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


def _remove_messages(conn: Connection, session_id: SessionId, words: Sequence[Word], *, above: int) -> None:
    params = {"session_id": session_id, "above": above}
    conn.execute("DELETE FROM messages WHERE session_id = :session_id AND tape_seq > :above", params)
    if conn.dialect.name == "sqlite":
        found = [{"row": word.row} for word in words if word.tape_seq > above]
        if found:
            conn.execute_many("DELETE FROM message_words WHERE rowid = :row", found)
    else:
        conn.execute("DELETE FROM message_words WHERE session_id = :session_id AND tape_seq > :above", params)
