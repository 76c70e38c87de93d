"""The tape: each session's append-only, hash-chained log.

`tape_seq` counts a session's entries from 1 without gaps. An append locks the session's head row from the start of
its unit to its commit, so sequence order is commit order and a rollback leaves no gap.

An entry's hash covers the hash before it, its position, kind, time and run, and a digest of its salted content. The
salt keeps the digest from revealing a short content after that content is erased.
"""

import hashlib
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from palyra.core.clock import to_ms
from palyra.core.errors import OffsetBeyondEnd
from palyra.core.events import Entry, TapeEvent, encode, kind_of
from palyra.core.ids import RunId, SessionId
from palyra.core.upcast import CHANGED, stored_tags, upcast
from palyra.journal.engines.base import Connection, Row, TapeRow
from palyra.journal.engines.tape_head import TapeHead
from palyra.journal.salts import Salts

GENESIS = "0" * 64
PAGE_ENTRIES = 1_000
PAGE_BYTES = 2 * 1024 * 1024
SLICE_ENTRIES = 200

_COLUMNS = "session_id, tape_seq, run_id, run_seq, kind, at_ms, content"
_position = msgspec.json.Encoder().encode
_sha256 = hashlib.sha256
_salts = Salts()


class NewEntry(Struct, frozen=True):
    """An event to be appended: its run, and its position in the run."""

    run_id: RunId | None
    run_seq: int
    event: TapeEvent


def entry_hash(before: str, entry: Entry, salt: str) -> str:
    """Return the hash of an entry, from the hash of the entry before it."""
    at = (entry.session_id, entry.tape_seq, entry.run_id, entry.run_seq, entry.kind, entry.at_ms)
    return _sha256(_position((before, *at, _digest(salt, entry.content)))).hexdigest()


def _digest(salt: str, content: str) -> str:
    return _sha256((salt + content).encode()).hexdigest()


def begin(conn: Connection, session_id: SessionId) -> TapeHead:
    """Start the tape of a new session and lock its head."""
    conn.execute(
        "INSERT INTO heads (session_id, tape_seq, hash) VALUES (:session_id, 0, :hash)",
        {"session_id": session_id, "hash": GENESIS},
    )
    return TapeHead(0, GENESIS)


def lock(conn: Connection, session_id: SessionId) -> TapeHead | None:
    """Lock the head of the session's tape until the unit ends. A unit locks one head, and locks it first."""
    if (tape_head := conn.heads.get(session_id)) is not None:
        return tape_head
    row = conn.fetch_one(
        "SELECT tape_seq, hash FROM heads WHERE session_id = :session_id" + conn.dialect.for_update,
        {"session_id": session_id},
    )
    return TapeHead(row[0], row[1]) if row else None


def append(conn: Connection, session_id: SessionId, *, head: TapeHead, fresh: Sequence[NewEntry]) -> list[Entry]:
    """Append the events after the head, which the caller has locked, and notify the listeners."""
    entries: list[Entry] = []
    rows: list[TapeRow] = []
    seq, chain, new_salt = head.tape_seq, head.hash, _salts.new
    for item in fresh:
        seq += 1
        run_id, run_seq, event = item.run_id, item.run_seq, item.event
        kind, at_ms, content, salt = kind_of(event), to_ms(event.at), encode(event), new_salt()
        # The same as `entry_hash`, without taking an entry apart again: this runs for every entry that is written.
        position = (chain, session_id, seq, run_id, run_seq, kind, at_ms, _digest(salt, content))
        chain = _sha256(_position(position)).hexdigest()
        entries.append(Entry(session_id, seq, run_id, run_seq, kind, at_ms, content))
        rows.append((session_id, seq, run_id, run_seq, kind, at_ms, content, salt, chain))
    if entries:
        conn.append(entries, rows, head=TapeHead(seq, chain))
    return entries


def end(conn: Connection, session_id: SessionId) -> int:
    """Return the last sequence number of the session's tape, 0 if it has none."""
    row = conn.fetch_one("SELECT tape_seq FROM heads WHERE session_id = :session_id", {"session_id": session_id})
    return row[0] if row else 0


def ends(conn: Connection, session_ids: Sequence[SessionId]) -> dict[SessionId, int]:
    """Return the last sequence numbers of several tapes."""
    names = [f"s{index}" for index in range(len(session_ids))]
    if not names:
        return {}
    listed = ", ".join(f":{name}" for name in names)
    rows = conn.fetch(
        f"SELECT session_id, tape_seq FROM heads WHERE session_id IN ({listed})",
        dict(zip(names, session_ids, strict=True)),
    )
    return {SessionId(row[0]): row[1] for row in rows}


