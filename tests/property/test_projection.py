"""Random lives of runs, written by the writer: the rows are what the projection folds from the tape, column by column.

Each journal has a few runs with the lives that `test_run_machine` draws, cut into units of work at random, and between
them whatever happens to a session: titles, agents, the archive, resets, requests for embeddings, revoked grants.
"""

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from palyra.core.events import (
    ApprovalDecision,
    ApprovalRequested,
    ApprovalResolved,
    ChildEnded,
    ChildStarted,
    ModelTurnStarted,
    RunAccepted,
    RunEvent,
    RunStarted,
)
from palyra.core.ids import AgentId, RunId
from palyra.core.policy.approval import ApprovalScope
from palyra.core.projection.session_rows import SessionRows
from palyra.core.session_events import (
    GrantRevoked,
    SessionAgentBound,
    SessionArchived,
    SessionEvent,
    SessionRenamed,
    SessionReset,
    SessionUnarchived,
)
from palyra.core.spending.budget import Reservation
from palyra.journal import migrate
from palyra.journal.engines import postgres, sqlite
from palyra.journal.engines.base import Connection
from palyra.journal.engines.postgres import PostgresWriter
from palyra.journal.engines.sqlite import SqliteWriter
from palyra.journal.ledger import budget_warnings, embeddings, turns
from palyra.journal.offline import OfflineWriter
from palyra.journal.projection import replay_check
from palyra.journal.projection.rebuild import rebuild
from palyra.journal.proof.journal_proof import entries_of
from palyra.journal.stores import approvals, grants, runs, sessions
from palyra.runs.recording.replay import replay
from palyra.runs.recording.session_writer import SessionWriter
from tests.contract.journal.builders import CountedIds, a_run_id, a_session, a_session_id, later
from tests.property.test_run_machine import live
from tests.support.builders import (
    ANA,
    a_cancel,
    a_cancellation,
    an_accepted,
    embeddings_ended,
    embeddings_started,
)
from tests.support.postgres import drop_schema, new_schema

SESSION = a_session_id(1)
LIVES = 3
DERIVED = ("runs", "messages", "message_words", "approvals", "usage", "budget_warnings")


class Ids(CountedIds):
    """Ids in order, but for the call that a run begins with, whose id the life has chosen."""

    first: str | None = None

    def new(self) -> str:
        chosen, self.first = self.first, None
        return chosen or super().new()


