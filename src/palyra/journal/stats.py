"""Counts and sizes of the journal."""

from datetime import datetime
from pathlib import Path

from msgspec import Struct

from palyra.core.clock import from_ms
from palyra.home import Home
from palyra.journal import migrate
from palyra.journal.engines.base import Connection
from palyra.journal.proof import anchors
from palyra.journal.stores import meta, rotated_tapes


class Stats(Struct, frozen=True, kw_only=True):
    """The journal in numbers."""

    engine: str
    schema: int
    journal_id: str | None
    restored_from: str | None
    """The id of the journal that this one was restored from."""
    sessions: int
    archived: int
    rotated: int
    """Sessions whose tapes were moved to the archive."""
    runs: dict[str, int]
    """By status."""
    entries: int
    messages: int
    anchors: int
    bytes: int
    oldest: datetime | None
    newest: datetime | None


def gather(conn: Connection, home: Home) -> Stats:
    """Count what the journal holds."""
    last = anchors.latest(conn)
    (sessions,) = conn.fetch("SELECT COUNT(*), COUNT(archived_ms) FROM sessions")
    (entries,) = conn.fetch("SELECT COUNT(*), MIN(at_ms), MAX(at_ms) FROM tape")
    (messages,) = conn.fetch("SELECT COUNT(*) FROM messages")
    return Stats(
        engine=conn.dialect.name,
        schema=migrate.current(conn),
        journal_id=meta.get(conn, "journal_id"),
        restored_from=meta.get(conn, "restored_from"),
        sessions=sessions[0],
        archived=sessions[1],
        rotated=len(rotated_tapes.all_of(conn)),
        runs={row[0]: row[1] for row in conn.fetch("SELECT status, COUNT(*) FROM runs GROUP BY status ORDER BY 1")},
        entries=entries[0],
        messages=messages[0],
        anchors=last.number if last else 0,
        bytes=_size(conn, home.journal),
        oldest=_moment(entries[1]),
        newest=_moment(entries[2]),
    )


def _size(conn: Connection, journal: Path) -> int:
    if conn.dialect.name == "sqlite":
        files = (journal, journal.with_name(journal.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())
    names = ", ".join(f"'{name}'" for name in migrate.tables(conn))
    row = conn.fetch_one(
        "SELECT COALESCE(SUM(pg_total_relation_size(c.oid)), 0) FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE n.nspname = current_schema() AND c.relname IN ({names})"
    )
    return int(row[0]) if row else 0


def _moment(at_ms: int | None) -> datetime | None:
    return from_ms(at_ms) if at_ms is not None else None
