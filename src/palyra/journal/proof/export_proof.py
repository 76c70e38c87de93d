"""Verifies an export: its chains, anchors, signatures and counts, from the file alone."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from palyra.core.errors import Invalid
from palyra.core.events import Entry
from palyra.core.ids import RunId, SessionId
from palyra.journal.engines.tape_head import TapeHead
from palyra.journal.proof.anchors import Anchor
from palyra.journal.proof.attestation_proof import AttestationCounts, AttestationVerifier
from palyra.journal.proof.export import (
    FORMAT,
    AnyLine,
    ExportedAnchor,
    ExportedEntry,
    ExportedRotation,
    ExportedSession,
    ExportFooter,
    ExportHeader,
)
from palyra.journal.proof.tape_proof import AnchorWalk, Chained, ProofProblem, ProofReport, check_rotated, walk_tape
from palyra.journal.stores.rotated_tapes import RotatedTape
from palyra.journal.tape import GENESIS

MAX_LINE_BYTES = 256 * 1024 * 1024

_decoder: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)


class ExportInvalid(Invalid):
    """The file is no export of a journal. Give it one that `palyra journal export` wrote."""


class ExportVersionUnsupported(Invalid):
    """The export was written by a newer version of Palyra. Verify it with that version, or a newer one."""


class FileNotReadable(Invalid):
    """The file cannot be read."""


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The header of an export, and whether it is valid."""

    header: ExportHeader
    report: ProofReport
    heads: dict[SessionId, TapeHead]
    """Where each tape of the export ends."""


def verify_file(path: Path, *, saved: Anchor | None = None) -> ExportReport:
    """Verify an export; `saved` is an anchor that was kept elsewhere and must be among its anchors."""
    try:
        with path.open("rb") as file:
            return _verify(file, path, saved=saved)
    except OSError as error:
        raise FileNotReadable(f"{path} can not be read: {error.strerror}.") from error


@contextmanager
def entries_in(path: Path) -> Iterator[tuple[ExportHeader, Iterator[Entry]]]:
    """Read an export without verifying it: its header, and its entries as far as it can be read."""
    try:
        with path.open("rb") as file:
            lines = _Lines(file)
            yield _header(lines, path), _entries(lines)
    except OSError as error:
        raise FileNotReadable(f"{path} can not be read: {error.strerror}.") from error


def _entries(lines: "_Lines") -> Iterator[Entry]:
    try:
        while not isinstance(line := lines.take(), ExportFooter):
            if isinstance(line, ExportedEntry):
                yield _entry(line)
    except _ExportDamage:
        return


def _header(lines: "_Lines", path: Path) -> ExportHeader:
    try:
        header = lines.take()
    except _ExportDamage:
        header = None
    if not isinstance(header, ExportHeader):
        raise ExportInvalid(f"{path} is no export of a journal. Give it one that `palyra journal export` wrote.")
    if header.format > FORMAT:
        raise ExportVersionUnsupported(
            f"{path} has format {header.format}; this version of Palyra knows {FORMAT}. Verify it with a newer version."
        )
    return header


def _verify(file: BinaryIO, path: Path, *, saved: Anchor | None) -> ExportReport:
    lines = _Lines(file)
    header = _header(lines, path)
    walk = _Walk(header, saved)
    try:
        _walk_lines(lines, walk)
    except _ExportDamage as fault:
        walk.problems.append(ProofProblem(None, None, str(fault)))
    return ExportReport(header, walk.report(), walk.heads)


class _ExportDamage(Exception):
    """The file itself is wrong here: what follows can not be trusted."""


