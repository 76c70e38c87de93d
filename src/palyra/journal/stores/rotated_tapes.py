"""Rotated tapes as rows: the file that has the entries of a session, and the end of its tape."""

from dataclasses import dataclass

from palyra.core.ids import SessionId
from palyra.journal import migrate
from palyra.journal.engines.base import Connection

ARCHIVE = "archive"
"""The folder of the home that the tapes are moved to."""
FIRST_SCHEMA = 3


@dataclass(frozen=True, slots=True)
class RotatedTape:
    """A tape that is in a file of the archive instead of the journal."""

    tape_seq: int
    hash: str
    file: str
    """The export that holds the entries, below the home folder."""
    sha256: str
    at_ms: int


def all_of(conn: Connection) -> dict[SessionId, RotatedTape]:
    """Return the record of each session whose tape was rotated; a journal of an early schema has none."""
    if migrate.current(conn) < FIRST_SCHEMA:
        return {}
    # Sorted here: SQLite would take the order, and with it the ids, from an index and not from the rows.
    rows = conn.fetch("SELECT session_id, tape_seq, hash, file, sha256, at_ms FROM rotated")
    return {SessionId(row[0]): RotatedTape(*row[1:]) for row in sorted(rows, key=lambda row: str(row[0]))}


def add(conn: Connection, session_id: SessionId, record: RotatedTape) -> None:
    """Record that a tape was rotated."""
    conn.execute(
        "INSERT INTO rotated (session_id, tape_seq, hash, file, sha256, at_ms)"
        " VALUES (:session_id, :tape_seq, :hash, :file, :sha256, :at_ms)",
        {
            "session_id": session_id,
            "tape_seq": record.tape_seq,
            "hash": record.hash,
            "file": record.file,
            "sha256": record.sha256,
            "at_ms": record.at_ms,
        },
    )
