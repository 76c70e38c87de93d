"""Verifies the tapes: walks every chain and reports the first invalid entry of each.

One walk (`prove`) verifies both a journal and an export: a `ProofSource` gives it the entries (`journal_proof.py`,
`export_proof.py`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from palyra.core.events import Entry
from palyra.core.ids import SessionId
from palyra.journal.engines.tape_head import TapeHead
from palyra.journal.proof import anchors
from palyra.journal.proof.anchors import Anchor, decode_body
from palyra.journal.proof.attestation_proof import AttestationCounts, AttestationVerifier, FullResultOf
from palyra.journal.proof.signing_key import is_signed
from palyra.journal.salts import SALT_BYTES
from palyra.journal.stores.rotated_tapes import RotatedTape
from palyra.journal.tape import GENESIS, entry_hash

TAPE_GONE = "an anchor names this session, but its tape is missing"

Chained = tuple[Entry, str, str]
"""An entry, its salt and its hash."""
NOTHING_BEFORE = TapeHead(0, GENESIS)


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
        for session_id, seq, digest in decode_body(anchor.body).tapes:
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
            body = decode_body(anchor.body)
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