class _Lines:
    """The lines of a file, with one line of lookahead."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.number = 0
        self.entries_taken = 0
        self._ahead: tuple[bytes, AnyLine] | None = None

    def peek(self) -> AnyLine:
        if self._ahead is None:
            data = self._file.readline(MAX_LINE_BYTES)
            if not data.endswith(b"\n"):
                raise _ExportDamage(f"the export is cut off after line {self.number}")
            try:
                self._ahead = data, _decoder.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise _ExportDamage(f"line {self.number + 1} is no line of an export") from None
        return self._ahead[1]

    def take(self) -> AnyLine:
        line = self.peek()
        assert self._ahead is not None
        if not isinstance(line, ExportFooter):
            self._digest.update(self._ahead[0])
        self._ahead = None
        self.number += 1
        self.entries_taken += isinstance(line, ExportedEntry)
        return line

    def entries(self) -> Iterator[ExportedEntry]:
        """Yield the entries up to the next line of another kind."""
        while isinstance(line := self.peek(), ExportedEntry):
            yield line
            self.take()

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    @property
    def ended(self) -> bool:
        return not self._file.read(1)


@dataclass(slots=True)
class _Walk:
    header: ExportHeader
    saved: Anchor | None
    problems: list[ProofProblem] = field(default_factory=list)
    heads: dict[SessionId, TapeHead] = field(default_factory=dict)
    covered_before: dict[SessionId, int] = field(default_factory=dict)
    """How far the anchors up to `since` cover each tape: where an export of new entries must begin."""
    anchors: AnchorWalk = field(init=False)
    counts: AttestationCounts = field(default_factory=AttestationCounts)
    rotated: int = 0
    entries: int = 0
    uncovered: int = 0

    def __post_init__(self) -> None:
        self.anchors = AnchorWalk(
            self.problems, ids=self.header.journal_ids, key=self.header.public_key, saved=self.saved
        )

    def report(self) -> ProofReport:
        return ProofReport(
            len(self.heads),
            self.entries,
            self.anchors.number,
            self.uncovered,
            tuple(self.problems),
            self.rotated,
            self.counts.attested,
            self.counts.unattested,
        )


def _walk_lines(lines: _Lines, walk: _Walk) -> None:
    _walk_anchors(lines, walk)
    moved: set[SessionId] = set()
    while not isinstance(line := lines.peek(), ExportFooter):
        match line:
            case ExportedSession():
                _walk_session(lines, walk, line)
            case ExportedRotation():
                lines.take()
                walk.rotated += 1
                moved.add(line.session_id)
                record = RotatedTape(line.tape_seq, line.hash, line.file, line.sha256, 0)
                check_rotated(
                    line.session_id,
                    record,
                    head=TapeHead(line.tape_seq, line.hash),
                    claims=walk.anchors.claims.get(line.session_id, {}),
                    problems=walk.problems,
                )
            case _:
                raise _ExportDamage(f"line {lines.number + 1} stands in a wrong place")
    if walk.header.session_id is None:
        for session_id, seq in walk.anchors.covered.items():
            if (
                session_id not in walk.heads
                and session_id not in moved
                and seq > walk.covered_before.get(session_id, 0)
            ):
                walk.problems.append(ProofProblem(session_id, 1, "an anchor names this session, but its tape is gone"))
    elif walk.header.since is None and walk.header.session_id not in walk.heads:
        walk.problems.append(ProofProblem(walk.header.session_id, 1, "the tape that the export is of is not in it"))
    _check_footer(lines, walk)


def _walk_anchors(lines: _Lines, walk: _Walk) -> None:
    whole = True
    while isinstance(line := lines.peek(), ExportedAnchor):
        lines.take()
        whole = whole and walk.anchors.take(line.anchor)
        if whole and line.anchor.number == walk.header.since:
            walk.covered_before = dict(walk.anchors.covered)
    walk.anchors.finish(None)
    if whole and walk.header.since is not None and walk.header.since > walk.anchors.number:
        walk.problems.append(ProofProblem(None, None, f"anchor {walk.header.since}, after which it begins, is missing"))


def _walk_session(lines: _Lines, walk: _Walk, line: ExportedSession) -> None:
    lines.take()
    session_id = line.session_id
    if session_id in walk.heads:
        walk.problems.append(ProofProblem(session_id, None, "the session is in the export twice"))
    claims = walk.anchors.claims.get(session_id, {})
    start = walk.covered_before.get(session_id, 0)
    if line.after_seq != start or line.before != (claims[start] if start else GENESIS):
        walk.problems.append(ProofProblem(session_id, line.after_seq, "no anchor proves what stands before this tape"))
    walk.heads[session_id] = TapeHead(line.tape_seq, line.hash)
    seen = walk_tape(
        _chained(lines),
        session_id,
        after=TapeHead(line.after_seq, line.before),
        head=TapeHead(line.tape_seq, line.hash),
        claims=claims,
        problems=walk.problems,
        calls=AttestationVerifier(walk.counts, key=walk.header.public_key, from_start=line.after_seq == 0),
    )
    walk.uncovered += max(0, line.after_seq + seen - max(line.after_seq, walk.anchors.covered.get(session_id, 0)))
    # The walk ends at the first fault; the rest of the tape is skipped.
    for _ in lines.entries():
        pass
    walk.entries = lines.entries_taken


def _chained(lines: _Lines) -> Iterator[Chained]:
    for line in lines.entries():
        yield _entry(line), line.salt, line.hash


def _entry(line: ExportedEntry) -> Entry:
    run_id = RunId(line.run_id) if line.run_id is not None else None
    return Entry(line.session_id, line.tape_seq, run_id, line.run_seq, line.kind, line.at_ms, line.content)


def _check_footer(lines: _Lines, walk: _Walk) -> None:
    footer = lines.take()
    assert isinstance(footer, ExportFooter)
    found = (len(walk.heads), walk.entries, walk.anchors.number, walk.rotated)
    if walk.problems:
        return  # reported already, and more exactly
    if found != (footer.sessions, footer.entries, footer.anchors, footer.rotated):
        walk.problems.append(
            ProofProblem(None, None, "the counts in the last line are others: lines were removed or added")
        )
    elif footer.sha256 != lines.digest:
        walk.problems.append(ProofProblem(None, None, "the digest in the last line is another: a line was changed"))
    elif not lines.ended:
        walk.problems.append(ProofProblem(None, None, f"something stands after the last line, {lines.number}"))
