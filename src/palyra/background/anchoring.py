"""Writes an anchor every minute if a tape has new entries, and one at shutdown."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from palyra.core.clock import Clock, to_ms
from palyra.core.errors import Unavailable
from palyra.core.events import Entry
from palyra.core.ids import SessionId
from palyra.journal.engines.base import Connection, Engine, Fact
from palyra.journal.proof import anchors
from palyra.journal.proof.anchors import MovedTape, Signer

EVERY_SECONDS = 60.0


class AnchorWriter:
    """Tracks which tapes have new entries since the last anchor."""

    def __init__(self, engine: Engine, *, journal_id: str, signer: Signer, clock: Clock) -> None:
        self._engine = engine
        self._journal_id = journal_id
        self._signer = signer
        self._clock = clock
        self._moved: set[SessionId] = set()
        engine.subscribe(self._notice)

    async def run(self) -> None:
        """Anchor what an earlier daemon left, then new entries every minute, until cancelled."""
        with suppress(Unavailable):
            left = await self._engine.read(anchors.moved_tapes)
            while left:
                self._moved.update(tape.session_id for tape in left)
                await self.drop()
                # Fewer than one anchor can list: all others have new entries since, and are anchored within a minute.
                left = await self._engine.read(anchors.moved_tapes) if len(left) == anchors.MAX_TAPES else []
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            with suppress(Unavailable):
                await self.drop()

    async def drop(self) -> None:
        """Anchor all tapes with new entries; those that could not be anchored are kept for the next time.

        Entries that arrive meanwhile wait for the next anchor: under steady load there are always some.
        """
        pending, self._moved = list(self._moved), set()
        while pending:
            part, pending = pending[: anchors.MAX_TAPES], pending[anchors.MAX_TAPES :]
            now_ms = to_ms(self._clock.now())
            try:
                await self._engine.write(lambda conn, part=part, now_ms=now_ms: self._unit(conn, part, now_ms))  # type: ignore[misc]
            except BaseException:
                self._moved.update(part, pending)
                raise

    def _unit(self, conn: Connection, session_ids: list[SessionId], now_ms: int) -> None:
        tapes: list[MovedTape] = anchors.ends_of(conn, session_ids)
        anchors.write_anchor(conn, tapes, journal_id=self._journal_id, now_ms=now_ms, signer=self._signer)

    def _notice(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, Entry):
                self._moved.add(fact.session_id)
