"""Verifies the tapes of a running daemon in the background, and reports problems to status, readiness, doctor and log.

The start checks only the last anchor, and the tapes at the entries it names: this is quick for a journal of any
length. All tapes are verified a while later, slowly, and then once a day.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from palyra.background.journal_inspection import JournalInspector
from palyra.core.errors import PalyraError, Unavailable
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.proof.journal_proof import check_ends
from palyra.journal.proof.tape_proof import ProofProblem

CODE = "tape_unverified"
FIRST_SECONDS = 5.0
"""The delay after the start, so that the first turns come first."""
AGAIN_SECONDS = 60.0
EVERY_SECONDS = 24 * 3600.0
ADVICE = "`palyra journal verify` shows the details. Restore an earlier backup, or find out who changed it."

log = logging.getLogger(__name__)


class Verification:
    """See the module. `warn` is called with each new problem."""

    def __init__(self, engine: Engine, inspection: JournalInspector, *, key: str) -> None:
        self._engine = engine
        self._inspection = inspection
        self._key = key
        self.found: str | None = None
        """The first problem, and where it is; None if none is known."""
        self.detail = "not verified yet"
        """How much was verified."""
        self.warn: Callable[[str], None] = lambda match: None

    @property
    def code(self) -> str | None:
        """The error code if there is a problem."""
        return CODE if self.found is not None else None

    async def check_ends(self) -> None:
        """Check the last anchor and the ends of the tapes it names; this is quick."""

        def look(conn: Connection) -> list[ProofProblem]:
            return check_ends(conn, key=self._key)

        try:
            self._note(await self._engine.read(look))
        except PalyraError:
            raise
        except Exception as error:
            # A value that we did not write makes the database or the decoder fail.
            self._found(f"the last anchor cannot be read: {error}")

    async def run(self) -> None:
        """Verify all tapes a while after the start and once a day, until cancelled."""
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

    def _note(self, problems: Sequence[ProofProblem]) -> None:
        if problems:
            first = problems[0]
            entry = f", entry {first.tape_seq}" if first.tape_seq is not None else ""
            location = f"session {first.session_id}{entry}: " if first.session_id is not None else ""
            self._found(f"{location}{first.what}")

    def _found(self, what: str) -> None:
        self.found = self.detail = f"The journal could not be verified: {what}. {ADVICE}"
        log.error("%s", self.found, extra={"code": CODE})
        self.warn(self.found)
