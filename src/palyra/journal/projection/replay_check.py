"""Replays each tape from its first entry, and compares the result with the derived tables.

The replay knows the run machine; its caller says which events are messages (`MessageOf`), since a higher layer
decides that.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from palyra.core.clock import to_ms
from palyra.core.errors import PalyraError
from palyra.core.events import (
    Entry,
    ModelTurnEnded,
    RunAccepted,
    RunCancelled,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunStarted,
    SessionEvent,
    SessionReset,
)
from palyra.core.ids import PrincipalId, RunId, SessionId
from palyra.core.model.prompt import Message
from palyra.core.run.machine import begin, evolve
from palyra.core.run.state import RunState, RunStatus
from palyra.home import Home
from palyra.journal import migrate
from palyra.journal.content import blobs
from palyra.journal.engines import sqlite
from palyra.journal.engines.base import Connection, Row
from palyra.journal.engines.tape_head import TapeHead
from palyra.journal.projection import ledger_check
from palyra.journal.projection.approvals_check import (
    SessionApprovals,
    archived_approvals,
    has_rows,
    orphaned_approvals,
    orphaned_grants,
    wrong_approvals,
    wrong_grants,
)
from palyra.journal.projection.ledger_check import SessionSpending
from palyra.journal.proof.anchors import Anchor
from palyra.journal.proof.export_proof import verify_file
from palyra.journal.proof.signing_key import public_key
from palyra.journal.proof.tape_proof import ProofProblem, ProofReport, entries_of, open_snapshot, verify
from palyra.journal.stores import messages, rotated_tapes
from palyra.journal.stores.messages import StoredMessage
from palyra.settings import Settings

MessageOf = Callable[[RunState, RunEvent], Message | None]

INPUT_SHOWN = 200
SLICE = 500
RUN_COLUMNS = (
    "session_id, principal, agent_id, status, input, reason, limit_reached, parent_run_id, run_seq, accepted_seq,"
    " last_seq, accepted_ms, ended_ms, turns, tool_calls, input_tokens, output_tokens, ready, cancel_requested"
)
SESSION_COLUMNS = "message_count, reset_count, reset_seq, active_run_id"


class Unreplayable(Exception):
    """An entry does not fit what stands before it."""

    def __init__(self, tape_seq: int, what: str) -> None:
        super().__init__(what)
        self.tape_seq = tape_seq


@dataclass(slots=True)
class ReplayedRun:
    """The result of replaying the entries of a run."""

    state: RunState
    accepted: RunAccepted | None
    """Kept until the run starts, when its input becomes a message."""
    input: str
    accepted_seq: int
    accepted_ms: int
    last_seq: int
    input_tokens: int = 0
    output_tokens: int = 0
    ended_ms: int | None = None
    reason: str | None = None

    def row(self) -> Row:
        """Return the values of `RUN_COLUMNS`."""
        state = self.state
        idle = self.ended_ms is not None or state.status is RunStatus.WAITING
        return (
            state.session_id,
            state.principal,
            state.agent_id,
            state.status.value,
            self.input,
            self.reason,
            state.limit.value if state.limit else None,
            state.parent.run_id if state.parent else None,
            state.run_seq,
            self.accepted_seq,
            self.last_seq,
            self.accepted_ms,
            self.ended_ms,
            state.turns,
            state.executed,
            self.input_tokens,
            self.output_tokens,
            int(state.started and not idle),
            int(state.cancel is not None),
        )


@dataclass(slots=True)
class SessionReplay:
    """A tape, replayed entry by entry; the result is complete when `messages` is exhausted."""

    session_id: SessionId
    runs: dict[RunId, ReplayedRun] = field(default_factory=dict)
    message_count: int = 0
    reset_count: int = 0
    reset_seq: int = 0
    active: RunId | None = None
    spent: SessionSpending = field(init=False)

    def __post_init__(self) -> None:
        self.spent = SessionSpending(self.session_id)

    def messages(self, entries: Iterable[Entry], message_of: MessageOf) -> Iterator[tuple[PrincipalId, StoredMessage]]:
        """Yield the messages, each with its principal; raise `Unreplayable` at the first entry that does not fit."""
        for entry in entries:
            try:
                kept = self._take(entry, message_of)
            except (PalyraError, msgspec.DecodeError, AssertionError, KeyError) as error:
                raise Unreplayable(entry.tape_seq, f"this entry does not fit those before it: {error}") from error
            if kept is not None:
                self.message_count += 1
                yield self.runs[kept.run_id].state.principal, kept

    def row(self) -> Row:
        """Return the values of `SESSION_COLUMNS`."""
        return (self.message_count, self.reset_count, self.reset_seq, self.active)

    def _take(self, entry: Entry, message_of: MessageOf) -> StoredMessage | None:
        event = entry.event
        if isinstance(event, SessionEvent):
            if isinstance(event, SessionReset):
                self.reset_count, self.reset_seq = self.message_count, entry.tape_seq
            self.spent.note_session(event)
            return None
        assert entry.run_id is not None, "it belongs to no run"
        if isinstance(event, RunAccepted) and entry.run_id not in self.runs:
            self.runs[entry.run_id] = ReplayedRun(
                state=begin(entry.run_id, self.session_id, event),
                accepted=event,
                input=event.text[:INPUT_SHOWN],
                accepted_seq=entry.tape_seq,
                accepted_ms=to_ms(event.at),
                last_seq=entry.tape_seq,
            )
            return None
        run = self.runs[entry.run_id]
        before, run.state = run.state, evolve(run.state, event)
        self.spent.note(before, event)
        run.last_seq = entry.tape_seq
        said = self._note(run, event)
        message = message_of(run.state, said)
        if run.ended_ms is not None:
            # The texts and calls of a run are not needed once it has ended, and a long session has many runs.
            run.state = msgspec.structs.replace(run.state, text=(), calls=())
        if message is None:
            return None
        return StoredMessage(
            entry.tape_seq, entry.run_id, message, messages.tokens_of(message), said.labels, to_ms(said.at)
        )

    def _note(self, run: ReplayedRun, event: RunEvent) -> RunEvent:
        """Update the run from an event; return the event whose message belongs at this position."""
        match event:
            case RunStarted():
                self.active = run.state.run_id
                accepted, run.accepted = run.accepted, None
                return accepted or event
            case ModelTurnEnded(usage=usage):
                run.input_tokens += usage.input_tokens
                run.output_tokens += usage.output_tokens
            case RunCompleted() | RunFailed() | RunCancelled():
                run.ended_ms = to_ms(event.at)
                run.reason = None if isinstance(event, RunCompleted) else event.reason
                run.accepted = None
                if self.active == run.state.run_id:
                    self.active = None
            case _:
                pass
        return event


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


def examine(
    home: Home, settings: Settings, *, saved: Anchor | None = None, message_of: MessageOf
) -> JournalExamination:
    """Verify a home's journal, and check the file, the derived rows, and the archive."""
    with open_snapshot(home, settings) as conn:
        file = [ProofProblem(None, None, fault) for fault in _faults(conn)]
        report = verify(conn, saved=saved, key=public_key(home.key))
        # Rows cannot be compared with a tape that does not verify.
        rows = check(conn, message_of, folder=home.path) if report.ok else []
        return JournalExamination(report, tuple(file), tuple(rows), tuple(check_archive(conn, home.path)))


