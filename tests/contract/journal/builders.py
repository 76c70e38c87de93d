"""Sessions, runs and tapes for the tests of the stores: each says what the test cares about, and fills in the rest."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from palyra.core.clock import to_ms
from palyra.core.events import Entry, ModelText, TapeEvent
from palyra.core.ids import PrincipalId, RunId, SessionId, ulid
from palyra.core.projection.changes import Columns
from palyra.core.run.record import RunRecord
from palyra.core.run.state import RunStatus
from palyra.core.session import Session, new_session
from palyra.core.session_events import SessionRenamed
from palyra.core.spending.usage import Usage
from palyra.journal import tape
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.engines.postgres_engine import WRITERS
from palyra.journal.engines.sqlite_engine import SqliteEngine
from palyra.journal.stores import runs, sessions
from palyra.journal.stores.runs import QueueSlot
from tests.support.builders import AGENT, ANA, AT

BEN = PrincipalId("user:ben")


def an_id(place: int) -> str:
    """Return one of many ids; a higher place sorts later."""
    return ulid(1_767_323_045_678, place.to_bytes(10, "big"))


class CountedIds:
    """Gives ids in order, from any thread."""

    def __init__(self, start: int = 1_000_000) -> None:
        self._next = start
        self._lock = threading.Lock()

    def new(self) -> str:
        with self._lock:
            self._next += 1
            return an_id(self._next)


def a_session_id(place: int = 1) -> SessionId:
    return SessionId(an_id(place))


def a_run_id(place: int = 1) -> RunId:
    return RunId(an_id(10_000 + place))


def a_session(
    place: int = 1,
    principal: PrincipalId = ANA,
    *,
    key: str | None = None,
    label: str | None = None,
    at: datetime = AT,
    parent: SessionId | None = None,
) -> Session:
    return new_session(
        a_session_id(place), principal, agent_id=AGENT, at=at, key=key, label=label, parent_session_id=parent
    )


def a_run_row(
    place: int = 1, session_id: SessionId | None = None, *, at: datetime = AT, text: str = "Hello."
) -> RunRecord:
    """Return a run as it is when it was just accepted."""
    return RunRecord(
        run_id=a_run_id(place),
        session_id=session_id or a_session_id(),
        agent_id=AGENT,
        status=RunStatus.ACCEPTED,
        input=text,
        reason=None,
        limit_reached=None,
        parent_run_id=None,
        accepted_seq=1,
        last_seq=1,
        accepted_at=at,
        ended_at=None,
        turns=0,
        tool_calls=0,
        usage=Usage(),
        cancel_requested=False,
    )


def a_title(title: str = "A talk", *, at: datetime = AT) -> SessionRenamed:
    """Return the plainest event of a session."""
    return SessionRenamed(at=at, title=title)


def a_piece(text: str = "Well.") -> ModelText:
    """Return the plainest event of a run."""
    return ModelText(at=AT, turn=1, text=text)


def later(milliseconds: int) -> datetime:
    return AT + timedelta(milliseconds=milliseconds)


# -- units


def begin(conn: Connection, place: int = 1) -> SessionId:
    """Start a session and its empty tape."""
    session = a_session(place)
    assert sessions.insert(conn, session)
    tape.begin(conn, session.session_id)
    return session.session_id


def write_down(conn: Connection, session_id: SessionId, *events: TapeEvent) -> list[Entry]:
    """Append events of the session itself."""
    head = tape.lock(conn, session_id)
    assert head is not None
    return tape.append(conn, session_id, head=head, fresh=[tape.NewEntry(None, 0, event) for event in events])


def write_down_of(conn: Connection, session_id: SessionId, run_id: RunId, *events: TapeEvent) -> list[Entry]:
    """Append events of one run."""
    head = tape.lock(conn, session_id)
    assert head is not None
    row = conn.fetch_one("SELECT COALESCE(MAX(run_seq), 0) FROM tape WHERE run_id = :run_id", {"run_id": run_id})
    assert row is not None
    fresh = [tape.NewEntry(run_id, row[0] + place, event) for place, event in enumerate(events, start=1)]
    return tape.append(conn, session_id, head=head, fresh=fresh)


def accept(
    conn: Connection, run: RunRecord, *, principal: PrincipalId = ANA, place: int = 1, ready: bool = True
) -> None:
    """Write a run's row as its acceptance does."""
    row: Columns = {
        "run_id": run.run_id,
        "session_id": run.session_id,
        "principal": principal,
        "agent_id": run.agent_id,
        "input": run.input,
        "parent_run_id": run.parent_run_id,
        "accepted_seq": run.accepted_seq,
        "accepted_ms": to_ms(run.accepted_at),
        "input_tokens": 0,
        "output_tokens": 0,
        "status": run.status.value,
        "reason": None,
        "limit_reached": None,
        "run_seq": 1,
        "last_seq": run.last_seq,
        "ended_ms": None,
        "turns": 0,
        "tool_calls": 0,
        "ready": int(ready),
        "cancel_requested": 0,
    }
    runs.insert(conn, row, QueueSlot(place))


# -- moments


@asynccontextmanager
async def occupied(engine: Engine) -> AsyncIterator[None]:
    """Keep everyone who writes busy until the block ends: what is written meanwhile must queue."""
    gate, begun = threading.Event(), threading.Semaphore(0)

    def wait(conn: Connection) -> None:
        begun.release()
        assert gate.wait(60)

    writers = 1 if isinstance(engine, SqliteEngine) else WRITERS
    waiting = [asyncio.create_task(engine.write(wait)) for _ in range(writers)]
    try:
        for _ in range(writers):
            assert await asyncio.to_thread(begun.acquire, timeout=60)
        yield
    finally:
        gate.set()
        await asyncio.gather(*waiting)


async def queued(units: Sequence[Callable[[Connection], object]], engine: Engine) -> list[object | BaseException]:
    """Have the units wait together, then let them go; return what each was answered. On SQLite they are one group."""
    async with occupied(engine):
        tasks = [asyncio.create_task(engine.write(unit)) for unit in units]
        await asyncio.sleep(0)  # each has been queued then
    return await asyncio.gather(*tasks, return_exceptions=True)