class Journal:
    """One session, in which runs live."""

    def __init__(self, writer: OfflineWriter, dice: random.Random) -> None:
        self.writer, self.dice, self.ids, self.ms = writer, dice, Ids(), 0
        self.grants: list[str] = []
        self.requests: list[str] = []
        writer.write(lambda conn: migrate.migrate(conn, now_ms=0))
        writer.write(self.begin)

    def begin(self, conn: Connection) -> None:
        session = a_session(1, key="mail:1", label="Mail")
        writer = SessionWriter.create(conn, session, parent=None, ids=self.ids)
        assert writer is not None
        writer.close()

    def live(self, number: int) -> None:
        """Write the life of a run, behind another that ends when the life says that it starts."""
        life = live(self.dice)
        accepted, *events = (self.own(event, number) for event in life.tape)
        assert isinstance(accepted, RunAccepted)
        blocker, run_id = a_run_id(2 * number), a_run_id(2 * number + 1)
        self.writer.write(lambda conn: self.accept(conn, blocker, an_accepted()))
        self.writer.write(lambda conn: self.accept(conn, run_id, accepted))
        while events:
            if isinstance(events[0], RunStarted):
                self.writer.write(lambda conn: self.start(conn, blocker))
                del events[: 2 if accepted.reissue is not None else 1]
                continue
            until = next((at for at, event in enumerate(events) if isinstance(event, RunStarted)), len(events))
            group, events = events[: (size := self.dice.randint(1, min(6, until)))], events[size:]
            self.writer.write(lambda conn, group=group: self.add(conn, run_id, group))  # type: ignore[misc]
            if self.dice.random() < 0.2:
                self.writer.write(self.meddle)
            if self.dice.random() < 0.05:
                self.writer.write(self.check)
        self.writer.write(lambda conn: self.end(conn, blocker))

    def own(self, event: RunEvent, number: int) -> RunEvent:
        """Return an event with its own time, ids that no other life has, and at times a reservation or a grant."""
        self.ms += self.dice.randint(0, 9)
        changes: dict[str, object] = {"at": later(self.ms)}
        if isinstance(event, ApprovalRequested | ApprovalResolved):
            changes["approval_id"] = f"{number}: {event.approval_id}"
        if isinstance(event, ApprovalRequested):
            changes["tool"] = "shell.run"
        if isinstance(event, ChildStarted | ChildEnded):
            changes["child_run_id"] = RunId(f"{number}: {event.child_run_id}")
        if isinstance(event, ModelTurnStarted) and self.dice.random() < 0.7:
            changes["reserved"] = Reservation(
                input_tokens=self.ms, output_tokens=7, cost_micros=self.dice.choice((None, 3))
            )
        if isinstance(event, ApprovalResolved) and event.call_id and event.decision is ApprovalDecision.ALLOWED:
            if self.dice.random() < 0.5:
                self.grants.append(f"grant {number}.{len(self.grants)}")
                scope = self.dice.choice((ApprovalScope.SESSION, ApprovalScope.ALWAYS))
                changes |= {"grant_id": self.grants[-1], "scope": scope}
        return msgspec.structs.replace(event, **changes)

    def accept(self, conn: Connection, run_id: RunId, event: RunAccepted) -> None:
        writer = SessionWriter.open(conn, SESSION, ids=self.ids)
        writer.accept(run_id, event, first=self.dice.random() < 0.3)
        writer.close()

    def start(self, conn: Connection, blocker: RunId) -> None:
        self.ids.first = "0.0"
        self.end(conn, blocker)
        self.ids.first = None

    def end(self, conn: Connection, run_id: RunId) -> None:
        writer = SessionWriter.open(conn, SESSION, ids=self.ids)
        if runs.is_open(conn, run_id):
            writer.add(writer.add(replay(conn, run_id), a_cancel()), a_cancellation())
        writer.close()

    def add(self, conn: Connection, run_id: RunId, events: list[RunEvent]) -> None:
        writer = SessionWriter.open(conn, SESSION, ids=self.ids)
        state = replay(conn, run_id)
        for event in events:
            state = writer.add(state, event)
        writer.close()

    def meddle(self, conn: Connection) -> None:
        writer = SessionWriter.open(conn, SESSION, ids=self.ids)
        for event in self.others(conn):
            writer.note(event)
        writer.close()

    def others(self, conn: Connection) -> Iterator[SessionEvent]:
        self.ms += 1
        at, dice = later(self.ms), self.dice
        match dice.choice(("rename", "bind", "unbind", "archive", "clean", "unarchive", "embed", "embedded", "revoke")):
            case "rename":
                yield SessionRenamed(at=at, title=f"Title {self.ms}")
            case "bind":
                yield SessionAgentBound(at=at, agent_id=AgentId(f"agent {self.ms}"))
            case "unbind":
                yield SessionAgentBound(at=at)
            case "archive":
                yield SessionArchived(at=at)
            case "clean":
                session = sessions.get(conn, SESSION, ANA)
                assert session is not None
                yield SessionArchived(at=at, freed_key=session.key)
            case "unarchive":
                yield SessionUnarchived(at=at)
            case "embed":
                self.requests.append(f"request {self.ms}")
                yield msgspec.structs.replace(embeddings_started(self.requests[-1]), at=at)
            case "embedded" if self.requests:
                yield msgspec.structs.replace(embeddings_ended(request=self.requests.pop()), at=at)
            case "revoke":
                known = grants.ids(conn) & set(self.grants)
                yield from (GrantRevoked(at=at, grant_id=grant_id) for grant_id in sorted(known)[:1])
            case _:
                pass

    def reset(self, conn: Connection) -> None:
        writer = SessionWriter.open(conn, SESSION, ids=self.ids)
        writer.note(SessionReset(at=later(self.ms)))
        writer.close()

    def check(self, conn: Connection) -> None:
        """Compare every derived column with what the tape folds to."""
        rows = SessionRows(SESSION)
        messages = list(rows.fold(entry for entry, _, _ in entries_of(conn, SESSION)))
        assert sessions.row_of(conn, SESSION) == rows.session
        assert runs.rows_of(conn, SESSION) == rows.runs
        assert list(replay_check.messages_of(conn, SESSION)) == messages
        assert approvals.of_session(conn, SESSION) == {
            approval_id: approvals.as_stored(approval) for approval_id, approval in rows.approvals.items()
        }
        stored = {grant_id: grants.stored(conn, grant_id) for grant_id in grants.ids(conn)}
        assert stored == {grant_id: grants.as_stored(grant) for grant_id, grant in rows.grants.items()}
        for (root_run_id, run_id), wanted in rows.turns.items():
            assert turns.of_run(conn, root_run_id, run_id) == list(wanted.values())
        assert {turn.run_id for turn in embeddings.of_session(conn, SESSION)} <= {run_id for _, run_id in rows.turns}
        first = {budget_warnings.key_of(warned): warned for warned in reversed(rows.warnings)}
        assert budget_warnings.of_session(conn, SESSION) == {
            key: (warned.run_id, warned.at_ms) for key, warned in first.items()
        }
        assert list(replay_check.check_session(conn, SESSION)) == []


def lives(writer: OfflineWriter, seed: int, folder: Path) -> None:
    journal = Journal(writer, random.Random(seed))
    for number in range(1, LIVES + 1):
        journal.live(number)
        writer.write(journal.reset)
        writer.write(journal.check)
    writer.write(lambda conn: [conn.execute(f"DELETE FROM {table}") for table in DERIVED])
    blank = "title = 'x', agent_id = 'x', archived_ms = 1, message_count = 0, reset_seq = 0, label = NULL, key = 'x'"
    writer.write(lambda conn: conn.execute(f"UPDATE sessions SET {blank}"))
    done = rebuild(writer, folder=folder, now_ms=1)
    assert (done.problems, done.counts) == ([], 1)
    assert rebuild(writer, folder=folder, now_ms=1).differed == 0
    writer.write(journal.check)


@contextmanager
def on_sqlite(folder: Path) -> Iterator[OfflineWriter]:
    raw = sqlite.open_for_writing(folder / "journal.sqlite")
    raw.pragma("synchronous", "off")
    with closing(raw):
        yield SqliteWriter(raw)


@pytest.mark.parametrize("seed", range(24))
def test_the_rows_of_any_life_are_what_its_tape_folds_to_on_sqlite(seed: int) -> None:
    with TemporaryDirectory() as folder, on_sqlite(Path(folder)) as writer:
        lives(writer, seed, Path(folder))


@pytest.mark.parametrize("seed", range(100, 104))
def test_the_rows_of_any_life_are_what_its_tape_folds_to_on_postgres(
    postgres_server: str, seed: int, tmp_path: Path
) -> None:
    url = new_schema(postgres_server)
    try:
        with closing(postgres.connect(url)) as raw:
            lives(PostgresWriter(raw), seed, tmp_path)
    finally:
        drop_schema(url)
