"""Rebuild what follows from the tape: messages, the search index, sums of sessions and runs, questions, grants, usage.

Session by session, each a unit of its own. What is interrupted is done by the next rebuild: it compares before it
writes. Leases, places in the queue and tasks do not follow from the tape and stay. That a grant was taken back may not
either: `asked.py` says when, and how it is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from palyra.core.ids import PrincipalId, RunId, SessionId
from palyra.journal import approvals, dump, grants, messages, spent
from palyra.journal.asked import Asked, archived, has_rows, lost_questions, mend, strange_grants
from palyra.journal.engine import Connection
from palyra.journal.integrity import (
    RUN_COLUMNS,
    MessageOf,
    Replay,
    RunSum,
    Unreplayable,
    check_words,
    differing_runs,
    messages_of,
    session_row,
    sessions_of,
)
from palyra.journal.messages import Kept
from palyra.journal.offline import Writer
from palyra.journal.verify import Problem, entries_of


@dataclass(slots=True)
class Rebuilt:
    """What was looked at, and what differed and was set right."""

    sessions: int = 0
    """All of them."""
    conversations: int = 0
    """Sessions whose messages were wrong."""
    counts: int = 0
    """Sessions whose own sums were wrong."""
    runs: int = 0
    questions: int = 0
    grants: int = 0
    """Those that were missing or wrong are taken back now; those that nobody gave are gone."""
    used: int = 0
    """Runs whose turns were not in the ledger as they should be, turns of runs that never were, and wrong accounts."""
    words: int = 0
    """Messages in the search index, if it had to be made anew."""
    problems: list[Problem] = field(default_factory=list)
    """Tapes that can not be replayed; their rows were left alone."""

    @property
    def differed(self) -> int:
        rows = self.conversations + self.runs + self.counts + self.questions + self.grants
        return rows + self.used + self.words


@dataclass(frozen=True, slots=True)
class _Mended:
    conversations: int
    counts: int
    runs: int
    questions: int
    grants: int
    used: int


def rebuild(writer: Writer, message_of: MessageOf, *, folder: Path, now_ms: int) -> Rebuilt:
    """Bring every row that follows from the tape in line with it. Nobody else may write meanwhile.

    The archive is below the folder.
    """
    rebuilt = Rebuilt()
    for session_id in writer.write(lambda conn: list(sessions_of(conn))):
        rebuilt.sessions += 1
        try:
            mended = writer.write(partial(_mend, session_id=session_id, message_of=message_of, now_ms=now_ms))
        except Unreplayable as error:
            rebuilt.problems.append(Problem(session_id, error.tape_seq, str(error)))
            continue
        rebuilt.conversations += mended.conversations
        rebuilt.counts += mended.counts
        rebuilt.runs += mended.runs
        rebuilt.questions += mended.questions
        rebuilt.grants += mended.grants
        rebuilt.used += mended.used
    if writer.write(spent.has_rows):
        rebuilt.used += writer.write(spent.mend_sums)
    if writer.write(has_rows):
        _mend_asked(writer, rebuilt, folder=folder, now_ms=now_ms)
    if rebuilt.conversations or writer.write(lambda conn: list(check_words(conn))):
        rebuilt.words = writer.write(_rebuild_words)
    return rebuilt


def _mend_asked(writer: Writer, rebuilt: Rebuilt, *, folder: Path, now_ms: int) -> None:
    """Set right what was asked in sessions that are not here any more, and remove what was asked in none."""
    for _, asked in writer.write(lambda conn: list(archived(conn, folder))):
        if asked is not None:
            questions, given = writer.write(partial(mend, asked=asked, now_ms=now_ms))
            rebuilt.questions += questions
            rebuilt.grants += given

    def remove(conn: Connection) -> tuple[int, int]:
        lost, strange = lost_questions(conn), strange_grants(conn, folder)
        for approval_id, _ in lost:
            approvals.remove(conn, approval_id)
        for grant_id in strange:
            grants.remove(conn, grant_id)
        return len(lost), len(strange)

    lost, strange = writer.write(remove)
    rebuilt.questions += lost
    rebuilt.grants += strange


def _mend(conn: Connection, session_id: SessionId, message_of: MessageOf, now_ms: int) -> _Mended:
    """Set one session right."""
    replay, asked = Replay(session_id), Asked(session_id)
    stored = messages_of(conn, session_id)
    holds = True
    for wanted in _replayed(conn, replay, message_of, asked):
        # Replayed to the end all the same: it adds up the runs too, and a tape that does not replay must lose nothing.
        holds = holds and next(stored, None) == wanted
    holds = holds and next(stored, None) is None
    if not holds:
        _refill(conn, session_id, message_of)
    questions, given = mend(conn, asked, now_ms=now_ms) if has_rows(conn) else (0, 0)
    used = spent.mend(conn, replay.spent) if spent.has_rows(conn) else 0
    return _Mended(int(not holds), _mend_session(conn, replay), _mend_runs(conn, replay), questions, given, used)


def _replayed(
    conn: Connection, replay: Replay, message_of: MessageOf, asked: Asked
) -> Iterator[tuple[PrincipalId, Kept]]:
    entries = asked.follow(entry for entry, _, _ in entries_of(conn, replay.session_id))
    return replay.messages(entries, message_of)


def _refill(conn: Connection, session_id: SessionId, message_of: MessageOf) -> None:
    conn.execute("DELETE FROM messages WHERE session_id = :session_id", {"session_id": session_id})
    for principal, kept in _replayed(conn, Replay(session_id), message_of, Asked(session_id)):
        messages.put(conn, session_id, principal, kept=[kept])


def _mend_session(conn: Connection, replay: Replay) -> int:
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


def _mend_runs(conn: Connection, replay: Replay) -> int:
    wrong = [run_id for run_id, _ in differing_runs(conn, replay)]
    for run_id in wrong:
        run = replay.runs.get(run_id)
        if run is None:
            conn.execute("DELETE FROM runs WHERE run_id = :run_id", {"run_id": run_id})
        else:
            _put_run(conn, run_id, run)
    return len(wrong)


def _put_run(conn: Connection, run_id: RunId, run: RunSum) -> None:
    names = [name.strip() for name in RUN_COLUMNS.split(",")]
    values = dict(zip(names, run.row(), strict=True))
    free = ", lease_owner = NULL, lease_until_ms = 0" if not values["ready"] else ""
    conn.execute(
        f"INSERT INTO runs (run_id, place, {', '.join(names)}) VALUES (:run_id, :accepted_seq,"
        f" {', '.join(f':{name}' for name in names)}) ON CONFLICT (run_id) DO UPDATE SET"
        f" {', '.join(f'{name} = excluded.{name}' for name in names)}{free}",
        {"run_id": run_id, **values},
    )


def _rebuild_words(conn: Connection) -> int:
    conn.execute("DELETE FROM message_words")
    return dump.index(conn)
