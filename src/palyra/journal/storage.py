"""Whether the journal can be written: any failed write reports it, a probe finds out when it is over."""

import asyncio
import base64
import logging
import os
from contextlib import suppress

from palyra.core.clock import Clock
from palyra.core.errors import Unavailable
from palyra.journal import meta
from palyra.journal.engine import Connection, Engine, Unit

PROBE = "probe"
PROBE_BYTES = 1024 * 1024
"""As much as the largest request: a few bytes fit onto a full disk now and then, which says nothing about a message."""
PROBE_SECONDS = 2.0
STEADY_SECONDS = 6.0
"""Longer than any run waits for its next try: if none met trouble for so long, the trouble is over."""

log = logging.getLogger(__name__)


class Storage:
    """The state of the journal's storage, as status, readiness, metrics and log show it."""

    def __init__(self, engine: Engine, *, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self.trouble: str | None = None
        """The code of what keeps the journal from being written, None while all is well."""
        self.detail = ""
        """What is wrong, and what to do about it; empty while all is well."""
        self._logged: str | None = None
        self._well_since = clock.monotonic()
        engine.on_failure(self.note)

    def note(self, error: Unavailable) -> None:
        """Take notice of a write that failed for want of the journal; only the first of a kind is logged."""
        self.trouble, self.detail = error.code, error.detail
        if self.trouble != self._logged:
            log.error("%s", error, extra={"code": self.trouble})
            self._logged = self.trouble

    async def probe(self) -> None:
        """Find out whether the journal can be written again, by writing as much as a large message to it."""
        # Random, so that no database stores it in less room than it has. Written by itself: what is written and
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
        """Write what could not be written when the journal was opened, as soon as it can be."""
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
            log.warning("the journal can be written again; work goes on")
            self._logged = None


def _clear(conn: Connection) -> None:
    meta.put(conn, PROBE, "")
