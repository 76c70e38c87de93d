"""Emergency stops: the only way to stop and to resume, and the watch that enforces a stop.

A stop is a row in the journal. Each daemon caches the rows in force, so that a check costs nothing. It updates the
cache from its own commits, from the rows from time to time where others write to the same journal, and from a
file in its home. A principal that is stopped in the cache starts nothing: no message is accepted, no step begins, and
the current step ends at once. `_end_active` ends the runs that a stop found active on the tape, and repeats that:
a run that slipped in while the row was being written is found by the next check.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from palyra.core.clock import Clock, to_ms
from palyra.core.errors import Conflict, Denied, NotFound, PalyraError, Unavailable
from palyra.core.ids import IdSource, PrincipalId, RunId, SessionId
from palyra.core.message import repair_text
from palyra.core.stop import MAX_STOP_REASON_CHARS, EmergencyStop
from palyra.core.text.secret_markers import without_secrets
from palyra.journal.engines.base import Connection, Engine, Fact, WorkAvailable
from palyra.journal.stores import agents, runs, stops
from palyra.runs.recording.session_writer import SessionWriter
from palyra.runs.services import cancellation

POLL_SECONDS = 0.25
"""How often to check for the file, and for runs that are still to be ended."""
READ_SECONDS = 0.5
"""How often the rows are read where other daemons write to the same journal."""
MAX_CONCURRENT = 32
TRIES = 20
BY_FILE = "file:STOP"

log = logging.getLogger(__name__)


class WorkStopped(Conflict):
    """Work is stopped, and no new work is accepted. `palyra resume` ends the stop."""


class StopNotFound(Conflict):
    """Nothing is stopped here. `palyra stop` stops everything."""


class PrincipalNotFound(NotFound):
    """No principal with this name has an agent here. Nothing was stopped. `palyra tokens` lists the principals."""


class StopNotAllowed(Denied):
    """Someone else stopped this work. Only they or an administrator can resume it."""


class StopFileExists(Conflict):
    """The file STOP is still in the home folder and stops everything. Remove it, then resume."""


class StopInProgress(Unavailable):
    """Runs are still ending, so nothing was resumed. Try again in a moment."""


class StopFile(Protocol):
    """The file that stops everything while it is there."""

    def text(self) -> str | None:
        """Return its text; None if there is no file."""
        ...

    def remove(self) -> None:
        """Remove the file."""
        ...


class NoStopFile:
    """For daemons without a home: there is no file."""

    def text(self) -> str | None:
        return None

    def remove(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class StopResult:
    """The outcome of a stop."""

    stop: EmergencyStop
    runs: int
    """How many active runs it ended."""


class StopService:
    """Stops and resumes work, and enforces the stops; see the module."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock,
        ids: IdSource,
        file: StopFile | None = None,
        shared: bool = False,
    ) -> None:
        """`shared` says that other daemons write to the same journal."""
        self._engine = engine
        self._clock = clock
        self._ids = ids
        self._file = file or NoStopFile()
        self._shared = shared
        self._rows: tuple[EmergencyStop, ...] = ()
        self._by_file: EmergencyStop | None = None
        self._holding: tuple[EmergencyStop, ...] = ()
        """The cache: the rows, and the file until it has become one."""
        self._wake = asyncio.Event()
        self._behind = True
        """Something was stopped or resumed, and the follow-up work is not finished."""
        self._beyond: set[RunId] = set()
        """Runs whose tape cannot be read: no worker executes them, and they cannot be ended."""
        self._turn = asyncio.Lock()
        """Held while resuming, and by the watch: what one removes the other must not put back."""
        self._changes = 0
        """How many commits of this daemon have stopped or resumed something."""
        self._read_at = 0.0
        self._listeners: list[Callable[[], None]] = []
        engine.subscribe(self._notice)

    # -- the cache

    def stopped(self, principal: PrincipalId) -> EmergencyStop | None:
        """Return the stop that covers the principal's work, None if there is none."""
        return next((stop for stop in self._holding if stop.covers(principal)), None) if self._holding else None

    async def confirmed(self, principal: PrincipalId) -> EmergencyStop | None:
        """Return the same, read again if another daemon may have lifted it meanwhile."""
        if self._shared and self.stopped(principal) is not None:
            # While the journal cannot be read, the cache counts.
            with suppress(Unavailable):
                await self._read()
        return self.stopped(principal)

    @property
    def in_force(self) -> tuple[EmergencyStop, ...]:
        """All stops in force, oldest first."""
        return self._holding

    def covering(self, principal: PrincipalId) -> tuple[EmergencyStop, ...]:
        """Return all stops that cover the principal's work."""
        return tuple(stop for stop in self._holding if stop.covers(principal))

    @property
    def everything(self) -> EmergencyStop | None:
        """The stop that covers everything, None if there is none."""
        return next((stop for stop in self._holding if stop.principal is None), None)

    def on_stop(self, tell: Callable[[], None]) -> None:
        """Register a callback that is called at once whenever something is stopped."""
        self._listeners.append(tell)

    # -- stop and resume

    async def stop(self, by: PrincipalId, *, principal: str | None, reason: str = "") -> StopResult:
        """Stop a principal's work, or all work: active runs end, queued runs wait, new messages are refused.

        Whether the caller may stop more than its own work is for the endpoint to check.
        """
        whose = None if principal is None else PrincipalId(principal)
        fresh = EmergencyStop(
            stop_id=self._ids.new(),
            principal=whose,
            by=by,
            at=self._clock.now(),
            # An emergency stop is not refused because of its reason text.
            reason=without_secrets(repair_text(reason).strip()[:MAX_STOP_REASON_CHARS]),
        )
        stop, active = await self._engine.write(lambda conn: _write_stop(conn, fresh))
        log.warning("%s", stop.description, extra={"stop_id": stop.stop_id})
        self._remember((*(row for row in self._rows if row.stop_id != stop.stop_id), stop))
        await self._end_active((stop,))
        return StopResult(stop, active)

    async def resume(
        self, by: PrincipalId, *, principal: str | None, admin: bool, remove_file: bool = False
    ) -> tuple[EmergencyStop, ...]:
        """Resume work, and return the stops that were lifted.

        A principal lifts its own stops of its own work; an administrator those for all work, or for one principal.
        """
        whose = None if principal is None else PrincipalId(principal)
        async with self._turn:
            return await self._resume(by, whose, admin=admin, remove_file=remove_file)

    async def _resume(
        self, by: PrincipalId, whose: PrincipalId | None, *, admin: bool, remove_file: bool
    ) -> tuple[EmergencyStop, ...]:
        if admin and whose is None:
            await self._take_file_away(requested=remove_file)

        def wanted(stop: EmergencyStop) -> bool:
            if admin:
                return stop.principal == whose or (whose is None and stop.principal == by)
            return stop.principal == whose == by and stop.by == by

        for _ in range(TRIES):
            matching_stops = tuple(filter(wanted, await self._read()))
            if not matching_stops:
                raise self._nothing_to_lift(whose)
            # Runs that a stop found active end, however soon it is lifted: that is recorded first.
            await self._end_active(matching_stops)
            at_ms = to_ms(self._clock.now())
            if await self._engine.write(partial(self._lift, matching_stops=matching_stops, by=by, at_ms=at_ms)):
                await self._read()
                log.warning("%s resumed work", by, extra={"stop_ids": [stop.stop_id for stop in matching_stops]})
                await self._release()
                return matching_stops
        raise StopInProgress

    async def _take_file_away(self, *, requested: bool) -> None:
        self._check_file()
        if self._file.text() is not None:
            if not requested:
                raise StopFileExists
            await asyncio.to_thread(self._file.remove)
        if self._by_file is not None:
            # Lifted like any other: the runs it found active must end first.
            await self._keep_file(self._by_file)
            self._by_file = None

    def _lift(self, conn: Connection, matching_stops: Sequence[EmergencyStop], *, by: str, at_ms: int) -> bool:
        """Lift the stops, unless a run that they found active is neither ended nor being cancelled."""
        for run in runs.active(conn):
            left = not run.cancel_requested and run.run_id not in self._beyond
            if left and any(stop.covers(run.principal) for stop in matching_stops):
                return False
        stops.lift(conn, [stop.stop_id for stop in matching_stops], by=by, at_ms=at_ms)
        return True

    def _nothing_to_lift(self, whose: PrincipalId | None) -> Conflict | Denied:
        other = self.stopped(whose) if whose is not None else None
        return StopNotFound() if other is None else StopNotAllowed(f"{other.description} {StopNotAllowed.__doc__}")

    # -- the watch

    async def load(self) -> None:
        """Load the stops in force, before anything begins."""
        await self._read()
        self._check_file()

    async def watch(self) -> None:
        """Enforce stops, and release what is no longer stopped, for as long as the daemon runs."""
        while True:
            self._wake.clear()
            # What cannot be read or written now is retried at the next check.
            with suppress(Unavailable):
                self._check_file()
                async with self._turn:
                    await self._poll()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()

    async def _poll(self) -> None:
        behind, self._behind = self._behind, False
        try:
            if behind or (self._shared and self._clock.monotonic() - self._read_at >= READ_SECONDS):
                before = self._holding
                await self._read()
                behind = behind or self._holding != before
            if self._by_file is not None:
                await self._keep_file(self._by_file)
            if self._holding:
                await self._end_active(self._holding)
            if behind:
                await self._release()
        except Unavailable:
            self._behind = True
            raise

    def _check_file(self) -> None:
        text = self._file.text()
        if text is not None and self._by_file is None:
            reason = without_secrets(" ".join(repair_text(text).split())[:MAX_STOP_REASON_CHARS])
            self._by_file = EmergencyStop(
                stop_id=self._ids.new(), principal=None, by=BY_FILE, at=self._clock.now(), reason=reason
            )
            if not self._is_recorded:
                log.warning("%s", self._by_file.description, extra={"stop_id": self._by_file.stop_id})
            self._remember(self._rows)
        elif text is None and self._is_recorded:
            self._by_file = None

    @property
    def _is_recorded(self) -> bool:
        """Whether the file has become a row, which holds without it."""
        return any(row.by == BY_FILE for row in self._rows)

    async def _keep_file(self, stop: EmergencyStop) -> None:
        """Turn the file into a row, for other daemons and for later."""
        if not self._is_recorded:
            stored_stop = await self._engine.write(lambda conn: _stand(conn, stop))
            self._remember((*self._rows, stored_stop))

    async def _read(self) -> tuple[EmergencyStop, ...]:
        while True:
            seen = self._changes
            rows = await self._engine.read(stops.in_force)
            # Rows read before a change that is known by now would undo it.
            if seen == self._changes:
                self._read_at = self._clock.monotonic()
                self._remember(rows)
                return rows

    def _remember(self, rows: Sequence[EmergencyStop]) -> None:
        before = {stop.stop_id for stop in self._holding}
        self._rows = tuple(rows)
        self._holding = self._rows if self._by_file is None or self._is_recorded else (*self._rows, self._by_file)
        if any(stop.stop_id not in before for stop in self._holding):
            for tell in self._listeners:
                tell()

    def _notice(self, facts: Sequence[Fact]) -> None:
        if any(isinstance(fact, WorkAvailable) and fact.topic == stops.TOPIC for fact in facts):
            self._changes += 1
            self._behind = True
            self._wake.set()

    async def _end_active(self, holding: Sequence[EmergencyStop]) -> None:
        """End the runs that are active and stopped."""
        ending = []
        for run in await self._engine.read(runs.active):
            stop = next((stop for stop in holding if stop.covers(run.principal)), None)
            if stop is not None and run.run_id not in self._beyond:
                ending.append((run.run_id, stop))
        for start in range(0, len(ending), MAX_CONCURRENT):
            async with asyncio.TaskGroup() as group:
                part = [
                    group.create_task(self._end(run_id, stop))
                    for run_id, stop in ending[start : start + MAX_CONCURRENT]
                ]
            for task in part:
                if (trouble := task.result()) is not None:
                    raise trouble

    async def _end(self, run_id: RunId, stop: EmergencyStop) -> Unavailable | None:
        """End a run; return the error if the journal cannot be written, since the other runs are tried all the same.

        Nothing is raised: before Python 3.13 a task group with a task that fails forgets that it was cancelled.
        """
        try:
            await self._engine.write(
                lambda conn: cancellation.cancel(
                    conn, run_id, actor=stop.by, reason=stop.cause, clock=self._clock, ids=self._ids
                )
            )
        except Unavailable as error:
            return error
        except PalyraError:
            # Logged once; this one run must not keep the others from being ended.
            log.exception("run %s could not be ended", run_id, extra={"run_id": run_id})
            self._beyond.add(run_id)
        return None

    async def _release(self) -> None:
        """Start queued runs that were held back and are no longer stopped."""
        for session_id, principal in await self._engine.read(runs.held):
            if self.stopped(principal) is None:
                await self._engine.write(partial(self._start_next, session_id=session_id))

    def _start_next(self, conn: Connection, session_id: SessionId) -> None:
        writer = SessionWriter.open(conn, session_id, ids=self._ids)
        writer.release(at=self._clock.now())
        writer.close()


def _write_stop(conn: Connection, fresh: EmergencyStop) -> tuple[EmergencyStop, int]:
    """Record the stop; return it, and the number of runs it found active: others may end them first."""
    stop = _stand(conn, fresh)
    return stop, sum(stop.covers(run.principal) for run in runs.active(conn))


def _stand(conn: Connection, fresh: EmergencyStop) -> EmergencyStop:
    """Record the stop; return the existing one of the same author, if there is one."""
    if fresh.principal not in (None, fresh.by) and agents.default(conn, fresh.principal) is None:
        raise PrincipalNotFound
    for stop in stops.in_force(conn):
        if (stop.principal, stop.by) == (fresh.principal, fresh.by):
            return stop
    stops.insert(conn, fresh)
    return fresh