def _faults(conn: Connection) -> Iterator[str]:
    if conn.dialect.name == "sqlite":
        yield from sqlite.file_problems(conn)
    if migrate.current(conn) >= blobs.SINCE_SCHEMA:
        yield from blobs.check(conn)


def check(conn: Connection, message_of: MessageOf, *, folder: Path) -> list[ProofProblem]:
    """Compare the rows of every session with its tape; report the first difference of each kind in each.

    The archive is below the folder: rows of approval requests and grants outlive their tapes.
    """
    problems = [
        ProofProblem(session_id, None, "the session has a tape, but no row") for session_id in _without_row(conn)
    ]
    for session_id in sessions_of(conn):
        problems.extend(check_session(conn, session_id, message_of))
    problems.extend(check_search_index(conn))
    if has_rows(conn):
        problems.extend(_check_grants(conn, folder))
    if ledger_check.has_rows(conn):
        problems.extend(_check_spent(conn))
    return problems


def check_session(conn: Connection, session_id: SessionId, message_of: MessageOf) -> Iterator[ProofProblem]:
    """Compare one session's rows with its tape."""
    replay, asked = SessionReplay(session_id), SessionApprovals(session_id)
    entries = asked.follow(entry for entry, _, _ in entries_of(conn, session_id))
    stored = messages_of(conn, session_id)
    differs: int | None = None
    try:
        for wanted in replay.messages(entries, message_of):
            if differs is None and next(stored, None) != wanted:
                differs = wanted[1].tape_seq
    except Unreplayable as error:
        yield ProofProblem(session_id, error.tape_seq, str(error))
        return
    if differs is None and (extra := next(stored, None)) is not None:
        differs = extra[1].tape_seq
    if differs is not None:
        yield ProofProblem(session_id, differs, "the message of this entry is missing, wrong or too many")
    if session_row(conn, session_id) != replay.row():
        yield ProofProblem(session_id, None, "the session's counts are not those of its tape")
    for run_id, place in differing_runs(conn, replay):
        yield ProofProblem(session_id, place, f"the row of run {run_id} is not what its tape adds up to")
    if has_rows(conn):
        yield from _differing(conn, asked)
    if ledger_check.has_rows(conn):
        for (_, used_by), _ in ledger_check.wrong_runs(conn, replay.spent):
            yield ProofProblem(session_id, None, f"what run {used_by} used is not in the ledger as its tape has it")
        for told in ledger_check.missing_warnings(conn, replay.spent):
            budget = told.warned.overdrawn.budget
            yield ProofProblem(session_id, None, f"no row tells of the warning of budget {budget}")


