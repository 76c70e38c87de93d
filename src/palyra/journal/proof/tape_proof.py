"""Verifies the tapes: walks every chain and reports the first invalid entry of each.

One walk (`prove`) verifies both a journal and an export: a `ProofSource` gives it the entries (`_DatabaseSource`, and
`ExportSource` in `export_proof.py`).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from palyra.core.errors import Invalid, NotFound
from palyra.core.events import Entry
from palyra.core.ids import SessionId
from palyra.home import Home
from palyra.journal.content import artifacts
from palyra.journal.engines import sqlite
from palyra.journal.engines.base import Connection, Row
from palyra.journal.engines.tape_head import TapeHead
from palyra.journal.proof import anchors, untrusted_rows
from palyra.journal.proof.anchors import Anchor, AnchorBody
from palyra.journal.proof.attestation_proof import AttestationCounts, AttestationVerifier, FullResultOf
from palyra.journal.proof.signing_key import is_signed
from palyra.journal.proof.untrusted_rows import UnreadableRow
from palyra.journal.salts import SALT_BYTES
from palyra.journal.stores import meta, rotated_tapes
from palyra.journal.stores.rotated_tapes import RotatedTape
from palyra.journal.tape import GENESIS, entry_hash
from palyra.secret_references import secret_of
from palyra.settings import Settings

ENTRY = (int, (str, type(None)), int, str, int, str, str, str)
ANCHOR = (int, int, str, str, str)
MAX_ENDS = 100
TAPE_GONE = "an anchor names this session, but its tape is missing"

Chained = tuple[Entry, str, str]
"""An entry, its salt and its hash."""
NOTHING_BEFORE = TapeHead(0, GENESIS)

_body = msgspec.json.Decoder(AnchorBody)


class JournalNotFound(NotFound):
    """There is no journal here yet."""


class AnchorInvalid(Invalid):
    """The file does not contain an anchor. Give a file with the output of `palyra journal anchor`."""


@dataclass(frozen=True, slots=True)
class ProofProblem:
    """A problem: where it is, and what is wrong."""

    session_id: SessionId | None
    tape_seq: int | None
    what: str


@dataclass(frozen=True, slots=True)
class ProofReport:
    """How much was verified, and the problems."""

    sessions: int
    entries: int
    anchors: int
    after_anchor: int
    """Entries that no anchor covers yet: they could be cut off without a trace."""
    problems: tuple[ProofProblem, ...]
    rotated: int = 0
    """Sessions whose tapes were moved to an archive: only their ends are here."""
    attested: int = 0
    """Executions of tools that are attested."""
    unattested: int = 0
    """Executions from before there were attestations."""

    @property
    def ok(self) -> bool:
        return not self.problems


def latest_anchor(home: Home, settings: Settings) -> Anchor | None:
    """Return the journal's last anchor, to be kept elsewhere."""
    with open_snapshot(home, settings) as conn:
        return anchors.latest(conn)


def read_anchor(data: bytes) -> Anchor:
    """Read an anchor that was printed earlier."""
    try:
        return msgspec.json.decode(data, type=Anchor)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AnchorInvalid from error


@contextmanager
def open_snapshot(home: Home, settings: Settings) -> Iterator[Connection]:
    """Open the journal for reading only, in one snapshot."""
    if settings.journal.database_url is not None:
        # Imported here: the driver is an extra that a home on SQLite does not have.
        from palyra.journal.engines import postgres

        with postgres.open_snapshot(secret_of(settings.journal.database_url, base=home.path)) as database:
            yield database
        return
    if not home.journal.exists():
        raise JournalNotFound(f"There is no journal at {home.journal} yet. `palyra chat` starts one.")
    with sqlite.open_snapshot(home.journal) as file:
        yield file


class TapeSource(NamedTuple):
    """One tape: its entries after a known position, and its head."""

    session_id: SessionId
    chain: Iterator[Chained]
    head: TapeHead | None
    after: TapeHead = NOTHING_BEFORE
    rotated: RotatedTape | None = None
    """Where the tape was moved. The entries are those that were not deleted yet: its beginning."""


class SourceDamaged(Exception):
    """The source itself is damaged here: what follows cannot be trusted."""


