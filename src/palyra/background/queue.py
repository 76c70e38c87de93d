"""The task queue: takes tasks that are due, runs the job of each, and retries failed ones."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from palyra.core.clock import Clock, to_ms
from palyra.core.errors import Internal, JournalClosed, Unavailable
from palyra.core.ids import IdSource
from palyra.core.task import Task
from palyra.core.tool import JsonObject
from palyra.journal.engines.base import JOURNAL_AWAY, Connection, Engine, Fact, WorkAvailable
from palyra.journal.stores import leases, tasks
from palyra.journal.stores.leases import Lease, LeaseLost

SWEEP_SECONDS = 2.0
CONCURRENCY = 8
TASK_SECONDS = 60.0
FIRST_WAIT_MS = 500
MAX_WAIT_MS = 5 * 60_000

log = logging.getLogger(__name__)


class TaskKindUnknown(Internal):
    """There is no job for tasks of this kind."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """What a job may use."""

    engine: Engine
    clock: Clock
    ids: IdSource


Job = Callable[[JsonObject, JobContext], Awaitable[None]]


class TaskQueue:
    """Runs tasks. A task may run more than once: every job first checks what is already done."""

    def __init__(self, context: JobContext, jobs: Mapping[str, Job], *, owner: str) -> None:
        self._context = context
        self._engine = context.engine
        self._clock = context.clock
        self._jobs = jobs
        self._owner = owner
        self._wake = asyncio.Event()
        self._busy = 0
        self._left: list[Lease] = []
        """Leases of tasks whose result could not be recorded, because the journal could not be written."""
        self._claimed_ms = 0
        self._engine.subscribe(self._notice)

    async def run(self) -> None:
        """Run tasks until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._wake.clear()
                    await self._take_up(group)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(SWEEP_SECONDS):
                            await self._wake.wait()
        finally:
            with suppress(Unavailable):
                await self._engine.write(lambda conn: leases.release_all(conn, leases.TASKS, owner=self._owner))

    async def _take_up(self, group: asyncio.TaskGroup) -> None:
        free, now_ms = CONCURRENCY - self._busy, to_ms(self._clock.now())
        if not self._busy and not await self._due(now_ms):
            return
        left = tuple(self._left)
        try:
            claimed = await self._engine.write(lambda conn: self._claim(conn, left, now_ms=now_ms, limit=free))
        except Unavailable:
            return  # logged once for all callers; the next sweep tries again
        self._left = self._left[len(left) :]
        self._claimed_ms = now_ms
        for lease, task in claimed:
            self._busy += 1
            group.create_task(self._run_task(lease, task))

    async def _due(self, now_ms: int) -> bool:
        """Return whether there may be a task to take. Leases of dead daemons are checked from time to time."""
        if self._left or abs(now_ms - self._claimed_ms) >= leases.LENGTH_MS:
            return True
        with suppress(Unavailable):
            due = await self._engine.read(tasks.next_due_ms)
            return due is not None and due <= now_ms
        return False

    def _claim(self, conn: Connection, left: Sequence[Lease], *, now_ms: int, limit: int) -> list[tuple[Lease, Task]]:
        """Take tasks that are due, and renew the leases of running ones: a task may take longer than a lease."""
        for lease in left:
            leases.release(conn, leases.TASKS, lease)
        if now_ms < self._claimed_ms:
            tasks.hasten(conn, now_ms=now_ms, longest_ms=MAX_WAIT_MS)  # the clock was set back
        leases.renew(conn, leases.TASKS, owner=self._owner, now_ms=now_ms)
        return tasks.claim(conn, owner=self._owner, now_ms=now_ms, limit=limit) if limit > 0 else []

    async def _run_task(self, lease: Lease, task: Task) -> None:
        try:
            error = await self._attempt(task)
            now_ms = to_ms(self._clock.now())
            if error is None:
                await self._engine.write(lambda conn: tasks.finish(conn, lease, now_ms=now_ms))
            elif task.attempts >= task.max_attempts and not isinstance(error, JOURNAL_AWAY):
                log.error("task %s %s is parked: %s", task.kind, task.task_id, error)
                await self._engine.write(lambda conn: tasks.park(conn, lease, now_ms=now_ms, error=_error_text(error)))
            else:
                # A journal that cannot be written is not the task's fault, and a run may wait for the task.
                at_ms = now_ms + min(FIRST_WAIT_MS * 2 ** (task.attempts - 1), MAX_WAIT_MS)
                await self._engine.write(lambda conn: tasks.retry(conn, lease, at_ms=at_ms, error=_error_text(error)))
        except (LeaseLost, JournalClosed):
            pass
        except Unavailable as trouble:
            self._left.append(lease)  # retried when the journal can be written
            if not isinstance(trouble, JOURNAL_AWAY):
                log.warning("task %s is postponed: %s", task.kind, trouble)
        finally:
            self._busy -= 1
            self._wake.set()

    async def _attempt(self, task: Task) -> Exception | None:
        """Run the task; return the error, None if there was none."""
        job = self._jobs.get(task.kind)
        if job is None:
            return TaskKindUnknown(f"there is no job for {task.kind}")
        try:
            async with asyncio.timeout(TASK_SECONDS):
                await job(task.payload, self._context)
        except JOURNAL_AWAY as error:
            return error  # logged once for all callers
        except Exception as error:
            log.exception("task %s failed", task.kind, extra={"task_id": task.task_id})
            return error
        return None

    def _notice(self, facts: Sequence[Fact]) -> None:
        if any(isinstance(fact, WorkAvailable) and fact.topic == "tasks" for fact in facts):
            self._wake.set()


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
