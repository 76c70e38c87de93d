"""Verifies an export: its chains, anchors, signatures and counts, from the file alone."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from palyra.core.errors import Invalid
from palyra.core.events import Entry
from palyra.core.ids import RunId, SessionId
from palyra.journal.engines.tape_head import TapeHead
from palyra.journal.proof.anchors import Anchor
from palyra.journal.proof.attestation_proof import FullResultOf
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
from palyra.journal.proof.tape_proof import (
    TAPE_GONE,
    AnchorWalk,
    ProofProblem,
    ProofReport,
    SourceDamaged,
    TapeSource,
    prove,
)
from palyra.journal.stores.rotated_tapes import RotatedTape
from palyra.journal.tape import GENESIS

MAX_LINE_BYTES = 256 * 1024 * 1024

_decoder: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)


class ExportInvalid(Invalid):
    """The file is not an export of a journal. Give a file that `palyra journal export` wrote."""


class ExportVersionUnsupported(Invalid):
    """A newer version of Palyra wrote the export. Verify it with that version, or a newer one."""


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
            lines = _Lines(file)
            source = _ExportSource(_header(lines, path), lines)
            return ExportReport(source.header, prove(source, saved=saved), source.heads)
    except OSError as error:
        raise FileNotReadable(f"{path} cannot be read: {error.strerror}.") from error


@contextmanager
def entries_in(path: Path) -> Iterator[tuple[ExportHeader, Iterator[Entry]]]:
    """Read an export without verifying it: its header, and its entries as far as it can be read."""
    try:
        with path.open("rb") as file:
            lines = _Lines(file)
            yield _header(lines, path), _entries(lines)
    except OSError as error:
        raise FileNotReadable(f"{path} cannot be read: {error.strerror}.") from error


def _entries(lines: "_Lines") -> Iterator[Entry]:
    try:
        while not isinstance(line := lines.take(), ExportFooter):
            if isinstance(line, ExportedEntry):
                yield _entry(line)
    except SourceDamaged:
        return


def _header(lines: "_Lines", path: Path) -> ExportHeader:
    try:
        header = lines.take()
    except SourceDamaged:
        header = None
    if not isinstance(header, ExportHeader):
        raise ExportInvalid(f"{path} is not an export of a journal. Give a file that `palyra journal export` wrote.")
    if header.format > FORMAT:
        raise ExportVersionUnsupported(
            f"{path} has export format {header.format}; this version of Palyra supports format "
            f"{FORMAT}. Verify it with a newer version."
        )
    return header


class _Lines:
    """The lines of a file, with one line of lookahead."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.number = 0
        self._ahead: tuple[bytes, AnyLine] | None = None

    def peek(self) -> AnyLine:
        if self._ahead is None:
            data = self._file.readline(MAX_LINE_BYTES)
            if not data.endswith(b"\n"):
                raise SourceDamaged(f"the export is truncated after line {self.number}")
            try:
                self._ahead = data, _decoder.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise SourceDamaged(f"line {self.number + 1} is not a line of an export") from None
        return self._ahead[1]

    def take(self) -> AnyLine:
        line = self.peek()
        assert self._ahead is not None
        if not isinstance(line, ExportFooter):
            self._digest.update(self._ahead[0])
        self._ahead = None
        self.number += 1
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


class _ExportSource:
    """The tapes and anchors of an export, in the order of its lines."""

    def __init__(self, header: ExportHeader, lines: _Lines) -> None:
        self.header = header
        self.problems: list[ProofProblem] = []
        self.full_result: FullResultOf | None = None
        self.key = header.public_key
        self.journal_ids: Sequence[str] = header.journal_ids
        self.heads: dict[SessionId, TapeHead] = {}
        self._lines = lines
        self._covered_before: dict[SessionId, int] = {}
        """How far the anchors up to `since` cover each tape: where an export of new entries must begin."""
        self._rotated: set[SessionId] = set()

    def anchors(self, walk: AnchorWalk) -> Iterator[Anchor]:
        since = self.header.since
        while isinstance(line := self._lines.peek(), ExportedAnchor):
            self._lines.take()
            yield line.anchor
            if line.anchor.number == since:
                self._covered_before = dict(walk.covered)
        if since is not None and since > walk.number:
            self.problems.append(ProofProblem(None, None, f"anchor {since}, after which the export begins, is missing"))

    def anchored(self) -> None:
        pass

    def tapes(self, walk: AnchorWalk) -> Iterator[TapeSource]:
        lines = self._lines
        while isinstance(lines.peek(), ExportedAnchor):
            lines.take()  # An earlier one was invalid.
        while isinstance(line := lines.peek(), ExportedSession):
            lines.take()
            self._check_start(line, walk)
            head = self.heads[line.session_id] = TapeHead(line.tape_seq, line.hash)
            chain = ((_entry(entry), entry.salt, entry.hash) for entry in lines.entries())
            yield TapeSource(line.session_id, chain, head, TapeHead(line.after_seq, line.before))
            # The walk ends at the first fault; the rest of the tape is skipped.
            for _ in lines.entries():
                pass
        while isinstance(line := lines.peek(), ExportedRotation):
            lines.take()
            self._rotated.add(line.session_id)
            head = TapeHead(line.tape_seq, line.hash)
            record = RotatedTape(line.tape_seq, line.hash, line.file, line.sha256, 0)
            yield TapeSource(line.session_id, iter(()), head, rotated=record)
        if not isinstance(lines.peek(), ExportFooter):
            raise SourceDamaged(f"line {lines.number + 1} is out of order")

    def _check_start(self, line: ExportedSession, walk: AnchorWalk) -> None:
        session_id = line.session_id
        if session_id in self.heads:
            self.problems.append(ProofProblem(session_id, None, "the session is in the export twice"))
        start = self._covered_before.get(session_id, 0)
        if line.after_seq != start or line.before != (walk.claims[session_id][start] if start else GENESIS):
            what = "no anchor covers what came before this tape"
            self.problems.append(ProofProblem(session_id, line.after_seq, what))

    def finish(self, walk: AnchorWalk, walked: set[SessionId], *, entries: int, rotated: int) -> None:
        self.problems += self._missing(walk)
        footer = self._lines.take()
        assert isinstance(footer, ExportFooter)
        if self.problems:
            return  # reported already, and more exactly
        what = None
        counted = (len(walked), entries, walk.number, rotated)
        if counted != (footer.sessions, footer.entries, footer.anchors, footer.rotated):
            what = "the counts in the last line do not match: lines were removed or added"
        elif footer.sha256 != self._lines.digest:
            what = "the digest in the last line does not match: a line was changed"
        elif not self._lines.ended:
            what = f"there is data after the last line, {self._lines.number}"
        if what is not None:
            self.problems.append(ProofProblem(None, None, what))

    def _missing(self, walk: AnchorWalk) -> Iterator[ProofProblem]:
        header = self.header
        if header.session_id is not None:
            if header.since is None and header.session_id not in self.heads:
                yield ProofProblem(header.session_id, 1, "the exported tape is missing from the file")
            return
        for session_id, seq in walk.covered.items():
            is_here = session_id in self.heads or session_id in self._rotated
            if not is_here and seq > self._covered_before.get(session_id, 0):
                yield ProofProblem(session_id, 1, TAPE_GONE)


def _entry(line: ExportedEntry) -> Entry:
    run_id = RunId(line.run_id) if line.run_id is not None else None
    return Entry(line.session_id, line.tape_seq, run_id, line.run_seq, line.kind, line.at_ms, line.content)