class ProofSource(Protocol):
    """What a proof is made from. It is read once: the anchors first, then the tapes, each to its end."""

    problems: list[ProofProblem]
    """The problems so far; the source adds those that only it can find."""
    key: str | None
    """The key that must have signed everything."""
    journal_ids: Sequence[str]
    full_result: FullResultOf | None

    def anchors(self, walk: "AnchorWalk") -> Iterator[Anchor]:
        """Yield all anchors; `walk` takes each of them before the next is read."""
        ...

    def anchored(self) -> dict[str, int] | None:
        """Return how far the anchors cover each tape by an index of their own, None if there is none."""
        ...

    def tapes(self, walk: "AnchorWalk") -> Iterator[TapeSource]:
        """Yield all tapes, also those that were moved to the archive."""
        ...

    def finish(self, walk: "AnchorWalk", walked: set[SessionId], *, entries: int, rotated: int) -> None:
        """Add the tapes that should be here and are not, and check what the source says of its own length."""
        ...


def prove(source: ProofSource, *, saved: Anchor | None) -> ProofReport:
    """Verify every tape and every anchor of a source; `saved` is an anchor that was kept elsewhere."""
    problems = source.problems
    walk = AnchorWalk(problems, ids=source.journal_ids, key=source.key, saved=saved)
    walked: set[SessionId] = set()
    counts = AttestationCounts()
    entries = uncovered = rotated = 0
    try:
        if all(map(walk.take, source.anchors(walk))):
            walk.finish(source.anchored())
        for tape in source.tapes(walk):
            claims = walk.claims.get(tape.session_id, {})
            if tape.rotated is not None:
                rotated += 1
                walk_chain(tape.chain, tape.session_id, claims=claims, problems=problems)
                check_rotated(tape.session_id, tape.rotated, head=tape.head, claims=claims, problems=problems)
                continue
            walked.add(tape.session_id)
            calls = AttestationVerifier(
                counts, key=source.key, whole_of=source.full_result, from_start=tape.after.tape_seq == 0
            )
            seen = walk_tape(tape, claims=claims, problems=problems, calls=calls)
            entries += seen
            start = tape.after.tape_seq
            uncovered += max(0, start + seen - max(start, walk.covered.get(tape.session_id, 0)))
        source.finish(walk, walked, entries=entries, rotated=rotated)
    except SourceDamaged as damage:
        problems.append(ProofProblem(None, None, str(damage)))
    return ProofReport(
        len(walked),
        entries,
        walk.number,
        uncovered,
        tuple(problems),
        rotated,
        counts.attested,
        counts.unattested,
    )


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
    named = [tape for tape in _body.decode(anchor.body).tapes if tape[0] not in moved][:MAX_ENDS]
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


@dataclass(frozen=True, slots=True)
class WalkResult:
    """The result of a walk: the last entry seen, what the anchors say of later ones, and whether all are valid."""

    end: TapeHead
    claims: dict[int, str]
    complete: bool


def walk_chain(
    chain: Iterable[Chained],
    session_id: SessionId,
    *,
    after: TapeHead = NOTHING_BEFORE,
    claims: dict[int, str],
    problems: list[ProofProblem],
) -> WalkResult:
    """Walk a chain from a known position to its end or its first fault; `claims` are those of the anchors."""
    before, seq, open_claims = (
        after.hash,
        after.tape_seq,
        {at: text for at, text in claims.items() if at > after.tape_seq},
    )
    for entry, salt, stored in chain:
        seq += 1
        what = None
        if entry.tape_seq != seq:
            what = "an entry is missing here" if entry.tape_seq > seq else "an entry is out of order"
        elif len(salt) != 2 * SALT_BYTES or entry_hash(before, entry, salt) != stored:
            # The salt has a fixed length, so that no character of the content can pass for one of the salt.
            what = "this entry was altered, inserted or moved"
        elif open_claims.pop(seq, stored) != stored:
            what = "the chain was rewritten: an anchor lists a different entry here"
        if what is not None:
            problems.append(ProofProblem(session_id, seq, what))
            return WalkResult(TapeHead(seq, before), open_claims, complete=False)
        before = stored
    return WalkResult(TapeHead(seq, before), open_claims, complete=True)


