"""Exports: the journal as lines of JSON that prove themselves, without any journal.

The lines of an export, in order: a header; every anchor; each session, followed by its entries with all that the
chain covers; the sessions whose tapes were moved to the archive; a footer with counts and a digest of all that
stands before it. The anchors come first, so that one pass proves a file of any length. All of them are there even in an
export of one session or of what is new: they name hashes only, and it is they that prove where a part begins.
"""

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator
from datetime import datetime
from itertools import chain

import msgspec
from msgspec import Struct

from palyra.core.errors import Conflict, NotFound
from palyra.core.ids import SessionId
from palyra.core.version import VERSION
from palyra.journal import anchors, meta, rotated
from palyra.journal.anchors import Anchor, AnchorBody
from palyra.journal.engine import Connection
from palyra.journal.head import Head
from palyra.journal.rotated import Rotated
from palyra.journal.tape import GENESIS
from palyra.journal.verify import entries_of

FORMAT = 1
SLICE = 500

_encoder = msgspec.json.Encoder()
_body = msgspec.json.Decoder(AnchorBody)


class TapeNotFound(NotFound):
    """There is no such session in the journal."""


class TapeRotated(Conflict):
    """The tape of this session was moved to the archive."""


class AnchorForeign(Conflict):
    """The anchor is not one of this journal's: it was rolled back, rewritten, or the anchor is of another."""


class Line(Struct, frozen=True, kw_only=True, tag_field="line"):
    """What all lines have: a name of their kind."""


class HeaderLine(Line, frozen=True, kw_only=True, tag="header"):
    """Which journal this is of, and which part of it."""

    format: int
    version: str
    journal_ids: tuple[str, ...]
    """Every id that the journal has had, the present one last."""
    public_key: str | None
    made_at: datetime
    session_id: SessionId | None = None
    """The one session of the export, None for all."""
    since: int | None = None
    """The anchor after which the export begins, None for the whole of each tape."""


class AnchorLine(Line, frozen=True, kw_only=True, tag="anchor"):
    """One anchor."""

    anchor: Anchor


class SessionLine(Line, frozen=True, kw_only=True, tag="session"):
    """A tape: what stands before its first entry here, and where it ends."""

    session_id: SessionId
    after_seq: int
    before: str
    tape_seq: int
    hash: str


class EntryLine(Line, frozen=True, kw_only=True, tag="entry"):
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


class RotatedLine(Line, frozen=True, kw_only=True, tag="rotated"):
    """A tape that is not here, since it was moved to the archive earlier."""

    session_id: SessionId
    tape_seq: int
    hash: str
    file: str
    sha256: str


class FooterLine(Line, frozen=True, kw_only=True, tag="footer"):
    """The end: without it an export is cut off."""

    sessions: int
    entries: int
    anchors: int
    rotated: int
    sha256: str
    """The digest of all lines before this one."""


AnyLine = HeaderLine | AnchorLine | SessionLine | EntryLine | RotatedLine | FooterLine


def write(
    conn: Connection,
    out: Callable[[bytes], object],
    *,
    made_at: datetime,
    session_id: SessionId | None = None,
    since: Anchor | None = None,
) -> FooterLine:
    """Write an export of what the connection's snapshot holds, slice by slice, and return its footer."""
    walk = lines(conn, made_at=made_at, session_id=session_id, since=since)
    while True:
        try:
            data = next(walk)
        except StopIteration as end:
            footer: FooterLine = end.value
            return footer
        out(data)


def lines(
    conn: Connection, *, made_at: datetime, session_id: SessionId | None = None, since: Anchor | None = None
) -> Generator[bytes, None, FooterLine]:
    """Yield the lines of an export, read slice by slice, and return the footer; what can't be had raises at once."""
    known = _ends_at(conn, since) if since is not None else {}
    moved = rotated.all_of(conn)
    if session_id in moved:
        raise TapeRotated(f"The tape of session {session_id} was moved to {moved[session_id].file} in the home folder.")
    heads = _one(conn, session_id) if session_id is not None else _heads(conn)
    digest = hashlib.sha256()
    counts = {"anchor": 0, "session": 0, "entry": 0, "rotated": 0}
    header = HeaderLine(
        format=FORMAT,
        version=VERSION,
        journal_ids=meta.journal_ids(conn),
        public_key=meta.get(conn, "public_key"),
        made_at=made_at,
        session_id=session_id,
        since=since.number if since is not None else None,
    )
    tapes = _tapes(conn, heads, known=known, moved=moved)
    away = _moved_away(moved) if session_id is None else ()
    for line in chain([header], _anchors(conn), tapes, away):
        data = _encoder.encode(line) + b"\n"
        digest.update(data)
        tag = line.__struct_config__.tag
        if tag in counts:
            counts[tag] += 1
        yield data
    footer = FooterLine(
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
            yield AnchorLine(anchor=anchor)
        number = page[-1].number


def _tapes(
    conn: Connection,
    heads: Iterable[tuple[SessionId, Head]],
    *,
    known: dict[SessionId, Head],
    moved: dict[SessionId, Rotated],
) -> Iterator[AnyLine]:
    for owner, head in heads:
        start = known.get(owner, Head(0, GENESIS))
        if owner not in moved and head.tape_seq > start.tape_seq:
            yield from _tape(conn, owner, start=start, head=head)


def _moved_away(moved: dict[SessionId, Rotated]) -> Iterator[AnyLine]:
    for owner, record in moved.items():
        yield RotatedLine(
            session_id=owner,
            tape_seq=record.tape_seq,
            hash=record.hash,
            file=record.file,
            sha256=record.sha256,
        )


def _tape(conn: Connection, session_id: SessionId, *, start: Head, head: Head) -> Iterator[AnyLine]:
    yield SessionLine(
        session_id=session_id,
        after_seq=start.tape_seq,
        before=start.hash,
        tape_seq=head.tape_seq,
        hash=head.hash,
    )
    for entry, salt, stored in entries_of(conn, session_id, after_seq=start.tape_seq or None):
        yield EntryLine(
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


def _one(conn: Connection, session_id: SessionId) -> list[tuple[SessionId, Head]]:
    row = conn.fetch_one("SELECT tape_seq, hash FROM heads WHERE session_id = :session_id", {"session_id": session_id})
    if row is None:
        raise TapeNotFound(f"There is no session {session_id} in the journal.")
    return [(session_id, Head(row[0], row[1]))]


def _heads(conn: Connection) -> Iterator[tuple[SessionId, Head]]:
    after = ""
    while rows := conn.fetch(
        "SELECT session_id, tape_seq, hash FROM heads WHERE session_id > :after ORDER BY session_id LIMIT :slice",
        {"after": after, "slice": SLICE},
    ):
        for row in rows:
            yield SessionId(row[0]), Head(row[1], row[2])
        after = rows[-1][0]


def _ends_at(conn: Connection, since: Anchor) -> dict[SessionId, Head]:
    """Return where each tape stood at an anchor: the last that the anchors up to it say of each."""
    ends: dict[SessionId, Head] = {}
    number = 0
    while page := anchors.after(conn, number, limit=SLICE):
        for anchor in page:
            number = anchor.number
            for session_id, seq, digest in _body.decode(anchor.body).tapes:
                ends[SessionId(session_id)] = Head(seq, digest)
            if number == since.number:
                if anchor != since:
                    raise AnchorForeign
                return ends
    raise AnchorForeign
