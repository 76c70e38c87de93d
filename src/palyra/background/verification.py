"""Verifies the tapes of a running daemon by itself, and keeps what was found for status, readiness, doctor and log.

At the start only the last anchor is checked, and the tapes where it names them: little enough for a journal of any
length. All tapes are walked a while later, slowly, and then once a day.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from palyra.background.inspection import Inspection
from palyra.core.errors import PalyraError, Unavailable
from palyra.journal.engine import Connection, Engine
from palyra.journal.verify import Problem, check_ends

CODE = "tape_unverified"
FIRST_SECONDS = 5.0
"""The first turns after the start come before it."""
AGAIN_SECONDS = 60.0
EVERY_SECONDS = 24 * 3600.0
ADVICE = "`palyra journal verify` shows all; restore a backup from before, or find out who changed it."

log = logging.getLogger(__name__)


class Verification:
    """See the module. `warn` is called with each new finding."""

    def __init__(self, engine: Engine, inspection: Inspection, *, key: str) -> None:
        self._engine = engine
        self._inspection = inspection
        self._key = key
        self.found: str | None = None
        """What does not hold, and where; None as far as is known."""
        self.detail = "not verified yet"
        """How far is known."""
        self.warn: Callable[[str], None] = lambda found: None

    @property
    def code(self) -> str | None:
        """The code of what was found."""
        return CODE if self.found is not None else None

    async def check_ends(self) -> None:
        """Check what takes no time."""

        def look(conn: Connection) -> list[Problem]:
            return check_ends(conn, key=self._key)

        try:
            self._note(await self._engine.read(look))
        except PalyraError:
            raise
        except Exception as error:
            # Whatever stands in a column that we did not write makes the database or the decoder fail.
            self._found(f"the last anchor cannot be read: {error}")

    async def run(self) -> None:
        """Walk all tapes a while after the start and once a day, until cancelled."""
        await asyncio.sleep(FIRST_SECONDS)
        while True:
            try:
                report = await self._inspection.verify_in_background()
            except Unavailable:
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            except PalyraError as error:
                self._found(error.detail)
            else:
                self.found = None
                self.detail = f"{report.entries} entries verified"
                self._note(report.problems)
            await asyncio.sleep(EVERY_SECONDS)

    def _note(self, problems: Sequence[Problem]) -> None:
        if problems:
            first = problems[0]
            entry = f", entry {first.tape_seq}" if first.tape_seq is not None else ""
            place = f"session {first.session_id}{entry}: " if first.session_id is not None else ""
            self._found(f"{place}{first.what}")

    def _found(self, what: str) -> None:
        self.found = self.detail = f"The journal does not verify: {what}. {ADVICE}"
        log.error("%s", self.found, extra={"code": CODE})
        self.warn(self.found)
