"""The loop: replay the run, decide the next step, execute it, record it, until there is nothing left to do."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import assert_never

import msgspec

from palyra.core.clock import Clock
from palyra.core.errors import PalyraError
from palyra.core.events import RunCancelled, RunEvent
from palyra.core.ids import IdSource, RunId
from palyra.core.run.state import TERMINAL, RunEventInvalid, RunState, RunStatus
from palyra.core.run.steps import (
    AskApproval,
    CallModel,
    CheckPolicy,
    ExecuteTools,
    Finish,
    HandOver,
    NoteLimit,
    RefuseCalls,
    Resume,
    Step,
    Suspend,
    next_step,
)
from palyra.journal import tape
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import leases
from palyra.journal.stores.leases import Lease
from palyra.runs.engine.steps.approval import ApprovalStep
from palyra.runs.engine.steps.finish import FinishStep
from palyra.runs.engine.steps.model import ModelStep
from palyra.runs.engine.steps.policy import PolicyStep
from palyra.runs.engine.steps.tools import ToolsStep
from palyra.runs.recording.emit import Emit, Guard
from palyra.runs.recording.replay import fold, replay
from palyra.runs.recording.run_writer import RunChanged, write_run
from palyra.runs.services.emergency_stops import StopService


class StepInterrupted(PalyraError):
    """The step was interrupted from outside, or by the run's wall clock."""


class StepInterruption:
    """Lets others interrupt the current step, and nothing else. Used as a context manager around each step."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cancelling = 0
        self._fired = False
        self._stopped = False
        self._left_seconds = 0.0

    def within(self, seconds: float) -> "StepInterruption":
        """Set the time after which the next step is interrupted."""
        self._left_seconds = seconds
        return self

    def fire(self) -> None:
        """Interrupt the current step, if there is one."""
        if self._task is not None and not self._fired:
            self._fired = True
            self._task.cancel()

    def stop(self) -> None:
        """Let no further step begin. Cancelling the task is not enough: a failing step can swallow the cancellation."""
        self._stopped = True

    async def __aenter__(self) -> None:
        if self._stopped:
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        self._fired = False
        self._timer = asyncio.get_running_loop().call_later(self._left_seconds, self.fire)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        assert task is not None
        if self._timer is not None:
            self._timer.cancel()
        # Our own cancellation is taken back; one that also came from above is passed on.
        from_above = kind is asyncio.CancelledError and task.cancelling() > self._cancelling + self._fired
        # So is one left by a task group: before Python 3.13 it forgets its own when one of its tasks fails late.
        while task.cancelling() > self._cancelling + from_above:
            task.uncancel()
        if self._fired and kind is asyncio.CancelledError and not from_above:
            raise StepInterrupted from error


@dataclass(frozen=True, slots=True)
class RunSteps:
    """What executes each kind of step."""

    model: ModelStep
    policy: PolicyStep
    approval: ApprovalStep
    tools: ToolsStep
    finish: FinishStep


class RunLoop:
    """Executes runs, one `advance` each."""

    def __init__(self, engine: Engine, steps: RunSteps, *, clock: Clock, ids: IdSource, stops: StopService) -> None:
        self._engine = engine
        self._steps = steps
        self._clock = clock
        self._ids = ids
        self._stops = stops

    async def advance(self, lease: Lease, interruption: StepInterruption, state: RunState | None = None) -> RunStatus:
        """Execute the run as far as it goes without a person, and return its status."""
        carrier = RunExecution(self._engine, lease, clock=self._clock, ids=self._ids)
        state = await carrier.begin(state)
        while state.status not in TERMINAL and not isinstance(step := next_step(state), Suspend):
            carrier.decide_on(state)
            try:
                if not await self._cancel_stopped(state, carrier):
                    async with interruption.within(_seconds_left(state)):
                        await self._perform(state, step, carrier)
                state = carrier.state
            except* (RunChanged, StepInterrupted):
                # Everything the step had opened is closed by now; the next step is decided from what others wrote.
                state = await carrier.catch_up()
        return state.status

    async def _cancel_stopped(self, state: RunState, emit: Emit) -> bool:
        """End the run instead of taking a further step, if its principal's work is stopped."""
        # Between this check and the step no other task runs, unless there is something to confirm.
        if self._stops.stopped(state.principal) is None:
            return False
        stop = await self._stops.confirmed(state.principal)
        if stop is None:
            return False
        await emit([RunCancelled(at=self._clock.now(), actor=stop.by, reason=state.cancel or stop.cause)])
        return True

    async def fail(self, lease: Lease, event: RunEvent) -> None:
        """End a run that cannot go on."""
        carrier = RunExecution(self._engine, lease, clock=self._clock, ids=self._ids)
        if (await carrier.begin()).status not in TERMINAL:
            await carrier([event])

    async def _perform(self, state: RunState, step: Step, emit: Emit) -> None:
        match step:
            case CallModel():
                await self._steps.model.perform(state, step, emit)
            case CheckPolicy():
                await self._steps.policy.perform(state, step, emit)
            case ExecuteTools():
                await self._steps.tools.perform(state, step, emit)
            case Finish() | HandOver() | NoteLimit() | RefuseCalls() | Resume():
                await self._steps.finish.perform(state, step, emit)
            case AskApproval():
                await self._steps.approval.perform(state, step, emit)
            case Suspend():
                raise AssertionError("the loop must end before it reaches a suspension")
            case _ as never:
                assert_never(never)


