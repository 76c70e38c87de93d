"""Exports: the journal as lines of JSON that can be verified without the journal.

The lines of an export, in order: a header; every anchor; each session, followed by its entries with all that the
chain covers; the sessions whose tapes were moved to the archive; a footer with counts and a digest of all lines
before it. The anchors come first, so that one pass verifies a file of any length. All of them are there even in an
export of one session or of new entries: they contain hashes only, and they prove where a part begins.
"""

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator
from datetime import datetime
from itertools import chain

import msgspec
from msgspec import Struct

from palyra.core.errors import Conflict
from palyra.core.ids import SessionId
from palyra.core.session import SessionNotFound
from palyra.core.version import VERSION
from palyra.journal.engines.base import Connection
from palyra.journal.engines.tape_head import TapeHead
from palyra.journal.proof import anchors
from palyra.journal.proof.anchors import Anchor, decode_body
from palyra.journal.proof.journal_proof import entries_of
from palyra.journal.stores import meta, rotated_tapes
from palyra.journal.stores.rotated_tapes import RotatedTape
from palyra.journal.tape import GENESIS

FORMAT = 1
SLICE = 500

_encoder = msgspec.json.Encoder()


class SessionRotated(Conflict):
    """The tape of this session was moved to the archive."""


class AnchorMismatch(Conflict):
    """The anchor does not belong to this journal: the journal was rolled back or rewritten, or the anchor is of another
    one.
    """


class ExportLine(Struct, frozen=True, kw_only=True, tag_field="line"):
    """The base of all lines: a tag for the kind."""


class ExportHeader(ExportLine, frozen=True, kw_only=True, tag="header"):
    """Which journal was exported, and which part of it."""

    format: int
    version: str
    journal_ids: tuple[str, ...]
    """Every id that the journal has had, the present one last."""
    public_key: str | None
    made_at: datetime
    session_id: SessionId | None = None
    """The one session of the export, None for all."""
    since: int | None = None
    """The anchor after which the export begins, None for complete tapes."""


class ExportedAnchor(ExportLine, frozen=True, kw_only=True, tag="anchor"):
    """One anchor."""

    anchor: Anchor


class ExportedSession(ExportLine, frozen=True, kw_only=True, tag="session"):
    """A tape: the head before its first entry here, and its end."""

    session_id: SessionId
    after_seq: int
    before: str
    tape_seq: int
    hash: str


class ExportedEntry(ExportLine, frozen=True, kw_only=True, tag="entry"):
    """One entry, with all that its hash covers."""

    session_id: SessionId
    tape_seq: int
    run_id: str | None
    run_seq: int
    kind: str
    at_ms: int
    content: str
    salt: str
    hash: str


class ExportedRotation(ExportLine, frozen=True, kw_only=True, tag="rotated"):
    """A tape that is not here, since it was moved to the archive earlier."""

    session_id: SessionId
    tape_seq: int
    hash: str
    file: str
    sha256: str


class ExportFooter(ExportLine, frozen=True, kw_only=True, tag="footer"):
    """The end: an export without it is truncated."""

    sessions: int
    entries: int
    anchors: int
    rotated: int
    sha256: str
    """The digest of all lines before this one."""


AnyLine = ExportHeader | ExportedAnchor | ExportedSession | ExportedEntry | ExportedRotation | ExportFooter


def write(
    conn: Connection,
    out: Callable[[bytes], object],
    *,
    made_at: datetime,
    session_id: SessionId | None = None,
    since: Anchor | None = None,
) -> ExportFooter:
    """Write an export of the connection's snapshot, slice by slice, and return its footer."""
    walk = lines(conn, made_at=made_at, session_id=session_id, since=since)
    while True:
        try:
            data = next(walk)
        except StopIteration as end:
            footer: ExportFooter = end.value
            return footer
        out(data)


