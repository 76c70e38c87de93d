"""Rebuilds the projections: messages, the search index, sums of sessions and runs, approval requests, grants, usage.

Session by session, each in its own unit. The next rebuild completes an interrupted one: it compares before it writes.
Leases, queue positions and tasks are not derived from the tape and stay. The revocation of a grant may not be either:
`approvals_check.py` says when, and how it is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from palyra.core.ids import PrincipalId, RunId, SessionId
from palyra.journal import table_dump
from palyra.journal.engines.base import Connection
from palyra.journal.offline import OfflineWriter
from palyra.journal.projection import ledger_check
from palyra.journal.projection.approvals_check import (
    SessionApprovals,
    archived_approvals,
    has_rows,
    orphaned_approvals,
    orphaned_grants,
    repair,
)
from palyra.journal.projection.replay_check import (
    RUN_COLUMNS,
    MessageOf,
    ReplayedRun,
    SessionReplay,
    Unreplayable,
    check_search_index,
    differing_runs,
    messages_of,
    session_row,
    sessions_of,
)
from palyra.journal.proof.tape_proof import ProofProblem, entries_of
from palyra.journal.stores import approvals, grants, messages
from palyra.journal.stores.messages import StoredMessage


@dataclass(slots=True)
class RebuildReport:
    """How much was checked, and what differed and was corrected."""

    sessions: int = 0
    """All sessions."""
    conversations: int = 0
    """Sessions whose messages were wrong."""
    counts: int = 0
    """Sessions whose own sums were wrong."""
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

    @property
    def differed(self) -> int:
        rows = self.conversations + self.runs + self.counts + self.questions + self.grants
        return rows + self.used + self.search_index


@dataclass(frozen=True, slots=True)
class _Repairs:
    conversations: int
    counts: int
    runs: int
    questions: int
    grants: int
    used: int


def rebuild(writer: OfflineWriter, message_of: MessageOf, *, folder: Path, now_ms: int) -> RebuildReport:
    """Make every derived row match the tape. No other process may write meanwhile.

    The archive is below the folder.
    """
    rebuilt = RebuildReport()
    for session_id in writer.write(lambda conn: list(sessions_of(conn))):
        rebuilt.sessions += 1
        try:
            mended = writer.write(partial(_repair_session, session_id=session_id, message_of=message_of, now_ms=now_ms))
        except Unreplayable as error:
            rebuilt.problems.append(ProofProblem(session_id, error.tape_seq, str(error)))
            continue
        rebuilt.conversations += mended.conversations
        rebuilt.counts += mended.counts
        rebuilt.runs += mended.runs
        rebuilt.questions += mended.questions
        rebuilt.grants += mended.grants
        rebuilt.used += mended.used
    if writer.write(ledger_check.has_rows):
        rebuilt.used += writer.write(ledger_check.repair_accounts)
    if writer.write(has_rows):
        _repair_approvals(writer, rebuilt, folder=folder, now_ms=now_ms)
    if rebuilt.conversations or writer.write(lambda conn: list(check_search_index(conn))):
        rebuilt.search_index = writer.write(_rebuild_search_index)
    return rebuilt


def _repair_approvals(writer: OfflineWriter, rebuilt: RebuildReport, *, folder: Path, now_ms: int) -> None:
    """Correct the approval requests and grants of archived tapes, and delete those of no tape."""
    for _, asked in writer.write(lambda conn: list(archived_approvals(conn, folder))):
        if asked is not None:
            questions, given = writer.write(partial(repair, asked=asked, now_ms=now_ms))
            rebuilt.questions += questions
            rebuilt.grants += given

    def remove(conn: Connection) -> tuple[int, int]:
        lost, strange = orphaned_approvals(conn), orphaned_grants(conn, folder)
        for approval_id, _ in lost:
            approvals.remove(conn, approval_id)
        for grant_id in strange:
            grants.remove(conn, grant_id)
        return len(lost), len(strange)

    lost, strange = writer.write(remove)
    rebuilt.questions += lost
    rebuilt.grants += strange


def _repair_session(conn: Connection, session_id: SessionId, message_of: MessageOf, now_ms: int) -> _Repairs:
    """Correct one session."""
    replay, asked = SessionReplay(session_id), SessionApprovals(session_id)
    stored = messages_of(conn, session_id)
    holds = True
    for wanted in _replayed(conn, replay, message_of, asked):
        # Replayed to the end in any case: it adds up the runs too, and a tape that does not replay must lose nothing.
        holds = holds and next(stored, None) == wanted
    holds = holds and next(stored, None) is None
    if not holds:
        _refill(conn, session_id, message_of)
    questions, given = repair(conn, asked, now_ms=now_ms) if has_rows(conn) else (0, 0)
    used = ledger_check.repair(conn, replay.spent) if ledger_check.has_rows(conn) else 0
    return _Repairs(
        int(not holds), _repair_session_row(conn, replay), _repair_runs(conn, replay), questions, given, used
    )


def _replayed(
    conn: Connection, replay: SessionReplay, message_of: MessageOf, asked: SessionApprovals
) -> Iterator[tuple[PrincipalId, StoredMessage]]:
    entries = asked.follow(entry for entry, _, _ in entries_of(conn, replay.session_id))
    return replay.messages(entries, message_of)


def _refill(conn: Connection, session_id: SessionId, message_of: MessageOf) -> None:
    conn.execute("DELETE FROM messages WHERE session_id = :session_id", {"session_id": session_id})
    for principal, kept in _replayed(conn, SessionReplay(session_id), message_of, SessionApprovals(session_id)):
        messages.put(conn, session_id, principal, kept=[kept])


def _repair_session_row(conn: Connection, replay: SessionReplay) -> int:
    if session_row(conn, replay.session_id) == replay.row():
        return 0
    return conn.execute(
        "UPDATE sessions SET message_count = :message_count, reset_count = :reset_count, reset_seq = :reset_seq,"
        " active_run_id = :active WHERE session_id = :session_id",
        {
            "session_id": replay.session_id,
            "message_count": replay.message_count,
            "reset_count": replay.reset_count,
            "reset_seq": replay.reset_seq,
            "active": replay.active,
        },
    )


def _repair_runs(conn: Connection, replay: SessionReplay) -> int:
    wrong = [run_id for run_id, _ in differing_runs(conn, replay)]
    for run_id in wrong:
        run = replay.runs.get(run_id)
        if run is None:
            conn.execute("DELETE FROM runs WHERE run_id = :run_id", {"run_id": run_id})
        else:
            _put_run(conn, run_id, run)
    return len(wrong)


def _put_run(conn: Connection, run_id: RunId, run: ReplayedRun) -> None:
    names = [name.strip() for name in RUN_COLUMNS.split(",")]
    values = dict(zip(names, run.row(), strict=True))
    free = ", lease_owner = NULL, lease_until_ms = 0" if not values["ready"] else ""
    conn.execute(
        f"INSERT INTO runs (run_id, place, {', '.join(names)}) VALUES (:run_id, :accepted_seq,"
        f" {', '.join(f':{name}' for name in names)}) ON CONFLICT (run_id) DO UPDATE SET"
        f" {', '.join(f'{name} = excluded.{name}' for name in names)}{free}",
        {"run_id": run_id, **values},
    )


def _rebuild_search_index(conn: Connection) -> int:
    conn.execute("DELETE FROM message_words")
    return table_dump.index(conn)