def _differing(conn: Connection, asked: SessionApprovals) -> Iterator[ProofProblem]:
    for approval_id, _ in wrong_approvals(conn, asked):
        yield ProofProblem(asked.session_id, None, f"the row of question {approval_id} is not what its tape adds up to")
    for grant in wrong_grants(conn, asked):
        yield ProofProblem(asked.session_id, None, f"the row of grant {grant.grant_id} is not what was answered")


def _check_grants(conn: Connection, folder: Path) -> Iterator[ProofProblem]:
    for _, asked in archived_approvals(conn, folder):
        if asked is not None:
            yield from _differing(conn, asked)
    for approval_id, session_id in orphaned_approvals(conn):
        yield ProofProblem(session_id, None, f"question {approval_id} is of a session that never was")
    for grant_id in sorted(orphaned_grants(conn, folder)):
        yield ProofProblem(None, None, f"nobody has given grant {grant_id}")


def _check_spent(conn: Connection) -> Iterator[ProofProblem]:
    for run_id, session_id in ledger_check.orphaned_turns(conn):
        yield ProofProblem(SessionId(session_id), None, f"the ledger has turns of run {run_id}, which never was")
    for account in ledger_check.wrong_accounts(conn):
        yield ProofProblem(
            None, None, f"the account of {account.scope} in {account.period} is not the sum of its turns"
        )


def differing_runs(conn: Connection, replay: SessionReplay) -> Iterator[tuple[RunId, int | None]]:
    """Yield the session's runs whose rows are missing, wrong or superfluous, and where each begins."""
    rows = {
        RunId(row[0]): tuple(row[1:])
        for row in conn.fetch(
            f"SELECT run_id, {RUN_COLUMNS} FROM runs WHERE session_id = :session_id", {"session_id": replay.session_id}
        )
    }
    for run_id, run in replay.runs.items():
        if rows.pop(run_id, None) != run.row():
            yield run_id, run.accepted_seq
    for run_id in rows:
        yield run_id, None


def session_row(conn: Connection, session_id: SessionId) -> Row | None:
    """Return the values of the session's row that are derived from its tape."""
    row = conn.fetch_one(
        f"SELECT {SESSION_COLUMNS} FROM sessions WHERE session_id = :session_id", {"session_id": session_id}
    )
    return tuple(row) if row is not None else None


def messages_of(conn: Connection, session_id: SessionId) -> Iterator[tuple[PrincipalId, StoredMessage]]:
    """Yield the stored messages of a session, in slices."""
    after = 0
    while page := messages.owned(conn, session_id, after_seq=after, limit=SLICE):
        yield from page
        after = page[-1][1].tape_seq


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
    found = "SELECT session_id, tape_seq FROM message_words"
    wanted = "SELECT session_id, tape_seq FROM messages WHERE role <> 'tool' AND text <> ''"
    for first, second, what in (
        (wanted, found, "a message is missing from the search index"),
        (found, wanted, "the search index knows a message that is not there"),
    ):
        row = conn.fetch_one(f"{first} EXCEPT {second} ORDER BY 1, 2 LIMIT 1")
        if row is not None:
            yield ProofProblem(SessionId(row[0]), row[1], what)
    counted = conn.fetch_one(f"SELECT (SELECT COUNT(*) FROM ({found}) f), (SELECT COUNT(*) FROM ({wanted}) w)")
    if counted is not None and counted[0] > counted[1]:
        yield ProofProblem(None, None, "the search index knows messages twice")


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
            yield ProofProblem(session_id, None, f"its tape was moved to {record.file}, which can not be read")
            continue
        if digest != record.sha256:
            yield ProofProblem(session_id, None, f"its tape was moved to {record.file}, and that file was changed")
        elif not proof.report.ok or proof.heads.get(session_id) != TapeHead(record.tape_seq, record.hash):
            yield ProofProblem(session_id, None, f"its tape was moved to {record.file}, which does not prove it")
