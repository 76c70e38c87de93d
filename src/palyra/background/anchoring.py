"""Drops an anchor each minute if a tape has moved, and one at the end."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from palyra.core.clock import Clock, to_ms
from palyra.core.errors import Unavailable
from palyra.core.events import Entry
from palyra.core.ids import SessionId
from palyra.journal import anchors
from palyra.journal.anchors import Moved, Signer
from palyra.journal.engine import Connection, Engine, Fact

EVERY_SECONDS = 60.0


class Anchoring:
    """Knows which tapes have moved since the last anchor."""

    def __init__(self, engine: Engine, *, journal_id: str, signer: Signer, clock: Clock) -> None:
        self._engine = engine
        self._journal_id = journal_id
        self._signer = signer
        self._clock = clock
        self._moved: set[SessionId] = set()
        engine.subscribe(self._notice)

    async def run(self) -> None:
        """Anchor what an earlier daemon left, then each minute what has moved, until cancelled."""
        with suppress(Unavailable):
            left = await self._engine.read(anchors.moved)
            while left:
                self._moved.update(tape.session_id for tape in left)
                await self.drop()
                # Fewer than one anchor holds: the rest has moved since, and has its minute.
                left = await self._engine.read(anchors.moved) if len(left) == anchors.MOST_TAPES else []
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            with suppress(Unavailable):
                await self.drop()

    async def drop(self) -> None:
        """Anchor everything that has moved so far; what could not be anchored is kept for the next time.

        What moves while this is under way waits for the next anchor: under steady load something always has.
        """
        pending, self._moved = list(self._moved), set()
        while pending:
            part, pending = pending[: anchors.MOST_TAPES], pending[anchors.MOST_TAPES :]
            now_ms = to_ms(self._clock.now())
            try:
                await self._engine.write(lambda conn, part=part, now_ms=now_ms: self._unit(conn, part, now_ms))  # type: ignore[misc]
            except BaseException:
                self._moved.update(part, pending)
                raise

    def _unit(self, conn: Connection, session_ids: list[SessionId], now_ms: int) -> None:
        tapes: list[Moved] = anchors.ends_of(conn, session_ids)
        anchors.drop(conn, tapes, journal_id=self._journal_id, now_ms=now_ms, signer=self._signer)

    def _notice(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, Entry):
                self._moved.add(fact.session_id)
