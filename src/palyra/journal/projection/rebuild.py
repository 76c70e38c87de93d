"""Rebuilds the projections: messages, the search index, sums of sessions and runs, approval requests, grants, usage.

Session by session, each in its own unit. The next rebuild completes an interrupted one: it compares before it writes.
Leases, queue positions and tasks are not derived from the tape and stay. The revocation of a grant may not be either:
`approvals_check.py` says when, and how it is kept.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from palyra.core.ids import SessionId
from palyra.core.projection.session_rows import SessionRows, Unreplayable
from palyra.journal import table_dump
from palyra.journal.engines.base import Connection
from palyra.journal.offline import OfflineWriter
from palyra.journal.projection import approvals_check, ledger_check
from palyra.journal.projection.approvals_check import archived_rows, orphaned_approvals, orphaned_grants, repair
from palyra.journal.projection.replay_check import check_search_index, compare, sessions_of
from palyra.journal.proof.journal_proof import entries_of
from palyra.journal.proof.tape_proof import ProofProblem
from palyra.journal.stores import approvals, grants, messages, runs, sessions


@dataclass(slots=True)
class RebuildReport:
    """How much was checked, and what differed and was corrected."""

    sessions: int = 0
    """All sessions."""
    conversations: int = 0
    """Sessions whose messages were wrong."""
    counts: int = 0
    """Sessions whose own rows were wrong."""
    runs: int = 0
    questions: int = 0
    grants: int = 0
    """Grants that were missing or wrong are now revoked; those without an answer were deleted."""
    used: int = 0
    """Runs with wrong turns in the ledger, turns of runs that do not exist, and wrong accounts."""
    search_index: int = 0
    """Messages in the search index, if it had to be rebuilt."""
    problems: list[ProofProblem] = field(default_factory=list)
    """Tapes that cannot be replayed; their rows were not changed."""

    def add(self, other: "RebuildReport") -> None:
        """Add what was corrected elsewhere."""
        for name in ("conversations", "counts", "runs", "questions", "grants", "used"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def differed(self) -> int:
        rows = self.conversations + self.runs + self.counts + self.questions + self.grants
        return rows + self.used + self.search_index


def rebuild(writer: OfflineWriter, *, folder: Path, now_ms: int) -> RebuildReport:
    """Make every derived row match the tape. No other process may write meanwhile.

    The archive is below the folder.
    """
    rebuilt = RebuildReport()
    for session_id in writer.write(lambda conn: list(sessions_of(conn))):
        rebuilt.sessions += 1
        try:
            repaired = writer.write(partial(_repair_session, session_id=session_id, now_ms=now_ms))
        except Unreplayable as error:
            rebuilt.problems.append(ProofProblem(session_id, error.tape_seq, str(error)))
            continue
        rebuilt.add(repaired)
    if writer.write(ledger_check.has_rows):
        rebuilt.used += writer.write(ledger_check.repair_accounts)
    if writer.write(approvals_check.has_rows):
        rebuilt.add(writer.write(partial(_repair_approvals, folder=folder, now_ms=now_ms)))
    if rebuilt.conversations or writer.write(lambda conn: list(check_search_index(conn))):
        rebuilt.search_index = writer.write(_rebuild_search_index)
    return rebuilt


def _repair_approvals(conn: Connection, folder: Path, now_ms: int) -> RebuildReport:
    """Correct the approval requests and grants of archived tapes, and delete those of no tape."""
    done = RebuildReport()
    for rows in archived_rows(conn, folder):
        if rows is not None:
            questions, amount = repair(conn, rows, now_ms=now_ms)
            done.questions += questions
            done.grants += amount
    for approval_id, _ in orphaned_approvals(conn):
        approvals.remove(conn, approval_id)
        done.questions += 1
    for grant_id in orphaned_grants(conn, folder):
        grants.remove(conn, grant_id)
        done.grants += 1
    return done


def _repair_session(conn: Connection, session_id: SessionId, now_ms: int) -> RebuildReport:
    """Correct one session. A tape that does not replay to its end must lose nothing: it is compared first."""
    compared = compare(conn, session_id)
    rows, done = compared.rows, RebuildReport(runs=len(compared.runs))
    if compared.message_seq is not None:
        done.conversations = 1
        _refill(conn, session_id)
    if compared.columns:
        done.counts = 1
        sessions.release_names(conn, session_id, rows.session)
        sessions.put(conn, session_id, {column: rows.session[column] for column in compared.columns})
    for run_id, row in compared.runs.items():
        if row is None:
            runs.remove(conn, run_id)
        else:
            runs.put(conn, row)
    if approvals_check.has_rows(conn):
        done.questions, done.grants = repair(conn, rows, now_ms=now_ms)
    if ledger_check.has_rows(conn):
        done.used = ledger_check.repair(conn, rows)
    return done


def _refill(conn: Connection, session_id: SessionId) -> None:
    messages.remove(conn, session_id)
    for added in SessionRows(session_id).fold(entry for entry, _, _ in entries_of(conn, session_id)):
        messages.put(conn, session_id, added.principal, messages=[added.message])


def _rebuild_search_index(conn: Connection) -> int:
    conn.execute("DELETE FROM message_words")
    return table_dump.index(conn)