def page(conn: Connection, session_id: SessionId, *, after_seq: int, limit: int = PAGE_ENTRIES) -> list[Entry]:
    """Return the session's entries after a position: at most `limit`, and about 2 MiB."""
    sql = (
        f"SELECT {_COLUMNS} FROM tape WHERE session_id = :owner AND tape_seq > :after_seq"
        " ORDER BY tape_seq LIMIT :limit"
    )
    return _page(conn, sql, session_id, after_seq=after_seq, limit=limit)


def page_of_run(conn: Connection, run_id: RunId, *, after_seq: int, limit: int = PAGE_ENTRIES) -> list[Entry]:
    """Return the run's entries after a position of its session's tape: at most `limit`, and about 2 MiB."""
    sql = f"SELECT {_COLUMNS} FROM tape WHERE run_id = :owner AND tape_seq > :after_seq ORDER BY tape_seq LIMIT :limit"
    return _page(conn, sql, run_id, after_seq=after_seq, limit=limit)


def of_run(conn: Connection, run_id: RunId, *, after_run_seq: int = 0) -> list[Entry]:
    """Return all entries of a run after one of its own sequence numbers; a run is bounded by its limits."""
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM tape WHERE run_id = :run_id AND run_seq > :after ORDER BY tape_seq",
        {"run_id": run_id, "after": after_run_seq},
    )
    return [_entry(row) for row in rows]


def latest(conn: Connection, session_id: SessionId, kinds: Sequence[str], *, after_seq: int, limit: int) -> list[Entry]:
    """Return the latest entries of some kinds after a boundary, the latest first."""
    names = {f"k{index}": kind for index, kind in enumerate(stored_tags(kinds))}
    rows = conn.fetch(
        f"SELECT {_COLUMNS} FROM tape WHERE session_id = :session_id AND tape_seq > :after_seq"
        f" AND kind IN ({', '.join(f':{name}' for name in names)}) ORDER BY tape_seq DESC LIMIT :limit",
        {**names, "session_id": session_id, "after_seq": after_seq, "limit": limit},
    )
    return [_entry(row) for row in rows]


def since(conn: Connection, session_id: SessionId, kinds: Sequence[str], *, at_ms: int) -> Iterator[Entry]:
    """Yield the entries of some kinds since a time, in slices."""
    names = {f"k{index}": kind for index, kind in enumerate(stored_tags(kinds))}
    after = 0
    while rows := conn.fetch(
        f"SELECT {_COLUMNS} FROM tape WHERE session_id = :session_id AND tape_seq > :after AND at_ms >= :at_ms"
        f" AND kind IN ({', '.join(f':{name}' for name in names)}) ORDER BY tape_seq LIMIT :limit",
        {**names, "session_id": session_id, "after": after, "at_ms": at_ms, "limit": SLICE_ENTRIES},
    ):
        yield from map(_entry, rows)
        after = rows[-1][1]


def first_of_run(conn: Connection, run_id: RunId) -> Entry:
    """Return the first entry of a run."""
    row = conn.fetch_one(
        f"SELECT {_COLUMNS} FROM tape WHERE run_id = :run_id ORDER BY tape_seq LIMIT 1", {"run_id": run_id}
    )
    assert row is not None
    return _entry(row)


def check_position(after_seq: int, end_seq: int) -> None:
    """Raise `OffsetBeyondEnd` unless the position exists: 0 is before the first entry."""
    if after_seq < 0:
        raise OffsetBeyondEnd(f"after_seq is {after_seq}, but positions start at 0, the beginning of the tape.")
    if after_seq > end_seq:
        raise OffsetBeyondEnd(f"after_seq is {after_seq}, but the tape ends at {end_seq}. Use a position up to that.")


def _entry(row: Row) -> Entry:
    """Return a stored entry, with the names of today."""
    if row[4] not in CHANGED:
        return Entry(*row)
    session_id, tape_seq, run_id, run_seq, kind, at_ms, content = row
    kind, content = upcast(kind, content)
    return Entry(session_id, tape_seq, run_id, run_seq, kind, at_ms, content)


def _page(conn: Connection, sql: str, owner: str, *, after_seq: int, limit: int) -> list[Entry]:
    """Read in slices, so that a tape of very long entries is not read whole to return a part of it."""
    entries: list[Entry] = []
    room, size, after = min(limit, PAGE_ENTRIES), 0, after_seq
    while room > len(entries):
        requested = min(SLICE_ENTRIES, room - len(entries))
        rows = conn.fetch(sql, {"owner": owner, "after_seq": after, "limit": requested})
        for row in rows:
            # This runs for every entry that is read: a call for each would be a tenth of the cost.
            entry = Entry(*row) if row[4] not in CHANGED else _entry(row)
            size += len(entry.content.encode())
            if entries and size > PAGE_BYTES:
                return entries
            entries.append(entry)
            after = entry.tape_seq
        if len(rows) < requested:
            break
    return entries
