"""Verifies the tapes and anchors of a journal, as its database has them."""

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from palyra.core.events import Entry
from palyra.core.ids import SessionId
from palyra.home import Home
from palyra.journal.content import artifacts
from palyra.journal.engines.base import Connection, Row
from palyra.journal.engines.tape_head import TapeHead
from palyra.journal.proof import anchors, untrusted_rows
from palyra.journal.proof.anchors import Anchor, decode_body
from palyra.journal.proof.attestation_proof import FullResultOf
from palyra.journal.proof.signing_key import is_signed
from palyra.journal.proof.tape_proof import (
    NOTHING_BEFORE,
    TAPE_GONE,
    AnchorWalk,
    Chained,
    ProofProblem,
    ProofReport,
    TapeSource,
    prove,
)
from palyra.journal.proof.untrusted_rows import UnreadableRow
from palyra.journal.snapshot import open_snapshot
from palyra.journal.stores import meta, rotated_tapes
from palyra.settings import Settings

ENTRY = (int, (str, type(None)), int, str, int, str, str, str)
ANCHOR = (int, int, str, str, str)
MAX_ENDS = 100


def latest_anchor(home: Home, settings: Settings) -> Anchor | None:
    """Return the journal's last anchor, to be kept elsewhere."""
    with open_snapshot(home, settings) as conn:
        return anchors.latest(conn)


def verify(conn: Connection, *, saved: Anchor | None = None, key: str | None = None) -> ProofReport:
    """Verify every tape and every anchor of the journal; `key` must have signed the anchors."""
    return prove(_DatabaseSource(conn, key=key), saved=saved)


def check_ends(conn: Connection, *, key: str) -> list[ProofProblem]:
    """Check the last anchor, and the tapes it names at the entry it names and at their ends, up to `MAX_ENDS` tapes."""
    anchor = anchors.latest(conn)
    if anchor is None:
        return []
    altered = anchor.hash != anchors.body_hash(anchor.body)
    if altered or anchor.public_key != key or not is_signed(key, anchor.body.encode(), anchor.signature):
        what = "was altered" if altered else "is not signed by this journal's key"
        return [ProofProblem(None, None, f"anchor {anchor.number} {what}")]
    moved = rotated_tapes.all_of(conn)
    named = [tape for tape in decode_body(anchor.body).tapes if tape[0] not in moved][:MAX_ENDS]
    checked = (_check_end(conn, SessionId(session_id), seq, digest) for session_id, seq, digest in named)
    return [problem for problem in checked if problem is not None]


def _check_end(conn: Connection, session_id: SessionId, seq: int, digest: str) -> ProofProblem | None:
    row = conn.fetch_one(
        "SELECT h.tape_seq, h.hash, a.hash, e.hash FROM heads h"
        " LEFT JOIN tape a ON a.session_id = h.session_id AND a.tape_seq = :seq"
        " LEFT JOIN tape e ON e.session_id = h.session_id AND e.tape_seq = h.tape_seq"
        " WHERE h.session_id = :session_id",
        {"session_id": session_id, "seq": seq},
    )
    if row is None:
        return ProofProblem(session_id, 1, TAPE_GONE)
    end, head, anchored, last = row
    if end < seq:
        return ProofProblem(session_id, end, "the tape was cut off here: an anchor lists later entries")
    if anchored is None:
        return ProofProblem(session_id, seq, "an entry is missing here")
    if anchored != digest:
        return ProofProblem(session_id, seq, "the chain was rewritten: an anchor lists a different entry here")
    if last != head:
        return ProofProblem(session_id, end, "the head does not match the last entry")
    return None


def entries_of(conn: Connection, session_id: str, *, after_seq: int | None = None) -> Iterator[Chained]:
    """Yield a session's entries in order with their salts and hashes, read in slices."""
    columns = "tape_seq, run_id, run_seq, kind, at_ms, content, salt, hash"
    owner = SessionId(session_id)
    for row in untrusted_rows.read_rows(
        conn, "tape", columns, types=ENTRY, owner=("session_id", owner), after=after_seq
    ):
        if isinstance(row, UnreadableRow):
            # The replacement matches no hash.
            seq = row.key if isinstance(row.key, int) else -1
            yield Entry(owner, seq, None, 0, "", 0, ""), "", ""
        else:
            yield Entry(owner, *row[:6]), row[6], row[7]