class RunExecution:
    """The only writer that acts for a run: knows its state, and records what is done for it."""

    def __init__(self, engine: Engine, lease: Lease, *, clock: Clock, ids: IdSource) -> None:
        self._engine = engine
        self._lease = lease
        self._clock = clock
        self._ids = ids
        self._turn_to_write = asyncio.Lock()
        self._since = clock.monotonic()
        self._active_ms = 0
        """How long the run had been executed before this worker took it."""
        self.state: RunState

    def decide_on(self, state: RunState) -> None:
        """Begin a step that was decided on in this state."""
        self._decided_on, self._written = state, 0

    async def begin(self, state: RunState | None = None) -> RunState:
        """Start from a state that was just read, or replay the run."""
        run_id = RunId(self._lease.item_id)
        if state is None:
            state = await self._engine.read(lambda conn: replay(conn, run_id))
        self.state, self._active_ms = state, state.active_ms
        self.decide_on(state)
        return state

    async def catch_up(self) -> RunState:
        """Read what others wrote since, and return the new state."""
        state = self.state
        entries = await self._engine.read(lambda conn: tape.of_run(conn, state.run_id, after_run_seq=state.run_seq))
        self.state = fold(state, entries)
        return self.state

    def fence(self, conn: Connection) -> None:
        """Raise `LeaseLost` unless this worker still holds the run's lease, and lock the run until the unit ends."""
        leases.check(conn, leases.RUNS, self._lease)

    async def __call__(self, events: Sequence[RunEvent], /, *, also: Guard | None = None) -> RunState:
        """Record events, with the time spent since the last ones."""
        async with self._turn_to_write:
            state = self.state
            # All time minus what is recorded: if a write was interrupted, only the tape knows whether it was made.
            spent_ms = int((self._clock.monotonic() - self._since) * 1000)
            active_ms = spent_ms - (state.active_ms - self._active_ms)
            stamped = [*events[:-1], msgspec.structs.replace(events[-1], active_ms=active_ms)]
            written = len(stamped)

            def watched(conn: Connection) -> Sequence[RunEvent]:
                nonlocal written
                assert also is not None
                run_events = also(conn)
                written = len(stamped) + len(run_events)
                return run_events

            try:
                self.state = await self._engine.write(
                    lambda conn: write_run(
                        conn,
                        state,
                        stamped,
                        lease=self._lease,
                        ids=self._ids,
                        also=watched if also is not None else None,
                    )
                )
            except RunEventInvalid:
                # An earlier write of the same step may have folded in an event that makes this one not fit.
                if self._decided_on.run_seq + self._written < state.run_seq:
                    raise RunChanged from None
                raise
            self._written += written
            return self.state


def _seconds_left(state: RunState) -> float:
    """Return how long the next step may take: until the wall-clock limit, or some time over it once it is reached."""
    allowed = state.limits.wall_clock_ms + (state.limits.last_turn_timeout_ms if state.limit is not None else 0)
    return max(0.05, (allowed - state.active_ms) / 1000)
