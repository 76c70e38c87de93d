"""What runs leave behind, written by the same door that they use: sessions with turns in them, runs under way."""

from collections.abc import Sequence
from dataclasses import dataclass

from palyra.core.clock import to_ms
from palyra.core.events import (
    ContextAssembled,
    ModelText,
    ModelTurnEnded,
    ModelTurnStarted,
    RunAccepted,
    RunCompleted,
    RunEvent,
)
from palyra.core.ids import AgentId, RunId, SessionId
from palyra.core.limits import Limits
from palyra.core.model.prompt import StopReason
from palyra.core.run.state import RunState
from palyra.core.session import Session
from palyra.core.spending.usage import Usage
from palyra.daemon.parts.journal_setup import OWNER
from palyra.journal.engines.base import Connection
from palyra.journal.stores import agents, leases
from palyra.journal.stores.leases import Lease
from palyra.runs.recording.replay import replay
from palyra.runs.recording.run_writer import write_run
from palyra.runs.recording.session_writer import SessionWriter
from tests.bench.journal import Journal

CARRIER = "bench"
UNIT_TURNS = 50
LABELS = ("owner",)
MODEL = "model:scripted"


@dataclass(slots=True)
class Carried:
    """A run whose model is speaking, and the lease of its carrier."""

    state: RunState
    lease: Lease


@dataclass(frozen=True, slots=True)
class Past:
    """Writes what might have happened: so much was said in each turn."""

    journal: Journal
    agent_id: AgentId
    text: str
    answer: str

    @classmethod
    async def of(cls, journal: Journal, *, text: str, answer: str) -> "Past":
        """Begin with the agent that every turn was answered by."""
        agent = await journal.engine.read(lambda conn: agents.default(conn, OWNER))
        assert agent is not None
        return cls(journal, agent.agent_id, text, answer)

    async def carried_runs(self, count: int) -> list[Carried]:
        """Begin runs, each in a session of its own, and carry them to where the model speaks."""
        await self.sessions([f"carried-{number}" for number in range(count)], turns=0)

        def unit(conn: Connection) -> list[Carried]:
            now_ms = to_ms(self.journal.clock.now())
            taken = leases.claim(conn, leases.RUNS, owner=CARRIER, now_ms=now_ms, limit=count)
            return [self._speaking(conn, lease) for lease in taken]

        return await self.journal.engine.write(unit)

    async def sessions(self, keys: Sequence[str], *, turns: int) -> None:
        """Add sessions that have seen so many turns; with none, each has a run that nobody carries yet."""
        for start in range(0, len(keys), UNIT_TURNS):
            part = {key: SessionId(self.journal.ids.new()) for key in keys[start : start + UNIT_TURNS]}
            await self.journal.engine.write(lambda conn, part=part: self._begin(conn, part, turns))  # type: ignore[misc]
            for session_id in part.values():
                for done in range(UNIT_TURNS, turns, UNIT_TURNS):
                    count = min(UNIT_TURNS, turns - done)
                    await self.journal.engine.write(
                        lambda conn, session_id=session_id, count=count: self._go_on(  # type: ignore[misc]
                            conn, session_id, count
                        )
                    )

    def _begin(self, conn: Connection, part: dict[str, SessionId], turns: int) -> None:
        for key, session_id in part.items():
            book = SessionWriter.create(conn, self._session(key, session_id), parent=None, ids=self.journal.ids)
            assert book is not None, f"there is a session {key} already"
            if turns:
                self._talk(book, min(turns, UNIT_TURNS))
            else:
                self._accept(book)
            book.close()

    def _go_on(self, conn: Connection, session_id: SessionId, turns: int) -> None:
        book = SessionWriter.open(conn, session_id, ids=self.journal.ids)
        self._talk(book, turns)
        book.close()

    def _talk(self, book: SessionWriter, turns: int) -> None:
        for _ in range(turns):
            state = self._accept(book)
            for event in (*self._asked(), *self._answered()):
                state = book.add(state, event)

    def _accept(self, book: SessionWriter) -> RunState:
        event = RunAccepted(
            at=self.journal.clock.now(),
            actor=OWNER,
            labels=LABELS,
            text=self.text,
            principal=OWNER,
            agent_id=self.agent_id,
            limits=Limits(),
            channel="http",
        )
        return book.accept(RunId(self.journal.ids.new()), event)

    def _speaking(self, conn: Connection, lease: Lease) -> Carried:
        state = replay(conn, RunId(lease.item_id))
        return Carried(write_run(conn, state, self._asked(), lease=lease, ids=self.journal.ids), lease)

    def _asked(self) -> list[RunEvent]:
        at = self.journal.clock.now()
        return [
            ContextAssembled(
                at=at,
                labels=LABELS,
                inputs=1,
                first_seq=1,
                last_seq=1,
                messages=1,
                dropped=0,
                estimated_tokens=100,
                window_tokens=100_000,
                digest="0" * 64,
            ),
            ModelTurnStarted(at=at, labels=LABELS, turn=1, provider="scripted", model="scripted"),
        ]

    def _answered(self) -> list[RunEvent]:
        at, usage = self.journal.clock.now(), Usage(input_tokens=1, output_tokens=1)
        return [
            ModelText(at=at, actor=MODEL, labels=LABELS, turn=1, text=self.answer),
            ModelTurnEnded(at=at, actor=MODEL, labels=LABELS, turn=1, stop=StopReason.END, usage=usage),
            RunCompleted(at=at),
        ]

    def _session(self, key: str, session_id: SessionId) -> Session:
        now = self.journal.clock.now()
        return Session(
            session_id=session_id,
            principal=OWNER,
            agent_id=None,
            key=key,
            label=None,
            title=key,  # without one, each would leave a task behind
            created_at=now,
            updated_at=now,
            archived_at=None,
            reset_seq=0,
            active_run_id=None,
            parent_session_id=None,
        )