class _DatabaseSource:
    """The tapes and anchors of a journal, as its database has them."""

    def __init__(self, conn: Connection, *, key: str | None) -> None:
        self.problems: list[ProofProblem] = []
        self.full_result: FullResultOf | None = partial(artifacts.read_all, conn)
        self.journal_ids: Sequence[str] = _journal_ids(conn)
        self._conn = conn
        self._heads = dict(self._read_heads())
        self._rotated = rotated_tapes.all_of(conn)
        recorded = _fact(conn, "public_key")
        self.key = key or recorded
        if key is not None and recorded not in (None, key):
            what = "the journal names a different signing key than the one in its home"
            self.problems.append(ProofProblem(None, None, what))

    def _read_heads(self) -> Iterator[tuple[SessionId, TapeHead]]:
        for row in untrusted_rows.read_rows(self._conn, "heads", "session_id, tape_seq, hash", types=(str, int, str)):
            if isinstance(row, UnreadableRow):
                self.problems.append(ProofProblem(None, None, "the head of a tape cannot be read"))
            else:
                yield SessionId(row[0]), TapeHead(row[1], row[2])

    def anchors(self, walk: AnchorWalk) -> Iterator[Anchor]:
        columns = "number, at_ms, body, hash, signature"
        for row in untrusted_rows.read_rows(self._conn, "anchors", columns, types=ANCHOR):
            yield _anchor(row, number=walk.number + 1)

    def anchored(self) -> dict[str, int]:
        index = list(untrusted_rows.read_rows(self._conn, "anchored", "session_id, tape_seq", types=(str, int)))
        rows = [row for row in index if not isinstance(row, UnreadableRow)]
        return {row[0]: row[1] for row in rows} if len(rows) == len(index) else {}

    def tapes(self, walk: AnchorWalk) -> Iterator[TapeSource]:
        for result in untrusted_rows.session_ids(self._conn):
            if isinstance(result, UnreadableRow):
                self.problems.append(
                    ProofProblem(None, None, "the journal has entries of a session whose id is not text")
                )
            elif result not in self._rotated:
                yield self._tape(SessionId(result))
        yield from map(self._tape, self._rotated)

    def _tape(self, session_id: SessionId) -> TapeSource:
        chain, head = entries_of(self._conn, session_id), self._heads.get(session_id)
        return TapeSource(session_id, chain, head, rotated=self._rotated.get(session_id))

    def finish(self, walk: AnchorWalk, walked: set[SessionId], *, entries: int, rotated: int) -> None:
        for session_id, head in self._heads.items():
            if session_id not in walked and session_id not in self._rotated and head != NOTHING_BEFORE:
                self.problems.append(ProofProblem(session_id, 1, "the whole tape of this session was removed"))
        for session_id in walk.claims:
            if session_id not in walked and self._heads.get(session_id, NOTHING_BEFORE) == NOTHING_BEFORE:
                self.problems.append(ProofProblem(session_id, 1, TAPE_GONE))


def _anchor(row: Row | UnreadableRow, *, number: int) -> Anchor:
    """Return a stored anchor; an empty one if its row is not one that we write."""
    if not isinstance(row, UnreadableRow) and _at_ms(row[2]) in (None, row[1]):
        signed_by, _, signature = row[4].partition(":")
        return Anchor(number=row[0], body=row[2], hash=row[3], signature=signature, public_key=signed_by)
    return Anchor(number=number, body="", hash="", signature="", public_key="")


def _at_ms(body: str) -> int | None:
    try:
        return decode_body(body).at_ms
    except msgspec.DecodeError:
        return None


def _journal_ids(conn: Connection) -> tuple[str, ...]:
    try:
        return meta.journal_ids(conn)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()


def _fact(conn: Connection, name: str) -> str | None:
    try:
        return meta.get(conn, name)
    except UnicodeDecodeError:
        return ""
