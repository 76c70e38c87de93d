"""Anchors: signed statements of how long each tape was, chained to one another.

A tape's own chain shows that nothing inside it was changed; it cannot show that its end was cut off, or that a whole
session was deleted, since the head could be rewritten with it. An anchor lists (session, sequence, hash) of the tapes
with new entries since the last one, names the hash of the anchor before it, and is signed. A copy of an anchor kept
elsewhere proves later that the journal has not been rolled back.
"""

import hashlib
from dataclasses import dataclass
from typing import Protocol

import msgspec
from msgspec import Struct

from palyra.core.errors import Invalid
from palyra.core.ids import SessionId
from palyra.journal.engines.base import Connection

GENESIS = "0" * 64
MAX_TAPES = 1_000
PAGE_BYTES = 1024 * 1024
SLICE_ANCHORS = 10

_encode = msgspec.json.Encoder()


class AnchorInvalid(Invalid):
    """The file does not contain an anchor. Give a file with the output of `palyra journal anchor`."""


class Signer(Protocol):
    """Signs bytes with the daemon's key."""

    def sign(self, data: bytes) -> str: ...

    @property
    def public_key(self) -> str: ...


class AnchorBody(Struct, frozen=True, kw_only=True):
    """The signed content of an anchor."""

    journal_id: str
    number: int
    at_ms: int
    before: str
    """The hash of the anchor before this one."""
    tapes: tuple[tuple[str, int, str], ...]
    """Session, sequence number and hash of the entry there."""


decode_body = msgspec.json.Decoder(AnchorBody).decode


class Anchor(Struct, frozen=True, kw_only=True):
    """An anchor as it is stored and printed: the body byte for byte as it was signed."""

    number: int
    body: str
    hash: str
    signature: str
    public_key: str


@dataclass(frozen=True, slots=True)
class MovedTape:
    """A tape that is longer than its last anchor says."""

    session_id: SessionId
    tape_seq: int
    hash: str


def read_anchor(data: bytes) -> Anchor:
    """Read an anchor that was printed earlier."""
    try:
        return msgspec.json.decode(data, type=Anchor)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AnchorInvalid from error


def moved_tapes(conn: Connection) -> list[MovedTape]:
    """Return tapes with new entries since their last anchor, as many as one anchor can list."""
    rows = conn.fetch(
        "SELECT h.session_id, h.tape_seq, h.hash FROM heads h LEFT JOIN anchored a ON a.session_id = h.session_id"
        " WHERE h.tape_seq > COALESCE(a.tape_seq, 0) LIMIT :most",
        {"most": MAX_TAPES},
    )
    return [MovedTape(SessionId(row[0]), row[1], row[2]) for row in rows]


def ends_of(conn: Connection, session_ids: list[SessionId]) -> list[MovedTape]:
    """Return the present ends of these tapes."""
    rows = [
        (session_id, conn.fetch_one("SELECT tape_seq, hash FROM heads WHERE session_id = :s", {"s": session_id}))
        for session_id in session_ids
    ]
    return [MovedTape(session_id, row[0], row[1]) for session_id, row in rows if row is not None]


def write_anchor(conn: Connection, tapes: list[MovedTape], *, journal_id: str, now_ms: int, signer: Signer) -> Anchor:
    """Write an anchor with the present ends of these tapes."""
    # Anchors are numbered: this row is locked until the new anchor is written.
    conn.fetch("SELECT value FROM meta WHERE name = 'journal_id'" + conn.dialect.for_update)
    last = latest(conn)
    number = last.number + 1 if last else 1
    body = _encode.encode(
        AnchorBody(
            journal_id=journal_id,
            number=number,
            at_ms=now_ms,
            before=last.hash if last else GENESIS,
            tapes=tuple((tape.session_id, tape.tape_seq, tape.hash) for tape in tapes),
        )
    ).decode()
    anchor = Anchor(
        number=number,
        body=body,
        hash=body_hash(body),
        signature=signer.sign(body.encode()),
        public_key=signer.public_key,
    )
    conn.execute(
        "INSERT INTO anchors (number, at_ms, body, hash, signature) VALUES (:number, :at_ms, :body, :hash, :signature)",
        {
            "number": number,
            "at_ms": now_ms,
            "body": body,
            "hash": anchor.hash,
            "signature": f"{anchor.public_key}:{anchor.signature}",
        },
    )
    conn.execute_many(
        "INSERT INTO anchored (session_id, tape_seq) VALUES (:session_id, :tape_seq)"
        " ON CONFLICT (session_id) DO UPDATE SET tape_seq = excluded.tape_seq",
        [{"session_id": tape.session_id, "tape_seq": tape.tape_seq} for tape in tapes],
    )
    return anchor


def latest(conn: Connection) -> Anchor | None:
    """Return the last anchor."""
    rows = conn.fetch("SELECT number, body, hash, signature FROM anchors ORDER BY number DESC LIMIT 1")
    return _anchor(rows[0]) if rows else None


def after(conn: Connection, number: int, *, limit: int) -> list[Anchor]:
    """Return the anchors that follow one, in order."""
    rows = conn.fetch(
        "SELECT number, body, hash, signature FROM anchors WHERE number > :number ORDER BY number LIMIT :limit",
        {"number": number, "limit": limit},
    )
    return [_anchor(row) for row in rows]


def get(conn: Connection, number: int) -> Anchor | None:
    """Return one anchor."""
    anchors = after(conn, number - 1, limit=1)
    return anchors[0] if anchors and anchors[0].number == number else None


def before(conn: Connection, number: int | None, *, limit: int) -> list[Anchor]:
    """Return the anchors before one, or the last of all, latest first: at most `limit`, and about 1 MiB."""
    anchors: list[Anchor] = []
    size = 0
    while len(anchors) < limit and size < PAGE_BYTES:
        requested = min(SLICE_ANCHORS, limit - len(anchors))
        location = " WHERE number < :number" if number is not None else ""
        rows = conn.fetch(
            f"SELECT number, body, hash, signature FROM anchors{location} ORDER BY number DESC LIMIT :limit",
            {"limit": requested} | ({"number": number} if number is not None else {}),
        )
        anchors += map(_anchor, rows)
        if len(rows) < requested:
            break
        number = anchors[-1].number
        size = sum(len(anchor.body) for anchor in anchors)
    return anchors


def body_hash(body: str) -> str:
    """Return the hash by which the next anchor names this one."""
    return hashlib.sha256(body.encode()).hexdigest()


def _anchor(row: tuple[int, str, str, str]) -> Anchor:
    key, _, signature = row[3].partition(":")
    return Anchor(number=row[0], body=row[1], hash=row[2], signature=signature, public_key=key)
