"""Replays each tape from its first entry, and compares the result with the derived tables."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from palyra.core.errors import PalyraError
from palyra.core.ids import RunId, SessionId
from palyra.core.projection.changes import Columns, MessageAdded
from palyra.core.projection.session_rows import SessionRows, Unreplayable
from palyra.home import Home
from palyra.journal import migrate
from palyra.journal.content import blobs
from palyra.journal.engines import sqlite
from palyra.journal.engines.base import Connection
from palyra.journal.engines.tape_head import TapeHead
from palyra.journal.projection import approvals_check, ledger_check
from palyra.journal.projection.approvals_check import (
    archived_rows,
    orphaned_approvals,
    orphaned_grants,
    wrong_approvals,
    wrong_grants,
)
from palyra.journal.proof.anchors import Anchor
from palyra.journal.proof.export_proof import verify_file
from palyra.journal.proof.journal_proof import entries_of, verify
from palyra.journal.proof.signing_key import public_key
from palyra.journal.proof.tape_proof import ProofProblem, ProofReport
from palyra.journal.snapshot import open_snapshot
from palyra.journal.stores import messages, rotated_tapes, runs, sessions
from palyra.settings import Settings

SLICE = 500

_COUNTS = frozenset({"message_count", "reset_count", "reset_seq", "active_run_id"})


@dataclass(frozen=True, slots=True)
class SessionComparison:
    """What a tape says, and which rows of its session, runs and messages differ from it."""

    rows: SessionRows
    message_seq: int | None
    """The first entry whose message is missing, wrong or superfluous."""
    columns: tuple[str, ...]
    """The columns of the session's row."""
    runs: dict[RunId, Columns | None]
    """The runs whose rows are missing, wrong or superfluous, each with its right row."""


@dataclass(frozen=True, slots=True)
class JournalExamination:
    """The result of all checks of a journal."""

    report: ProofReport
    """The tapes and anchors."""
    file: tuple[ProofProblem, ...]
    """Problems that the database finds in its own file, and content that was changed since it was stored."""
    rows: tuple[ProofProblem, ...]
    """Rows that differ from the tapes; they can be rebuilt."""
    archive: tuple[ProofProblem, ...]
    """Archived tapes whose files are missing or wrong."""

    @property
    def ok(self) -> bool:
        return self.report.ok and not (self.file or self.rows or self.archive)


def examine(home: Home, settings: Settings, *, saved: Anchor | None = None) -> JournalExamination:
    """Verify a home's journal, and check the file, the derived rows, and the archive."""
    with open_snapshot(home, settings) as conn:
        file = [ProofProblem(None, None, fault) for fault in _faults(conn)]
        report = verify(conn, saved=saved, key=public_key(home.key))
        # Rows cannot be compared with a tape that does not verify.
        rows = check(conn, folder=home.path) if report.ok else []
        return JournalExamination(report, tuple(file), tuple(rows), tuple(check_archive(conn, home.path)))


def _faults(conn: Connection) -> Iterator[str]:
    if conn.dialect.name == "sqlite":
        yield from sqlite.file_problems(conn)
    if migrate.current(conn) >= blobs.SINCE_SCHEMA:
        yield from blobs.check(conn)


def check(conn: Connection, *, folder: Path) -> list[ProofProblem]:
    """Compare the rows of every session with its tape; report the first difference of each kind in each.

    The archive is below the folder: rows of approval requests and grants outlive their tapes.
    """
    problems = [
        ProofProblem(session_id, None, "the session has a tape but no row") for session_id in _without_row(conn)
    ]
    for session_id in sessions_of(conn):
        problems.extend(check_session(conn, session_id))
    problems.extend(check_search_index(conn))
    if approvals_check.has_rows(conn):
        problems.extend(_check_grants(conn, folder))
    if ledger_check.has_rows(conn):
        problems.extend(_check_spent(conn))
    return problems


def check_session(conn: Connection, session_id: SessionId) -> Iterator[ProofProblem]:
    """Compare one session's rows with its tape."""
    try:
        compared = compare(conn, session_id)
    except Unreplayable as error:
        yield ProofProblem(session_id, error.tape_seq, str(error))
        return
    rows = compared.rows
    if compared.message_seq is not None:
        what = "the message of this entry is missing, wrong or duplicated"
        yield ProofProblem(session_id, compared.message_seq, what)
    if _COUNTS.intersection(compared.columns):
        yield ProofProblem(session_id, None, "the session's counts do not match its tape")
    for column in compared.columns:
        if column not in _COUNTS:
            yield ProofProblem(session_id, None, f"the session's {column} is not what its tape says")
    for run_id, row in compared.runs.items():
        seq = cast(int, row["accepted_seq"]) if row is not None else None
        yield ProofProblem(session_id, seq, f"the row of run {run_id} does not match its tape")
    if approvals_check.has_rows(conn):
        yield from _differing(conn, rows)
    if ledger_check.has_rows(conn):
        for (_, used_by), _ in ledger_check.wrong_runs(conn, rows):
            yield ProofProblem(session_id, None, f"the ledger entries of run {used_by} do not match its tape")
        missing, superfluous = ledger_check.wrong_warnings(conn, rows)
        for warned in missing:
            budget = warned.warning.overrun.budget
            yield ProofProblem(session_id, None, f"the row for the warning of budget {budget} is missing")
        for budget, _, _ in superfluous:
            yield ProofProblem(session_id, None, f"there is a row for a warning of budget {budget} that was not given")


