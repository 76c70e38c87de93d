"""A home with a journal in which something has happened, on either engine, for the tests of its upkeep."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import psycopg

from palyra.core.event import ParentRun
from palyra.core.events import RunEvent
from palyra.core.ids import CallId, RunId, SessionId
from palyra.core.session_events import SessionArchived, SessionReset
from palyra.home import Home
from palyra.journal import migrate
from palyra.journal.engines import sqlite
from palyra.journal.engines.base import Connection, Row, Unit
from palyra.journal.offline import OfflineWriter, open_writer
from palyra.journal.proof import anchors
from palyra.journal.proof.anchors import Anchor
from palyra.journal.proof.journal_proof import verify
from palyra.journal.proof.signing_key import KeySigner, load_or_create, public_key
from palyra.journal.proof.tape_proof import ProofReport
from palyra.journal.snapshot import open_snapshot
from palyra.journal.stores import leases, meta
from palyra.runs.recording.replay import replay
from palyra.runs.recording.run_writer import write_run
from palyra.runs.recording.session_writer import SessionWriter
from palyra.settings import JournalSettings, Settings
from tests.contract.journal.builders import CountedIds, a_run_id, a_session, a_session_id, a_title
from tests.support.builders import (
    AT,
    a_cancel,
    a_cancellation,
    a_result,
    a_steer,
    a_tool_start,
    a_turn,
    a_verdict,
    an_accepted,
)
from tests.support.sqlite_file import opened

T = TypeVar("T")

JOURNAL = "01JGKK8F5E0000000000000001"
DONE: tuple[list[RunEvent], ...] = (a_turn(1, "c1"), [a_verdict("c1"), a_tool_start("c1"), a_result("c1")], a_turn(2))


class KeptHome:
    """A home whose journal a test may write to, and look into behind our back."""

    def __init__(self, path: Path, *, database_url: str | None) -> None:
        self.home = Home(path)
        self.url = database_url
        self.settings = Settings(journal=JournalSettings(database_url=database_url))
        self.ids = CountedIds()
        self._open = ExitStack()
        self._units: OfflineWriter | None = None

    def begin(self, *, schema: int | None = None) -> "KeptHome":
        """Make the home and an empty journal of a schema, the newest if none is named."""
        self.home.path.mkdir(mode=0o700, parents=True)
        if self.url is None:
            sqlite.open_for_writing(self.home.journal).close()
        self.write(lambda conn: migrate.migrate(conn, now_ms=1, upto=schema))
        self.write(lambda conn: meta.put(conn, "journal_id", JOURNAL))
        self.write(lambda conn: meta.put(conn, "public_key", self.signer.public_key))
        return self

    @property
    def signer(self) -> KeySigner:
        return load_or_create(self.home.key)

    def write(self, unit: Unit[T]) -> T:
        if self._units is None:
            self._units = self._open.enter_context(open_writer(self.home, self.settings))
        return self._units.write(unit)

    def let_go(self) -> None:
        """Close the journal, as at the end of a daemon."""
        self._units = None
        self._open.close()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with open_snapshot(self.home, self.settings) as conn:
            yield conn

    def verify(self, saved: Anchor | None = None) -> ProofReport:
        with self.reading() as conn:
            return verify(conn, saved=saved, key=public_key(self.home.key))

    def rows(self, sql: str) -> list[Row]:
        with self.reading() as conn:
            return conn.fetch(sql)

    def change(self, sql: str) -> None:
        """Change the database as somebody would who is not us."""
        if self.url is not None:
            with psycopg.connect(self.url, autocommit=True) as database:
                database.execute(sql.encode())
            return
        with opened(self.home.journal) as raw:
            raw.execute(sql).fetchall()

    # -- what happens in it

    def session(
        self, place: int, *, parent: SessionId | None = None, key: str | None = None, label: str | None = None
    ) -> SessionId:
        above = ParentRun(run_id=a_run_id(99), session_id=parent, call_id=CallId("c1"), depth=1) if parent else None

        def unit(conn: Connection) -> None:
            book = SessionWriter.create(conn, a_session(place, key=key, label=label), parent=above, ids=self.ids)
            assert book is not None
            book.note(a_title())
            book.close()

        self.write(unit)
        return a_session_id(place)

    def run(self, place: int, session_id: SessionId, *steps: Sequence[RunEvent]) -> RunId:
        """Have a run accepted, and carried through these steps if it is its turn."""
        run_id = a_run_id(place)

        def accept(conn: Connection) -> None:
            book = SessionWriter.open(conn, session_id, ids=self.ids)
            book.accept(run_id, an_accepted())
            book.close()

        self.write(accept)
        if not steps:
            return run_id

        def carry(conn: Connection) -> None:
            (lease,) = [
                lease
                for lease in leases.claim(conn, leases.RUNS, owner="home:one", now_ms=0, limit=99)
                if lease.item_id == run_id
            ]
            state = replay(conn, run_id)
            for events in steps:
                state = write_run(conn, state, events, lease=lease, ids=self.ids)
            leases.release_all(conn, leases.RUNS, owner="home:one")

        self.write(carry)
        return run_id

    def reset(self, session_id: SessionId) -> None:
        def unit(conn: Connection) -> None:
            book = SessionWriter.open(conn, session_id, ids=self.ids)
            book.note(SessionReset(at=AT))
            book.close()

        self.write(unit)

    def archive(self, session_id: SessionId, *, at: datetime = AT) -> None:
        def unit(conn: Connection) -> None:
            book = SessionWriter.open(conn, session_id, ids=self.ids)
            book.note(SessionArchived(at=at))
            book.close()

        self.write(unit)

    def anchor(self) -> Anchor:
        """Anchor everything that has moved."""

        def unit(conn: Connection) -> Anchor:
            journal_id = meta.journal_ids(conn)[-1]
            return anchors.write_anchor(
                conn, anchors.moved_tapes(conn), journal_id=journal_id, now_ms=1_000, signer=self.signer
            )

        return self.write(unit)

    def live_a_little(self) -> "KeptHome":
        """Let three sessions pass: runs that are done, cancelled, under way and queued, a reset, anchors between."""
        first, second, third = self.session(1), self.session(2), self.session(3)
        self.run(1, first, *DONE)
        self.reset(first)
        self.run(2, first, a_turn(1))
        self.anchor()
        self.run(3, second, a_turn(1, "c1"), [a_verdict("c1")], [a_cancel(), a_cancellation()])
        self.run(4, third, [a_steer()], a_turn(1, "c1", inputs=2), [a_verdict("c1"), a_tool_start("c1")])
        self.run(5, third)
        self.anchor()
        self.run(6, first, a_turn(1))
        return self
