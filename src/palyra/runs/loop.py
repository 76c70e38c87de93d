"""The loop: replay the run, ask what is next, carry it out, record it, until there is nothing to do."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import assert_never

import msgspec

from palyra.core.clock import Clock
from palyra.core.errors import PalyraError
from palyra.core.events import RunCancelled, RunEvent
from palyra.core.ids import IdSource, RunId
from palyra.core.run import TERMINAL, IllegalTransition, RunState, RunStatus
from palyra.core.step import (
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
from palyra.journal import leases, tape
from palyra.journal.engine import Connection, Engine
from palyra.journal.leases import Lease
from palyra.runs.attestations import Attester
from palyra.runs.emit import Emit, Guard
from palyra.runs.record import Overtaken, record
from palyra.runs.replay import fold, replay
from palyra.runs.steps.approval import ApprovalStep
from palyra.runs.steps.finish import FinishStep
from palyra.runs.steps.model import ModelStep
from palyra.runs.steps.policy import PolicyStep
from palyra.runs.steps.tools import ToolsStep
from palyra.runs.stops import Stops


class StepInterrupted(PalyraError):
    """The step was ended from outside, or by the run's wall clock."""


class Interruption:
    """Lets somebody end the step that is under way, and nothing else. Used as a context around each step."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cancelling = 0
        self._fired = False
        self._stopped = False
        self._left_seconds = 0.0

    def within(self, seconds: float) -> "Interruption":
        """Set the time after which the next step is ended by itself."""
        self._left_seconds = seconds
        return self

    def fire(self) -> None:
        """End the step, if one is under way."""
        if self._task is not None and not self._fired:
            self._fired = True
            self._task.cancel()

    def stop(self) -> None:
        """Let no further step begin. Whoever cancels the task says so too: a step that fails can swallow that."""
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
        # A cancellation of ours is taken back; one that came from above as well goes its way.
        from_above = kind is asyncio.CancelledError and task.cancelling() > self._cancelling + self._fired
        # So is one that a task group left behind: before Python 3.13 it forgets its own when a task of it fails late.
        while task.cancelling() > self._cancelling + from_above:
            task.uncancel()
        if self._fired and kind is asyncio.CancelledError and not from_above:
            raise StepInterrupted from error


class Loop:
    """Carries runs, one `advance` each."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock,
        ids: IdSource,
        model: ModelStep,
        policy: PolicyStep,
        approval: ApprovalStep,
        tools: ToolsStep,
        attester: Attester,
        stops: Stops,
    ) -> None:
        self._stops = stops
        self._engine = engine
        self._clock = clock
        self._ids = ids
        self._model = model
        self._policy = policy
        self._approval = approval
        self._tools = tools
        self._finish = FinishStep(attester=attester, clock=clock)

    async def advance(self, lease: Lease, interruption: Interruption, state: RunState | None = None) -> RunStatus:
        """Carry the run as far as it goes without a person, and say where it stands."""
        carrier = Carrier(self._engine, lease, clock=self._clock, ids=self._ids)
        state = await carrier.begin(state)
        while state.status not in TERMINAL and not isinstance(step := next_step(state), Suspend):
            carrier.decide_on(state)
            try:
                if not await self._halt(state, carrier):
                    async with interruption.within(_seconds_left(state)):
                        await self._perform(state, step, carrier)
                state = carrier.state
            except* (Overtaken, StepInterrupted):
                # Whatever the step had opened is closed by now; what others wrote decides anew.
                state = await carrier.catch_up()
        return state.status

    async def _halt(self, state: RunState, emit: Emit) -> bool:
        """End the run instead of taking a further step, if its principal's work is stopped."""
        # Between this look and the step nothing else has its turn, unless there is something to confirm.
        if self._stops.stopped(state.principal) is None:
            return False
        stop = await self._stops.confirmed(state.principal)
        if stop is None:
            return False
        await emit([RunCancelled(at=self._clock.now(), actor=stop.by, reason=state.cancel or stop.cause)])
        return True

    async def fail(self, lease: Lease, event: RunEvent) -> None:
        """End a run that can not be carried on."""
        carrier = Carrier(self._engine, lease, clock=self._clock, ids=self._ids)
        if (await carrier.begin()).status not in TERMINAL:
            await carrier([event])

    async def _perform(self, state: RunState, step: Step, emit: Emit) -> None:
        match step:
            case CallModel():
                await self._model.perform(state, step, emit)
            case CheckPolicy():
                await self._policy.perform(state, step, emit)
            case ExecuteTools():
                await self._tools.perform(state, step, emit)
            case Finish() | HandOver() | NoteLimit() | RefuseCalls() | Resume():
                await self._finish.perform(state, step, emit)
            case AskApproval():
                await self._approval.perform(state, step, emit)
            case Suspend():
                raise AssertionError("the loop ends before it would carry out a suspension")
            case _ as never:
                assert_never(never)


