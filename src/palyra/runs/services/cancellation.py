"""Lists and cancels runs from outside."""

from collections.abc import Iterator

from palyra.core.clock import Clock, to_ms
from palyra.core.errors import NotFound
from palyra.core.events import CancelRequested, RunCancelled, RunEvent
from palyra.core.ids import IdSource, PrincipalId, RunId, SessionId, parse_ulid
from palyra.core.message import clean_text
from palyra.core.run.record import RunRecord
from palyra.core.run.state import TERMINAL, RunState
from palyra.core.text.secret_markers import without_secrets
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import runs
from palyra.runs.recording.run_writer import write_from_outside

MAX_REASON_CHARS = 500


class RunNotFound(NotFound):
    """You have no such run. `palyra runs` lists the latest."""


class CancellationService:
    """Lists and cancels a principal's runs."""

    def __init__(self, engine: Engine, *, clock: Clock, ids: IdSource) -> None:
        self._engine = engine
        self._clock = clock
        self._ids = ids

    async def page(
        self, principal: PrincipalId, *, session_id: SessionId | None, before: tuple[int, str] | None, limit: int
    ) -> list[RunRecord]:
        """Return the principal's runs, of one session or of all, the latest first."""
        now_ms = to_ms(self._clock.now())
        return await self._engine.read(
            lambda conn: runs.page(conn, principal, session_id=session_id, before=before, limit=limit, now_ms=now_ms)
        )

    async def cancel(self, principal: PrincipalId, run_id: str, *, reason: str = "cancelled by its owner") -> RunRecord:
        """Cancel the run; one without a worker ends at once, one that has ended stays as it is."""
        requested_run_id = RunId(parse_ulid(run_id, "run id"))
        reason = without_secrets(clean_text(reason, what="reason")[:MAX_REASON_CHARS])

        def unit(conn: Connection) -> RunRecord:
            if runs.get(conn, requested_run_id, principal) is None:
                raise RunNotFound
            cancel(conn, requested_run_id, actor=principal, reason=reason, clock=self._clock, ids=self._ids)
            run = runs.get(conn, requested_run_id, principal)
            assert run is not None
            return run

        return await self._engine.write(unit)


def cancel(conn: Connection, run_id: RunId, *, actor: str, reason: str, clock: Clock, ids: IdSource) -> RunState:
    """Record the cancel request, and also the end if no worker could see the request."""
    at = clock.now()

    def decide(state: RunState, execution: bool) -> Iterator[RunEvent]:
        if state.status in TERMINAL:
            return
        if state.cancel is None:
            yield CancelRequested(at=at, actor=actor, reason=reason)
        if not execution:
            yield RunCancelled(at=at, actor=actor, reason=reason)

    return write_from_outside(conn, run_id, decide, ids=ids, now_ms=to_ms(at))