def walk_tape(
    tape: TapeSource, *, claims: dict[int, str], problems: list[ProofProblem], calls: AttestationVerifier
) -> int:
    """Walk one tape to its end, which must be the head, or to its first fault; return how many entries were seen.

    `calls` checks every valid entry.
    """
    session_id, head = tape.session_id, tape.head
    walked = walk_chain(calls.follow(tape.chain), session_id, after=tape.after, claims=claims, problems=problems)
    seq = walked.end.tape_seq
    if walked.complete:
        what = None
        if head is None:
            what = "the session has entries but no head"
        elif head != walked.end:
            what = (
                "entries are missing after this one"
                if head.tape_seq > seq
                else "the head does not match the last entry"
            )
        elif walked.claims:
            what = "the tape was cut off here: an anchor lists later entries"
        if what is not None:
            problems.append(ProofProblem(session_id, seq, what))
        elif calls.fault is not None:
            # Only for a valid chain: a broken one has its own problem, and its content may be anything.
            problems.append(ProofProblem(session_id, *calls.fault))
    return seq - tape.after.tape_seq


def check_rotated(
    session_id: SessionId,
    record: RotatedTape,
    *,
    head: TapeHead | None,
    claims: dict[int, str],
    problems: list[ProofProblem],
) -> None:
    """Check that the record of a rotated tape matches its head, and what the anchors say of it."""
    if head != TapeHead(record.tape_seq, record.hash):
        problems.append(
            ProofProblem(session_id, record.tape_seq, "its tape was moved to the archive, but the head differs")
        )
    elif claims.get(record.tape_seq, record.hash) != record.hash:
        problems.append(
            ProofProblem(
                session_id, record.tape_seq, "its tape was moved to the archive, but an anchor lists a different end"
            )
        )
    elif max(claims, default=0) > record.tape_seq:
        problems.append(
            ProofProblem(session_id, record.tape_seq, "its tape was cut off before it was moved to the archive")
        )


class AnchorWalk:
    """Takes anchors in order; tracks what they claim of each tape, and how far they cover each."""

    def __init__(
        self, problems: list[ProofProblem], *, ids: Sequence[str], key: str | None, saved: Anchor | None
    ) -> None:
        self.claims: dict[SessionId, dict[int, str]] = {}
        self.covered: dict[SessionId, int] = {}
        self.number = 0
        self._problems = problems
        self._ids = list(ids)
        self._key = key
        self._saved = saved
        self._found = saved is None
        self._before = anchors.GENESIS

    def take(self, anchor: Anchor) -> bool:
        """Check the next anchor; False if it is invalid, and then no later one needs to be checked."""
        self.number += 1
        if fault := self._fault(anchor):
            self._problems.append(ProofProblem(None, None, f"anchor {self.number} {fault}"))
            return False
        self._before = anchor.hash
        self._found = self._found or (self._saved is not None and anchor.body == self._saved.body)
        for session_id, seq, digest in _body.decode(anchor.body).tapes:
            # The first claim counts: a later one may be of a tape that was cut off and has grown again.
            self.claims.setdefault(SessionId(session_id), {}).setdefault(seq, digest)
            self.covered[SessionId(session_id)] = seq
        return True

    def finish(self, index: dict[str, int] | None) -> None:
        """Check what only the last valid anchor shows; `index` is what the journal itself says is covered."""
        if index is not None and index != self.covered:
            self._problems.append(ProofProblem(None, None, "the anchors and their index differ: anchors were removed"))
        if self._saved is not None and not self._found:
            self._problems.append(ProofProblem(None, None, self._missing(self._saved)))

    def _fault(self, anchor: Anchor) -> str | None:
        if anchor.number != self.number:
            return "is missing"
        try:
            body = _body.decode(anchor.body)
        except msgspec.DecodeError:
            return "was altered"
        if anchor.hash != anchors.body_hash(anchor.body) or body.number != self.number:
            return "was altered"
        if body.before != self._before or body.journal_id not in self._ids:
            return "does not follow the one before it"
        if anchor.public_key != self._key or not is_signed(anchor.public_key, anchor.body.encode(), anchor.signature):
            return "is not signed by this journal's key"
        # A restored journal has a new id from there on: after that, no earlier id may appear again.
        del self._ids[: self._ids.index(body.journal_id)]
        return None

    def _missing(self, saved: Anchor) -> str:
        if saved.public_key != self._key or not is_signed(saved.public_key, saved.body.encode(), saved.signature):
            return "the saved anchor was not signed by this journal's key"
        if saved.number > self.number:
            return (
                f"the journal was rolled back: the saved anchor is number {saved.number},"
                f" the journal's last is {self.number}"
            )
        return f"the journal was rewritten: its anchor {saved.number} is not the saved one"


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
        return _body.decode(body).at_ms
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