def compare(conn: Connection, session_id: SessionId) -> SessionComparison:
    """Replay a tape, and compare; raise `Unreplayable` if it does not replay to its end."""
    rows = SessionRows(session_id)
    stored = messages_of(conn, session_id)
    differs: int | None = None
    for message_added in rows.fold(entry for entry, _, _ in entries_of(conn, session_id)):
        if differs is None and next(stored, None) != message_added:
            differs = message_added.message.tape_seq
    if differs is None and (extra := next(stored, None)) is not None:
        differs = extra.message.tape_seq
    return SessionComparison(rows, differs, tuple(_wrong_columns(conn, rows)), dict(_wrong_runs(conn, rows)))


def _wrong_columns(conn: Connection, rows: SessionRows) -> Iterator[str]:
    stored = sessions.row_of(conn, rows.session_id) or {}
    for column, value in rows.session.items():
        if stored.get(column) != value:
            yield column


def _wrong_runs(conn: Connection, rows: SessionRows) -> Iterator[tuple[RunId, Columns | None]]:
    stored = runs.rows_of(conn, rows.session_id)
    for run_id, row in rows.runs.items():
        if stored.pop(run_id, None) != row:
            yield run_id, row
    for run_id in stored:
        yield run_id, None


def _differing(conn: Connection, rows: SessionRows) -> Iterator[ProofProblem]:
    for approval_id, _ in wrong_approvals(conn, rows):
        yield ProofProblem(rows.session_id, None, f"the row of approval {approval_id} does not match its tape")
    for grant in wrong_grants(conn, rows):
        yield ProofProblem(rows.session_id, None, f"the row of grant {grant.grant_id} does not match its approval")


def _check_grants(conn: Connection, folder: Path) -> Iterator[ProofProblem]:
    for rows in archived_rows(conn, folder):
        if rows is not None:
            yield from _differing(conn, rows)
    for approval_id, session_id in orphaned_approvals(conn):
        yield ProofProblem(session_id, None, f"approval {approval_id} belongs to a session that does not exist")
    for grant_id in sorted(orphaned_grants(conn, folder)):
        yield ProofProblem(None, None, f"grant {grant_id} has no approval")


def _check_spent(conn: Connection) -> Iterator[ProofProblem]:
    for run_id, session_id in ledger_check.orphaned_turns(conn):
        yield ProofProblem(SessionId(session_id), None, f"the ledger has turns of run {run_id}, which does not exist")
    for account in ledger_check.wrong_accounts(conn):
        yield ProofProblem(
            None, None, f"the account of {account.scope} in {account.period} is not the sum of its turns"
        )


def messages_of(conn: Connection, session_id: SessionId) -> Iterator[MessageAdded]:
    """Yield the stored messages of a session, in slices."""
    after = 0
    while page := messages.owned(conn, session_id, after_seq=after, limit=SLICE):
        yield from page
        after = page[-1].message.tape_seq


def sessions_of(conn: Connection) -> Iterator[SessionId]:
    """Yield every session that has a row, in slices."""
    after = ""
    while rows := conn.fetch(
        "SELECT session_id FROM sessions WHERE session_id > :after ORDER BY session_id LIMIT :slice",
        {"after": after, "slice": SLICE},
    ):
        yield from (SessionId(row[0]) for row in rows)
        after = rows[-1][0]


def _without_row(conn: Connection) -> Iterator[SessionId]:
    moved = rotated_tapes.all_of(conn)
    for row in conn.fetch(
        "SELECT h.session_id FROM heads h LEFT JOIN sessions s ON s.session_id = h.session_id"
        " WHERE s.session_id IS NULL ORDER BY h.session_id"
    ):
        if row[0] not in moved:
            yield SessionId(row[0])


def check_search_index(conn: Connection) -> Iterator[ProofProblem]:
    """Compare the full-text index with the messages."""
    match = "SELECT session_id, tape_seq FROM message_words"
    requested = "SELECT session_id, tape_seq FROM messages WHERE role <> 'tool' AND text <> ''"
    for first, second, what in (
        (requested, match, "a message is missing from the search index"),
        (match, requested, "the search index contains a message that does not exist"),
    ):
        row = conn.fetch_one(f"{first} EXCEPT {second} ORDER BY 1, 2 LIMIT 1")
        if row is not None:
            yield ProofProblem(SessionId(row[0]), row[1], what)
    counted = conn.fetch_one(f"SELECT (SELECT COUNT(*) FROM ({match}) f), (SELECT COUNT(*) FROM ({requested}) w)")
    if counted is not None and counted[0] > counted[1]:
        yield ProofProblem(None, None, "the search index contains messages twice")


def verify_with_archive(home: Home, settings: Settings, *, saved: Anchor | None = None) -> ProofReport:
    """Verify a home's journal and the tapes in its archive: the record of a rotation proves nothing by itself."""
    with open_snapshot(home, settings) as conn:
        return verify_all(conn, home, saved=saved)


def verify_all(conn: Connection, home: Home, *, saved: Anchor | None = None) -> ProofReport:
    """Verify a snapshot of the home's journal, and the tapes in its archive."""
    report = verify(conn, saved=saved, key=public_key(home.key))
    return replace(report, problems=(*report.problems, *check_archive(conn, home.path)))


def check_archive(conn: Connection, folder: Path) -> Iterator[ProofProblem]:
    """Check that each rotated tape is in the archive below a folder, complete and valid."""
    for session_id, record in rotated_tapes.all_of(conn).items():
        path = folder / record.file
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            proof = verify_file(path)
        except (OSError, PalyraError):
            yield ProofProblem(session_id, None, f"its tape was moved to {record.file}, which cannot be read")
            continue
        if digest != record.sha256:
            yield ProofProblem(session_id, None, f"its tape was moved to {record.file}, and this file was changed")
        elif not proof.report.ok or proof.heads.get(session_id) != TapeHead(record.tape_seq, record.hash):
            yield ProofProblem(
                session_id, None, f"its tape was moved to {record.file}, which does not match the record"
            )