def lines(
    conn: Connection, *, made_at: datetime, session_id: SessionId | None = None, since: Anchor | None = None
) -> Generator[bytes, None, ExportFooter]:
    """Yield the lines of an export, read slice by slice, and return the footer; an invalid request raises at once."""
    tape_heads = _ends_at(conn, since) if since is not None else {}
    moved = rotated_tapes.all_of(conn)
    if session_id in moved:
        raise SessionRotated(
            f"The tape of session {session_id} was moved to {moved[session_id].file} in the home folder."
        )
    heads = _one(conn, session_id) if session_id is not None else _heads(conn)
    digest = hashlib.sha256()
    counts = {"anchor": 0, "session": 0, "entry": 0, "rotated": 0}
    header = ExportHeader(
        format=FORMAT,
        version=VERSION,
        journal_ids=meta.journal_ids(conn),
        public_key=meta.get(conn, "public_key"),
        made_at=made_at,
        session_id=session_id,
        since=since.number if since is not None else None,
    )
    tapes = _tapes(conn, heads, tape_heads=tape_heads, moved=moved)
    away = _moved_away(moved) if session_id is None else ()
    for line in chain([header], _anchors(conn), tapes, away):
        data = _encoder.encode(line) + b"\n"
        digest.update(data)
        tag = line.__struct_config__.tag
        if tag in counts:
            counts[tag] += 1
        yield data
    footer = ExportFooter(
        sessions=counts["session"],
        entries=counts["entry"],
        anchors=counts["anchor"],
        rotated=counts["rotated"],
        sha256=digest.hexdigest(),
    )
    yield _encoder.encode(footer) + b"\n"
    return footer


def _anchors(conn: Connection) -> Iterator[AnyLine]:
    number = 0
    while page := anchors.after(conn, number, limit=SLICE):
        for anchor in page:
            yield ExportedAnchor(anchor=anchor)
        number = page[-1].number


def _tapes(
    conn: Connection,
    heads: Iterable[tuple[SessionId, TapeHead]],
    *,
    tape_heads: dict[SessionId, TapeHead],
    moved: dict[SessionId, RotatedTape],
) -> Iterator[AnyLine]:
    for owner, head in heads:
        start = tape_heads.get(owner, TapeHead(0, GENESIS))
        if owner not in moved and head.tape_seq > start.tape_seq:
            yield from _tape(conn, owner, start=start, head=head)


def _moved_away(moved: dict[SessionId, RotatedTape]) -> Iterator[AnyLine]:
    for owner, record in moved.items():
        yield ExportedRotation(
            session_id=owner,
            tape_seq=record.tape_seq,
            hash=record.hash,
            file=record.file,
            sha256=record.sha256,
        )


def _tape(conn: Connection, session_id: SessionId, *, start: TapeHead, head: TapeHead) -> Iterator[AnyLine]:
    yield ExportedSession(
        session_id=session_id,
        after_seq=start.tape_seq,
        before=start.hash,
        tape_seq=head.tape_seq,
        hash=head.hash,
    )
    for entry, salt, stored in entries_of(conn, session_id, after_seq=start.tape_seq or None):
        yield ExportedEntry(
            session_id=entry.session_id,
            tape_seq=entry.tape_seq,
            run_id=entry.run_id,
            run_seq=entry.run_seq,
            kind=entry.kind,
            at_ms=entry.at_ms,
            content=entry.content,
            salt=salt,
            hash=stored,
        )


def _one(conn: Connection, session_id: SessionId) -> list[tuple[SessionId, TapeHead]]:
    row = conn.fetch_one("SELECT tape_seq, hash FROM heads WHERE session_id = :session_id", {"session_id": session_id})
    if row is None:
        raise SessionNotFound(f"The journal has no session {session_id}.")
    return [(session_id, TapeHead(row[0], row[1]))]


def _heads(conn: Connection) -> Iterator[tuple[SessionId, TapeHead]]:
    after = ""
    while rows := conn.fetch(
        "SELECT session_id, tape_seq, hash FROM heads WHERE session_id > :after ORDER BY session_id LIMIT :slice",
        {"after": after, "slice": SLICE},
    ):
        for row in rows:
            yield SessionId(row[0]), TapeHead(row[1], row[2])
        after = rows[-1][0]


def _ends_at(conn: Connection, since: Anchor) -> dict[SessionId, TapeHead]:
    """Return the end of each tape at an anchor: the last one in the anchors up to it."""
    ends: dict[SessionId, TapeHead] = {}
    number = 0
    while page := anchors.after(conn, number, limit=SLICE):
        for anchor in page:
            number = anchor.number
            for session_id, seq, digest in decode_body(anchor.body).tapes:
                ends[SessionId(session_id)] = TapeHead(seq, digest)
            if number == since.number:
                if anchor != since:
                    raise AnchorMismatch
                return ends
    raise AnchorMismatch
