"""What the rows should say: each tape replayed from its first entry, and compared with what stands in the tables.

The replay knows the run machine; which events are messages it is told by its caller (`MessageOf`), since that is
decided on a higher floor.
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
from palyra.core.machine import begin, evolve
from palyra.core.prompt import Message
from palyra.core.run import RunState, RunStatus
from palyra.home import Home
from palyra.journal import blobs, messages, migrate, rotated, spent, sqlite
from palyra.journal.anchors import Anchor
from palyra.journal.asked import (
    Asked,
    archived,
    has_rows,
    lost_questions,
    strange_grants,
    wrong_grants,
    wrong_questions,
)
from palyra.journal.engine import Connection, Row
from palyra.journal.exported import verify_file
from palyra.journal.head import Head
from palyra.journal.messages import Kept
from palyra.journal.signing import public_key
from palyra.journal.spent import Spent
from palyra.journal.verify import Problem, Report, entries_of, opened, verify
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
class RunSum:
    """What the entries of a run add up to."""

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
class Replay:
    """A tape, replayed entry by entry; what it adds up to is known when `messages` is exhausted."""

    session_id: SessionId
    runs: dict[RunId, RunSum] = field(default_factory=dict)
    message_count: int = 0
    reset_count: int = 0
    reset_seq: int = 0
    active: RunId | None = None
    spent: Spent = field(init=False)

    def __post_init__(self) -> None:
        self.spent = Spent(self.session_id)

    def messages(self, entries: Iterable[Entry], message_of: MessageOf) -> Iterator[tuple[PrincipalId, Kept]]:
        """Yield the conversation, each message with whose it is; raise `Unreplayable` at the first misfit."""
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

    def _take(self, entry: Entry, message_of: MessageOf) -> Kept | None:
        event = entry.event
        if isinstance(event, SessionEvent):
            if isinstance(event, SessionReset):
                self.reset_count, self.reset_seq = self.message_count, entry.tape_seq
            self.spent.note_session(event)
            return None
        assert entry.run_id is not None, "it belongs to no run"
        if isinstance(event, RunAccepted) and entry.run_id not in self.runs:
            self.runs[entry.run_id] = RunSum(
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
            # What a run carries along is of no use once it has ended, and a long session has many.
            run.state = msgspec.structs.replace(run.state, text=(), calls=())
        if message is None:
            return None
        return Kept(entry.tape_seq, entry.run_id, message, messages.tokens_of(message), said.labels, to_ms(said.at))

    def _note(self, run: RunSum, event: RunEvent) -> RunEvent:
        """Take in what a run's row shows of an event; return the event whose message counts at this place."""
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
class Examined:
    """A journal that was looked at from all sides."""

    report: Report
    """Its tapes and anchors."""
    file: tuple[Problem, ...]
    """What the database finds wrong with its own file, and content that is not what it was when it was kept."""
    rows: tuple[Problem, ...]
    """Rows that are not what the tapes add up to; they can be rebuilt."""
    archive: tuple[Problem, ...]
    """Tapes that were moved away and are not where they should be."""

    @property
    def ok(self) -> bool:
        return self.report.ok and not (self.file or self.rows or self.archive)


def examine(home: Home, settings: Settings, *, saved: Anchor | None = None, message_of: MessageOf) -> Examined:
    """Verify a home's journal, and check the file, the rows that follow from the tapes, and the archive."""
    with opened(home, settings) as conn:
        file = [Problem(None, None, fault) for fault in _faults(conn)]
        report = verify(conn, saved=saved, key=public_key(home.key))
        # A tape that does not hold adds up to nothing that rows could be compared with.
        rows = check(conn, message_of, folder=home.path) if report.ok else []
        return Examined(report, tuple(file), tuple(rows), tuple(check_archive(conn, home.path)))


def _faults(conn: Connection) -> Iterator[str]:
    if conn.dialect.name == "sqlite":
        yield from sqlite.faults(conn)
    if migrate.current(conn) >= blobs.SINCE_SCHEMA:
        yield from blobs.check(conn)


def check(conn: Connection, message_of: MessageOf, *, folder: Path) -> list[Problem]:
    """Compare the rows of every session with its tape; name the first difference of each kind in each.

    The archive is below the folder: rows of questions and grants outlive the tapes that they follow from.
    """
    problems = [Problem(session_id, None, "the session has a tape, but no row") for session_id in _without_row(conn)]
    for session_id in sessions_of(conn):
        problems.extend(check_session(conn, session_id, message_of))
    problems.extend(check_words(conn))
    if has_rows(conn):
        problems.extend(_check_asked(conn, folder))
    if spent.has_rows(conn):
        problems.extend(_check_spent(conn))
    return problems