class Carrier:
    """The only one who acts for a run: knows its state, and records what is done for it."""

    def __init__(self, engine: Engine, lease: Lease, *, clock: Clock, ids: IdSource) -> None:
        self._engine = engine
        self._lease = lease
        self._clock = clock
        self._ids = ids
        self._turn_to_write = asyncio.Lock()
        self._since = clock.monotonic()
        self._carried_ms = 0
        """How long the run had been carried before this carrier."""
        self.state: RunState

    def decide_on(self, state: RunState) -> None:
        """Begin a step that was chosen in this state."""
        self._decided_on, self._written = state, 0

    async def begin(self, state: RunState | None = None) -> RunState:
        """Start from a state that was just read, or read the whole run."""
        run_id = RunId(self._lease.item_id)
        if state is None:
            state = await self._engine.read(lambda conn: replay(conn, run_id))
        self.state, self._carried_ms = state, state.carried_ms
        self.decide_on(state)
        return state

    async def catch_up(self) -> RunState:
        """Read what others wrote since."""
        known = self.state
        entries = await self._engine.read(lambda conn: tape.of_run(conn, known.run_id, after_run_seq=known.run_seq))
        self.state = fold(known, entries)
        return self.state

    def fence(self, conn: Connection) -> None:
        """Raise `LeaseLost` unless the run is still this worker's, and hold it until the unit ends."""
        leases.check(conn, leases.RUNS, self._lease)

    async def __call__(self, events: Sequence[RunEvent], /, *, also: Guard | None = None) -> RunState:
        """Record events, with the time that was spent since the last ones."""
        async with self._turn_to_write:
            known = self.state
            # All the time so far less what is recorded: if a write was interrupted, only the tape knows whether it was.
            spent_ms = int((self._clock.monotonic() - self._since) * 1000)
            carried_ms = spent_ms - (known.carried_ms - self._carried_ms)
            stamped = [*events[:-1], msgspec.structs.replace(events[-1], carried_ms=carried_ms)]
            written = len(stamped)

            def watched(conn: Connection) -> Sequence[RunEvent]:
                nonlocal written
                assert also is not None
                found = also(conn)
                written = len(stamped) + len(found)
                return found

            try:
                self.state = await self._engine.write(
                    lambda conn: record(
                        conn,
                        known,
                        stamped,
                        lease=self._lease,
                        ids=self._ids,
                        also=watched if also is not None else None,
                    )
                )
            except IllegalTransition:
                # An earlier write of the same step may have folded in what makes this one not fit.
                if self._decided_on.run_seq + self._written < known.run_seq:
                    raise Overtaken from None
                raise
            self._written += written
            return self.state


def _seconds_left(state: RunState) -> float:
    """Return how long the next step may take: to the wall clock, or a while over it once a limit is reached."""
    allowed = state.limits.wall_clock_ms + (state.limits.last_turn_ms if state.limit is not None else 0)
    return max(0.05, (allowed - state.carried_ms) / 1000)
