"""The worker: claims runs that are ready, executes a bounded number at once, and renews their leases.

Most runs reach it in the commit that accepts their message: the intake reserves a slot here meanwhile, and the run is
leased from the start. The worker looks for all others (from a queue, after a wait, of a daemon that died) when
something wakes it, and from time to time.

Slots are shared between principals. Each principal has a few of its own, which no other can occupy. The rest are first
come, first served; while runs wait, the principal with the fewest running goes first.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from palyra.core.clock import Clock, to_ms
from palyra.core.errors import Internal, JournalClosed, PalyraError, Unavailable
from palyra.core.events import Entry, RunFailed
from palyra.core.ids import PrincipalId, RunId
from palyra.core.run.state import RunState
from palyra.exhaustion import ResourcesExhausted, is_exhausted
from palyra.journal.engines.base import Connection, Engine, Fact, RunLeased
from palyra.journal.storage_health import Storage
from palyra.journal.stores import leases, runs
from palyra.journal.stores.leases import Lease, LeaseLost
from palyra.runs.engine.loop import RunLoop, StepInterruption
from palyra.runs.recording.replay import TapeEntryInvalid, replay
from palyra.runs.services.emergency_stops import StopService

SWEEP_SECONDS = 2.0
CANCEL_SWEEP_SECONDS = 0.1
RENEW_SECONDS = leases.RENEW_MS / 1000
UNRENEWED_SECONDS = 7.0
FIRST_WAIT_SECONDS = 0.25
MAX_WAIT_SECONDS = 5.0
MAX_STARVED_WAIT_SECONDS = 30.0
"""Between two attempts at a run that lacks a thread, process, descriptor or memory: each attempt may cost money."""
MAX_STARVED_SECONDS = 600.0
"""After that the run fails."""

OWN_SLOTS_DIVISOR = 16
"""The share of the slots that each principal has for itself, at least one; added on top if the others are taken."""

WAKING = frozenset({"run_started", "approval_resolved", "child_ended", "input_steered", "run_cancelled"})

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _ActiveExecution:
    lease: Lease
    principal: PrincipalId | None
    """Whose run it is; unknown if its tape cannot be read."""
    interruption: StepInterruption = field(default_factory=StepInterruption)


class RunWorker:
    """Claims and executes runs; see the module."""

    def __init__(
        self,
        engine: Engine,
        loop: RunLoop,
        *,
        stops: StopService,
        storage: Storage,
        clock: Clock,
        owner: str,
        concurrency: int,
    ) -> None:
        self._stops = stops
        self._storage = storage
        self._engine = engine
        self._loop = loop
        self._clock = clock
        self._owner = owner
        self._concurrency = concurrency
        self._carried: dict[RunId, _ActiveExecution] = {}
        self._own_slots = max(1, concurrency // OWN_SLOTS_DIVISOR)
        self._places_kept = 0
        self._kept_for: Counter[PrincipalId] = Counter()
        self._claimed = 0
        """Runs that a commit has just leased to this worker and that have not begun yet."""
        self._group: asyncio.TaskGroup | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._renewed = clock.monotonic()
        self._renewed_ms = to_ms(clock.now())
        self._parking = False
        self._more_may_wait = False
        self._starved: dict[RunId, float] = {}
        """Since when a run has waited for resources that the system lacks."""
        engine.subscribe(self._notice)
        stops.on_stop(self._cancel_stopped)

    @property
    def active_runs(self) -> int:
        """How many runs are being executed."""
        return len(self._carried)

    @property
    def starved(self) -> int:
        """How many runs wait for a thread, a process, a descriptor or memory."""
        return len(self._starved)

    @property
    def is_at_work(self) -> bool:
        """Whether it claims runs."""
        return self._group is not None and not self._parking

    async def run(self) -> None:
        """Work until cancelled; then release all leases, so that another worker can go on at once."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._renew_leases())
                group.create_task(self._sweep_cancels())
                self._group = group
                try:
                    await self._work()
                finally:
                    self._group = None
                    for active_execution in self._carried.values():
                        active_execution.interruption.stop()
        finally:
            await self._let_go()

    @contextmanager
    def reserve_slot(self, principal: PrincipalId) -> Iterator[str | None]:
        """Reserve a slot for a run that is about to be accepted, and yield the worker's name; None if none is free."""
        if not self.is_at_work or self._storage.trouble is not None or not self._has_room(principal):
            yield None
            return
        self._places_kept += 1
        self._kept_for[principal] += 1
        try:
            yield self._owner
        finally:
            self._places_kept -= 1
            self._kept_for[principal] -= 1
            if not self._kept_for[principal]:
                del self._kept_for[principal]
            if self._more_may_wait:
                self._wake.set()

    @property
    def _free(self) -> int:
        # Also called by the thread that writes: each of these is read atomically.
        return max(0, self._concurrency - len(self._carried) - self._places_kept - self._claimed)

    def _has_room(self, principal: PrincipalId) -> bool:
        # While others wait, a new run waits with them: a claim decides whose turn it is.
        if self._free > 0 and not self._more_may_wait:
            return True
        execution = sum(execution.principal == principal for execution in self._carried.values())
        return execution + self._kept_for[principal] < self._own_slots

    async def _work(self) -> None:
        while True:
            self._wake.clear()
            if self._storage.trouble is not None:
                await self._storage.probe()
            await self._take_up()
            self._storage.log_if_over()
            with suppress(TimeoutError):
                async with asyncio.timeout(SWEEP_SECONDS):
                    await self._wake.wait()

    async def park(self, *, seconds: float) -> None:
        """Claim nothing more, and wait at most this long for running work."""
        self._parking = True
        if self._carried:
            self._idle.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._idle.wait()

    async def _take_up(self) -> None:
        if self._parking:
            return
        now_ms = to_ms(self._clock.now())
        overdue = bool(self._carried) and abs(now_ms - self._renewed_ms) >= leases.LENGTH_MS
        active_leases = {active_leases.lease for active_leases in self._carried.values()}
        try:
            claimed = await self._engine.write(
                lambda conn: self._claim(conn, active_leases, now_ms=now_ms, overdue=overdue)
            )
        except Unavailable as error:
            self._storage.note(error)
            return
        finally:
            self._claimed = 0
        for lease, state in claimed:
            self._begin(lease, state)

    def _begin(self, lease: Lease, state: RunState | None) -> None:
        run_id = RunId(lease.item_id)
        before = self._carried.get(run_id)
        # Without a task group the worker is stopping, and releases everything.
        if self._group is not None and (before is None or before.lease != lease):
            active_execution = self._carried[run_id] = _ActiveExecution(
                lease, state.principal if state is not None else None
            )
            self._group.create_task(self._execute(run_id, active_execution, state))

    def _claim(
        self, conn: Connection, active_leases: set[Lease], *, now_ms: int, overdue: bool
    ) -> list[tuple[Lease, RunState]]:
        if overdue:
            # The machine slept, or nothing could be written for long. What no other worker claimed is still ours;
            # without this we would claim it from ourselves.
            leases.renew(conn, leases.RUNS, owner=self._owner, now_ms=now_ms)
        # A run that is leased to us but not executed came with a notification that was lost.
        held = leases.held(conn, leases.RUNS, owner=self._owner, now_ms=now_ms)
        lost = [lease for lease in held if lease not in active_leases]
        # Counted here and not before: a message that is being accepted may have taken a slot since.
        self._claimed = 0
        free = self._free
        claimed_leases = leases.claim(
            conn, leases.RUNS, owner=self._owner, now_ms=now_ms, limit=free, own=self._own_slots
        )
        self._more_may_wait = len(claimed_leases) >= free
        self._claimed = len(claimed_leases)
        result = ((lease, _replayed(conn, lease)) for lease in (*lost, *claimed_leases))
        return [(lease, state) for lease, state in result if state is not None]

    async def _execute(self, run_id: RunId, active_execution: _ActiveExecution, state: RunState | None) -> None:
        wait = FIRST_WAIT_SECONDS
        try:
            while not await self._try_execute(run_id, active_execution, state):
                state = None
                await asyncio.sleep(wait)
                wait = min(wait * 2, MAX_STARVED_WAIT_SECONDS if run_id in self._starved else MAX_WAIT_SECONDS)
        finally:
            self._note_fed(run_id)
            # A run that waited may have been claimed again before this ended.
            if self._carried.get(run_id) is active_execution:
                del self._carried[run_id]
            if self._more_may_wait:
                self._wake.set()
            if not self._carried:
                self._idle.set()

    async def _try_execute(self, run_id: RunId, active_execution: _ActiveExecution, state: RunState | None) -> bool:
        """Execute the run as far as it goes; False if it must be retried later."""
        try:
            await self._loop.advance(active_execution.lease, active_execution.interruption, state)
        except Exception as error:
            match cause := _cause(error):
                case LeaseLost() | JournalClosed():
                    return True
                case TapeEntryInvalid() as unreadable:
                    return await self._try_park(run_id, unreadable)
                case _ if is_exhausted(cause):
                    return not self._note_starved(run_id, cause) and await self._fail(
                        active_execution.lease, ResourcesExhausted()
                    )
                case Unavailable():
                    # The journal cannot be written: the run stays as recorded until it can.
                    self._storage.note(cause)
                    return False
                case _:
                    log.exception("run %s failed unexpectedly", run_id, extra={"run_id": run_id})
                    return await self._fail(active_execution.lease, cause)
        if self._storage.trouble is not None:
            self._wake.set()  # a write just succeeded: check whether writes work again
        return True

    async def _try_park(self, run_id: RunId, error: TapeEntryInvalid) -> bool:
        """Park a run whose tape cannot be read; False if that cannot be recorded now."""
        try:
            await self._engine.write(lambda conn: _park(conn, run_id, error))
        except Unavailable as trouble:
            self._storage.note(trouble)
            return False
        return True

    async def _fail(self, lease: Lease, error: BaseException) -> bool:
        """Record that the run failed by our own fault; False if even that cannot be recorded."""
        is_known = isinstance(error, PalyraError) and not isinstance(error, Internal)
        event = RunFailed(
            at=self._clock.now(),
            code=error.code if isinstance(error, PalyraError) else "internal_error",
            reason=str(error)
            if is_known
            else f"Palyra itself failed ({type(error).__name__}). The log has the details.",
        )
        try:
            await self._loop.fail(lease, event)
        except LeaseLost:
            return True
        except Exception:
            log.exception("run %s could not be ended", lease.item_id, extra={"run_id": lease.item_id})
            return False
        return True

    def _notice(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            if isinstance(fact, RunLeased) and fact.owner == self._owner:
                self._begin(Lease(fact.state.run_id, fact.owner, fact.epoch), fact.state)
            if not isinstance(fact, Entry) or fact.run_id is None:
                continue
            if fact.kind in WAKING:
                # A run that was leased in the same commit need not be claimed.
                if fact.kind != "run_started" or fact.run_id not in self._carried:
                    self._wake.set()
            elif fact.kind == "cancel_requested":
                self._interrupt(fact.run_id)

    def _interrupt(self, run_id: RunId) -> None:
        if (active_execution := self._carried.get(run_id)) is not None:
            active_execution.interruption.fire()

    def _cancel_stopped(self) -> None:
        """Interrupt the steps of runs that are stopped; the loop ends the runs."""
        for active_execution in self._carried.values():
            if active_execution.principal is None or self._stops.stopped(active_execution.principal) is not None:
                active_execution.interruption.fire()

    async def _sweep_cancels(self) -> None:
        """Find cancels that no wake-up reported."""
        while True:
            await asyncio.sleep(CANCEL_SWEEP_SECONDS)
            if self._carried:
                with suppress(Unavailable):
                    for run_id in await self._engine.read(lambda conn: runs.cancelled_of(conn, self._owner)):
                        self._interrupt(run_id)

    async def _renew_leases(self) -> None:
        """Renew the leases; a run whose lease could not be renewed for too long may be another worker's, and stops."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            now_ms = to_ms(self._clock.now())
            if not self._carried:
                self._renewed, self._renewed_ms = self._clock.monotonic(), now_ms
                continue
            before = dict(self._carried)
            try:
                held = await self._engine.write(
                    lambda conn, now_ms=now_ms: leases.renew(  # type: ignore[misc]
                        conn, leases.RUNS, owner=self._owner, now_ms=now_ms
                    )
                )
            except Unavailable as error:
                self._storage.note(error)
                if self._clock.monotonic() - self._renewed > UNRENEWED_SECONDS:
                    for run_id in list(self._carried):
                        self._interrupt(run_id)
                continue
            self._renewed, self._renewed_ms = self._clock.monotonic(), now_ms
            for run_id, active_execution in before.items():
                if run_id not in held:
                    active_execution.interruption.fire()

    async def _let_go(self) -> None:
        with suppress(Unavailable):
            await self._engine.write(lambda conn: leases.release_all(conn, leases.RUNS, owner=self._owner))

    def _note_starved(self, run_id: RunId, error: BaseException) -> bool:
        """Record that a run lacks resources, and log it for the first one; False if it has waited for too long."""
        now = self._clock.monotonic()
        if not self._starved:
            log.warning(
                "runs wait: %s",
                error,
                extra={"run_id": run_id, "code": ResourcesExhausted.code},
            )
        return now - self._starved.setdefault(run_id, now) < MAX_STARVED_SECONDS

    def _note_fed(self, run_id: RunId) -> None:
        if self._starved.pop(run_id, None) is not None and not self._starved:
            log.info("runs no longer wait for system resources", extra={"run_id": run_id})


def _replayed(conn: Connection, lease: Lease) -> RunState | None:
    """Return the state of the run; None if its tape cannot be read: only that run is parked then."""
    run_id = RunId(lease.item_id)
    try:
        return replay(conn, run_id)
    except TapeEntryInvalid as error:
        _park(conn, run_id, error)
        return None


def _park(conn: Connection, run_id: RunId, error: TapeEntryInvalid) -> None:
    log.error("run %s is parked: %s", run_id, error.detail, extra={"run_id": run_id, "code": error.code})
    runs.park(conn, run_id, reason=error.detail)


def _cause(error: BaseException) -> BaseException:
    """Return the underlying error: a task group wraps the errors of its tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