def check_session(conn: Connection, session_id: SessionId, message_of: MessageOf) -> Iterator[Problem]:
    """Compare one session's rows with its tape."""
    replay, asked = Replay(session_id), Asked(session_id)
    entries = asked.follow(entry for entry, _, _ in entries_of(conn, session_id))
    stored = messages_of(conn, session_id)
    differs: int | None = None
    try:
        for wanted in replay.messages(entries, message_of):
            if differs is None and next(stored, None) != wanted:
                differs = wanted[1].tape_seq
    except Unreplayable as error:
        yield Problem(session_id, error.tape_seq, str(error))
        return
    if differs is None and (extra := next(stored, None)) is not None:
        differs = extra[1].tape_seq
    if differs is not None:
        yield Problem(session_id, differs, "the message of this entry is missing, wrong or too many")
    if session_row(conn, session_id) != replay.row():
        yield Problem(session_id, None, "the session's counts are not those of its tape")
    for run_id, place in differing_runs(conn, replay):
        yield Problem(session_id, place, f"the row of run {run_id} is not what its tape adds up to")
    if has_rows(conn):
        yield from _differing(conn, asked)
    if spent.has_rows(conn):
        for (_, used_by), _ in spent.wrong_runs(conn, replay.spent):
            yield Problem(session_id, None, f"what run {used_by} used is not in the ledger as its tape has it")
        for told in spent.untold(conn, replay.spent):
            budget = told.warned.overdrawn.budget
            yield Problem(session_id, None, f"no row tells of the warning of budget {budget}")


def _differing(conn: Connection, asked: Asked) -> Iterator[Problem]:
    for approval_id, _ in wrong_questions(conn, asked):
        yield Problem(asked.session_id, None, f"the row of question {approval_id} is not what its tape adds up to")
    for grant in wrong_grants(conn, asked):
        yield Problem(asked.session_id, None, f"the row of grant {grant.grant_id} is not what was answered")


def _check_asked(conn: Connection, folder: Path) -> Iterator[Problem]:
    for _, asked in archived(conn, folder):
        if asked is not None:
            yield from _differing(conn, asked)
    for approval_id, session_id in lost_questions(conn):
        yield Problem(session_id, None, f"question {approval_id} is of a session that never was")
    for grant_id in sorted(strange_grants(conn, folder)):
        yield Problem(None, None, f"nobody has given grant {grant_id}")


def _check_spent(conn: Connection) -> Iterator[Problem]:
    for run_id, session_id in spent.strays(conn):
        yield Problem(SessionId(session_id), None, f"the ledger has turns of run {run_id}, which never was")
    for account in spent.wrong_accounts(conn):
        yield Problem(None, None, f"the account of {account.scope} in {account.period} is not the sum of its turns")


def differing_runs(conn: Connection, replay: Replay) -> Iterator[tuple[RunId, int | None]]:
    """Yield the session's runs whose rows are missing, wrong or too many, and where each begins."""
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
    """Return what the session's row says of its tape."""
    row = conn.fetch_one(
        f"SELECT {SESSION_COLUMNS} FROM sessions WHERE session_id = :session_id", {"session_id": session_id}
    )
    return tuple(row) if row is not None else None


def messages_of(conn: Connection, session_id: SessionId) -> Iterator[tuple[PrincipalId, Kept]]:
    """Yield the messages of a session as they stand, in slices."""
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
    moved = rotated.all_of(conn)
    for row in conn.fetch(
        "SELECT h.session_id FROM heads h LEFT JOIN sessions s ON s.session_id = h.session_id"
        " WHERE s.session_id IS NULL ORDER BY h.session_id"
    ):
        if row[0] not in moved:
            yield SessionId(row[0])


def check_words(conn: Connection) -> Iterator[Problem]:
    """Compare the full-text index with the messages."""
    found = "SELECT session_id, tape_seq FROM message_words"
    wanted = "SELECT session_id, tape_seq FROM messages WHERE role <> 'tool' AND text <> ''"
    for first, second, what in (
        (wanted, found, "a message is missing from the search index"),
        (found, wanted, "the search index knows a message that is not there"),
    ):
        row = conn.fetch_one(f"{first} EXCEPT {second} ORDER BY 1, 2 LIMIT 1")
        if row is not None:
            yield Problem(SessionId(row[0]), row[1], what)
    counted = conn.fetch_one(f"SELECT (SELECT COUNT(*) FROM ({found}) f), (SELECT COUNT(*) FROM ({wanted}) w)")
    if counted is not None and counted[0] > counted[1]:
        yield Problem(None, None, "the search index knows messages twice")


def verify_with_archive(home: Home, settings: Settings, *, saved: Anchor | None = None) -> Report:
    """Verify a home's journal and the tapes that were moved out of it: a record of a move proves nothing by itself."""
    with opened(home, settings) as conn:
        return verify_all(conn, home, saved=saved)


def verify_all(conn: Connection, home: Home, *, saved: Anchor | None = None) -> Report:
    """Verify what a connection's snapshot of the home's journal holds, and the tapes that were moved out of it."""
    report = verify(conn, saved=saved, key=public_key(home.key))
    return replace(report, problems=(*report.problems, *check_archive(conn, home.path)))


def check_archive(conn: Connection, folder: Path) -> Iterator[Problem]:
    """Check that each tape that was moved away is in the archive below a folder, whole and provable."""
    for session_id, record in rotated.all_of(conn).items():
        path = folder / record.file
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            proof = verify_file(path)
        except (OSError, PalyraError):
            yield Problem(session_id, None, f"its tape was moved to {record.file}, which can not be read")
            continue
        if digest != record.sha256:
            yield Problem(session_id, None, f"its tape was moved to {record.file}, and that file was changed")
        elif not proof.report.ok or proof.heads.get(session_id) != Head(record.tape_seq, record.hash):
            yield Problem(session_id, None, f"its tape was moved to {record.file}, which does not prove it")
