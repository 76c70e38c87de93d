"""Whether the journal can be written: failed writes report a problem, a probe finds out when it is over."""

import asyncio
import base64
import logging
import os
from contextlib import suppress

from palyra.core.clock import Clock
from palyra.core.errors import Unavailable
from palyra.journal.engines.base import Connection, Engine, Unit
from palyra.journal.stores import meta

PROBE = "probe"
PROBE_BYTES = 1024 * 1024
"""As large as the largest request: a few bytes may still fit on a full disk, but a message would not."""
PROBE_SECONDS = 2.0
STEADY_SECONDS = 6.0
"""Longer than any run waits for its next attempt: if no write failed for so long, the problem is over."""

log = logging.getLogger(__name__)


class Storage:
    """The state of the journal's storage, as status, readiness, metrics and log show it."""

    def __init__(self, engine: Engine, *, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self.trouble: str | None = None
        """The code of the problem that keeps the journal from being written, None if there is none."""
        self.detail = ""
        """What is wrong, and what to do about it; empty if nothing is."""
        self._logged: str | None = None
        self._well_since = clock.monotonic()
        engine.on_failure(self.note)

    def note(self, error: Unavailable) -> None:
        """Record a write that failed because of the storage; only the first of a kind is logged."""
        self.trouble, self.detail = error.code, error.detail
        if self.trouble != self._logged:
            log.error("%s", error, extra={"code": self.trouble})
            self._logged = self.trouble

    async def probe(self) -> None:
        """Find out whether the journal can be written again, by writing as much as a large message to it."""
        # Random, so that no database can compress it. Written in its own transaction: data that is written and
        # deleted in one transaction may never reach the disk.
        text = base64.b64encode(os.urandom(PROBE_BYTES * 3 // 4)).decode()
        try:
            await self._engine.write(lambda conn: meta.put(conn, PROBE, text))
            await self._engine.write(_clear)
        except Unavailable as error:
            self.note(error)
        else:
            self.trouble, self.detail = None, ""
            self._well_since = self._clock.monotonic()

    async def catch_up(self, unit: Unit[object]) -> None:
        """Write the unit that could not be written when the journal was opened, as soon as that is possible."""
        while True:
            await self.probe()
            if self.trouble is None:
                with suppress(Unavailable):
                    await self._engine.write(unit)
                    return
            await asyncio.sleep(PROBE_SECONDS)

    def log_if_over(self) -> None:
        """Log once that the journal can be written again, if it stays so: a disk may fill up again at once."""
        steady = self._clock.monotonic() - self._well_since >= STEADY_SECONDS
        if self._logged is not None and self.trouble is None and steady:
            log.warning("the journal is writable again; work continues")
            self._logged = None


def _clear(conn: Connection) -> None:
    meta.put(conn, PROBE, "")
