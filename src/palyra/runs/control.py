"""Runs from outside: listed and stopped."""

from collections.abc import Iterator

from palyra.core.clock import Clock, to_ms
from palyra.core.errors import NotFound
from palyra.core.events import CancelRequested, RunCancelled, RunEvent
from palyra.core.ids import IdSource, PrincipalId, RunId, SessionId, parse_ulid
from palyra.core.marker import without_secrets
from palyra.core.message import clean_text
from palyra.core.run import TERMINAL, RunState
from palyra.journal import runs
from palyra.journal.engine import Connection, Engine
from palyra.journal.runs import Run
from palyra.runs.record import intrude

MAX_REASON_CHARS = 500


class RunNotFound(NotFound):
    """There is no such run among yours. `palyra runs` lists the latest."""


class Control:
    """Runs as those who speak for a principal see them, and want them to stop."""

    def __init__(self, engine: Engine, *, clock: Clock, ids: IdSource) -> None:
        self._engine = engine
        self._clock = clock
        self._ids = ids

    async def page(
        self, principal: PrincipalId, *, session_id: SessionId | None, before: tuple[int, str] | None, limit: int
    ) -> list[Run]:
        """Return the principal's runs, of one session or of all, the latest first."""
        now_ms = to_ms(self._clock.now())
        return await self._engine.read(
            lambda conn: runs.page(conn, principal, session_id=session_id, before=before, limit=limit, now_ms=now_ms)
        )

    async def cancel(self, principal: PrincipalId, run_id: str, *, reason: str = "cancelled by its owner") -> Run:
        """Ask for the run to stop; one that nobody carries ends at once, one that has ended stays as it is."""
        wanted = RunId(parse_ulid(run_id, "run id"))
        reason = without_secrets(clean_text(reason, what="reason")[:MAX_REASON_CHARS])

        def unit(conn: Connection) -> Run:
            if runs.get(conn, wanted, principal) is None:
                raise RunNotFound
            cancel(conn, wanted, actor=principal, reason=reason, clock=self._clock, ids=self._ids)
            run = runs.get(conn, wanted, principal)
            assert run is not None
            return run

        return await self._engine.write(unit)


def cancel(conn: Connection, run_id: RunId, *, actor: str, reason: str, clock: Clock, ids: IdSource) -> RunState:
    """Record the wish, and the end too if there is no carrier who could see it."""
    at = clock.now()

    def decide(state: RunState, carried: bool) -> Iterator[RunEvent]:
        if state.status in TERMINAL:
            return
        if state.cancel is None:
            yield CancelRequested(at=at, actor=actor, reason=reason)
        if not carried:
            yield RunCancelled(at=at, actor=actor, reason=reason)

    return intrude(conn, run_id, decide, ids=ids, now_ms=to_ms(at))
