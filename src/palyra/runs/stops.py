"""Emergency stops: the one door to stop and to resume, and the watch that makes a stop hold.

A stop is a row in the journal. Each daemon remembers the rows that hold, so that asking costs nothing; it forgets and
learns by the commits of its own, by a look at the rows now and then where others write to the same journal, and by a
file in its home. Who is remembered as stopped starts nothing: no message is taken in, no step begins, and the step
that is under way ends at once. What a stop has found active is ended on the tape by `_end_active`, as often as need be:
a run that slipped in while the row was being written is found by the next look.
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
from palyra.core.marker import without_secrets
from palyra.core.message import mend_text
from palyra.core.stop import MAX_STOP_REASON_CHARS, Stop
from palyra.journal import agents, runs, stops
from palyra.journal.engine import Connection, Engine, Fact, Woken
from palyra.runs import control
from palyra.runs.book import Book

LOOK_SECONDS = 0.25
"""How often the file is looked for, and what is left to be ended."""
READ_SECONDS = 0.5
"""How often the rows are read where other daemons write to the same journal."""
AT_ONCE = 32
TRIES = 20
BY_FILE = "file:STOP"

log = logging.getLogger(__name__)


class Stopped(Conflict):
    """Work is stopped, and nothing new is taken in. `palyra resume` lets it go on."""


class NotStopped(Conflict):
    """Nothing is stopped here. `palyra stop` would do it."""


class PrincipalUnknown(NotFound):
    """Nobody of that name has an agent here; nothing was stopped. `palyra tokens` lists who there is."""


class StopNotYours(Denied):
    """Somebody else stopped this work; whoever did, or an administrator, lets it go on."""


class StopFileThere(Conflict):
    """The file STOP is still in the home folder and stops everything. Remove it, then resume."""


class StillStopping(Unavailable):
    """Runs are still being ended; nothing was resumed. Try again in a moment."""


class StopFile(Protocol):
    """The file that stops everything while it is there."""

    def text(self) -> str | None:
        """Return what it says; None if it is not there."""
        ...

    def remove(self) -> None:
        """Take it away."""
        ...


class NoFile:
    """Where there is no home, there is no file."""

    def text(self) -> str | None:
        return None

    def remove(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Halted:
    """What came of a stop."""

    stop: Stop
    runs: int
    """How many active runs it ended."""


class Stops:
    """See the module."""

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
        self._file = file or NoFile()
        self._shared = shared
        self._rows: tuple[Stop, ...] = ()
        self._by_file: Stop | None = None
        self._holding: tuple[Stop, ...] = ()
        """What is remembered: the rows, and the file until it has become one."""
        self._wake = asyncio.Event()
        self._behind = True
        """Something was stopped or lifted, and what follows from it is not all done."""
        self._beyond: set[RunId] = set()
        """Runs whose tape can not be read: nobody carries them, and nobody can end them."""
        self._turn = asyncio.Lock()
        """Held by whoever lifts, and by the watch: what one takes away the other must not put back."""
        self._changes = 0
        """How many commits of this daemon have stopped or lifted something."""
        self._read_at = 0.0
        self._listeners: list[Callable[[], None]] = []
        engine.subscribe(self._notice)

    # -- what is remembered

    def stopped(self, principal: PrincipalId) -> Stop | None:
        """Return what stops the principal's work, None if nothing does."""
        return next((stop for stop in self._holding if stop.covers(principal)), None) if self._holding else None

    async def confirmed(self, principal: PrincipalId) -> Stop | None:
        """Return the same, looked up anew if another daemon may have lifted it meanwhile."""
        if self._shared and self.stopped(principal) is not None:
            # While the journal can not be read, what is remembered holds.
            with suppress(Unavailable):
                await self._read()
        return self.stopped(principal)

    @property
    def standing(self) -> tuple[Stop, ...]:
        """All that holds, the first one first."""
        return self._holding

    def covering(self, principal: PrincipalId) -> tuple[Stop, ...]:
        """Return all that stops the principal's work."""
        return tuple(stop for stop in self._holding if stop.covers(principal))

    @property
    def everything(self) -> Stop | None:
        """What stops everybody, None if nothing does."""
        return next((stop for stop in self._holding if stop.principal is None), None)

    def on_stop(self, tell: Callable[[], None]) -> None:
        """Have somebody told at once whenever something is stopped."""
        self._listeners.append(tell)

    # -- the doors

    async def stop(self, by: PrincipalId, *, principal: str | None, reason: str = "") -> Halted:
        """Stop a principal's work, or everybody's: what is active ends, what is queued waits, what is new is refused.

        Whether the caller may stop more than its own is for the door to know.
        """
        whose = None if principal is None else PrincipalId(principal)
        fresh = Stop(
            stop_id=self._ids.new(),
            principal=whose,
            by=by,
            at=self._clock.now(),
            # The brake is not refused for its words.
            reason=without_secrets(mend_text(reason).strip()[:MAX_STOP_REASON_CHARS]),
        )
        stop, active = await self._engine.write(lambda conn: _halt(conn, fresh))
        log.warning("%s", stop.told, extra={"stop_id": stop.stop_id})
        self._remember((*(row for row in self._rows if row.stop_id != stop.stop_id), stop))
        await self._end_active((stop,))
        return Halted(stop, active)

    async def resume(
        self, by: PrincipalId, *, principal: str | None, admin: bool, remove_file: bool = False
    ) -> tuple[Stop, ...]:
        """Let work go on, and return the stops that were lifted.

        A principal lifts what it stopped of its own; an administrator what is stopped for everybody, or for one.
        """
        whose = None if principal is None else PrincipalId(principal)
        async with self._turn:
            return await self._resume(by, whose, admin=admin, remove_file=remove_file)

    async def _resume(
        self, by: PrincipalId, whose: PrincipalId | None, *, admin: bool, remove_file: bool
    ) -> tuple[Stop, ...]:
        if admin and whose is None:
            await self._take_file_away(asked=remove_file)

        def wanted(stop: Stop) -> bool:
            if admin:
                return stop.principal == whose or (whose is None and stop.principal == by)
            return stop.principal == whose == by and stop.by == by

        for _ in range(TRIES):
            found = tuple(filter(wanted, await self._read()))
            if not found:
                raise self._nothing_to_lift(whose)
            # What a stop has found active ends, however soon it is lifted: that is written down first.
            await self._end_active(found)
            at_ms = to_ms(self._clock.now())
            if await self._engine.write(partial(self._lift, found=found, by=by, at_ms=at_ms)):
                await self._read()
                log.warning("%s let work go on", by, extra={"stop_ids": [stop.stop_id for stop in found]})
                await self._release()
                return found
        raise StillStopping

    async def _take_file_away(self, *, asked: bool) -> None:
        self._look_for_file()
        if self._file.text() is not None:
            if not asked:
                raise StopFileThere
            await asyncio.to_thread(self._file.remove)
        if self._by_file is not None:
            # Lifted like any other: what it has found active must end first.
            await self._keep_file(self._by_file)
            self._by_file = None

    def _lift(self, conn: Connection, found: Sequence[Stop], *, by: str, at_ms: int) -> bool:
        """Lift the stops, unless a run that they found active is neither ended nor about to."""
        for run in runs.active(conn):
            left = not run.cancel_requested and run.run_id not in self._beyond
            if left and any(stop.covers(run.principal) for stop in found):
                return False
        stops.lift(conn, [stop.stop_id for stop in found], by=by, at_ms=at_ms)
        return True

    def _nothing_to_lift(self, whose: PrincipalId | None) -> Conflict | Denied:
        other = self.stopped(whose) if whose is not None else None
        return NotStopped() if other is None else StopNotYours(f"{other.told} {StopNotYours.__doc__}")

    # -- the watch

    async def load(self) -> None:
        """Learn what holds, before anything begins."""
        await self._read()
        self._look_for_file()

    async def watch(self) -> None:
        """For as long as the daemon lives: see that what holds is held to, and that what does not is let go on."""
        while True:
            self._wake.clear()
            # What can not be read or written just now is tried again at the next look.
            with suppress(Unavailable):
                self._look_for_file()
                async with self._turn:
                    await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake.wait()

    async def _look(self) -> None:
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

    def _look_for_file(self) -> None:
        text = self._file.text()
        if text is not None and self._by_file is None:
            reason = without_secrets(" ".join(mend_text(text).split())[:MAX_STOP_REASON_CHARS])
            self._by_file = Stop(
                stop_id=self._ids.new(), principal=None, by=BY_FILE, at=self._clock.now(), reason=reason
            )
            if not self._is_kept:
                log.warning("%s", self._by_file.told, extra={"stop_id": self._by_file.stop_id})
            self._remember(self._rows)
        elif text is None and self._is_kept:
            self._by_file = None

    @property
    def _is_kept(self) -> bool:
        """Whether the file has become a row, which holds without it."""
        return any(row.by == BY_FILE for row in self._rows)

    async def _keep_file(self, stop: Stop) -> None:
        """Make a row of the file, for other daemons and for later."""
        if not self._is_kept:
            kept = await self._engine.write(lambda conn: _stand(conn, stop))
            self._remember((*self._rows, kept))

    async def _read(self) -> tuple[Stop, ...]:
        while True:
            seen = self._changes
            rows = await self._engine.read(stops.standing)
            # What was read before a change that is known of by now would take it back.
            if seen == self._changes:
                self._read_at = self._clock.monotonic()
                self._remember(rows)
                return rows

    def _remember(self, rows: Sequence[Stop]) -> None:
        before = {stop.stop_id for stop in self._holding}
        self._rows = tuple(rows)
        self._holding = self._rows if self._by_file is None or self._is_kept else (*self._rows, self._by_file)
        if any(stop.stop_id not in before for stop in self._holding):
            for tell in self._listeners:
                tell()

    def _notice(self, facts: Sequence[Fact]) -> None:
        if any(isinstance(fact, Woken) and fact.topic == stops.TOPIC for fact in facts):
            self._changes += 1
            self._behind = True
            self._wake.set()

    async def _end_active(self, holding: Sequence[Stop]) -> None:
        """End what is active and stopped."""
        ending = []
        for run in await self._engine.read(runs.active):
            stop = next((stop for stop in holding if stop.covers(run.principal)), None)
            if stop is not None and run.run_id not in self._beyond:
                ending.append((run.run_id, stop))
        for start in range(0, len(ending), AT_ONCE):
            async with asyncio.TaskGroup() as group:
                part = [group.create_task(self._end(run_id, stop)) for run_id, stop in ending[start : start + AT_ONCE]]
            for task in part:
                if (trouble := task.result()) is not None:
                    raise trouble

    async def _end(self, run_id: RunId, stop: Stop) -> Unavailable | None:
        """End a run; return what keeps the journal from being written, since the others are to be tried all the same.

        Nothing is raised: before Python 3.13 a task group with a task that fails forgets that it was cancelled.
        """
        try:
            await self._engine.write(
                lambda conn: control.cancel(
                    conn, run_id, actor=stop.by, reason=stop.cause, clock=self._clock, ids=self._ids
                )
            )
        except Unavailable as error:
            return error
        except PalyraError:
            # Said once; that one run must not keep the others from being ended.
            log.exception("run %s could not be ended", run_id, extra={"run_id": run_id})
            self._beyond.add(run_id)
        return None

    async def _release(self) -> None:
        """Start what was held in a queue and is no longer stopped."""
        for session_id, principal in await self._engine.read(runs.held):
            if self.stopped(principal) is None:
                await self._engine.write(partial(self._start_next, session_id=session_id))

    def _start_next(self, conn: Connection, session_id: SessionId) -> None:
        book = Book.open(conn, session_id, ids=self._ids)
        book.release(at=self._clock.now())
        book.close()


def _halt(conn: Connection, fresh: Stop) -> tuple[Stop, int]:
    """Write the stop down; return it, and how many runs it has found active: others may be quicker to end them."""
    stop = _stand(conn, fresh)
    return stop, sum(stop.covers(run.principal) for run in runs.active(conn))


def _stand(conn: Connection, fresh: Stop) -> Stop:
    """Write the stop down; return the one that its author has put there already, if there is one."""
    if fresh.principal not in (None, fresh.by) and agents.default(conn, fresh.principal) is None:
        raise PrincipalUnknown
    for known in stops.standing(conn):
        if (known.principal, known.by) == (fresh.principal, fresh.by):
            return known
    stops.insert(conn, fresh)
    return fresh
