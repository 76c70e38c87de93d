"""Forget what is only kept for a time: idempotency keys after seven days, finished tasks after one, unused content."""

from palyra.background.queue import JobContext
from palyra.core.clock import to_ms
from palyra.core.ids import TaskId
from palyra.core.task import NewTask
from palyra.core.tool import JsonObject
from palyra.journal import blobs, idempotency, spending, tasks
from palyra.journal.engine import Connection

KIND = "journal.upkeep"
EVERY_MS = 3600_000
TASKS_KEPT_MS = 24 * 3600_000
SLICE = 500


def plan(conn: Connection, task_id: TaskId, *, now_ms: int, at_ms: int) -> None:
    """See to it that the next upkeep is written down."""
    tasks.add(
        conn, task_id, NewTask(kind=KIND, key=str(at_ms // EVERY_MS), payload={}, not_before_ms=at_ms), now_ms=now_ms
    )


async def run(payload: JsonObject, context: JobContext) -> None:
    """Delete in slices, so that no unit holds others up, then plan the next time."""
    now_ms = to_ms(context.clock.now())
    while await context.engine.write(lambda conn: idempotency.expire(conn, now_ms=now_ms)):
        pass
    while await context.engine.write(lambda conn: tasks.sweep(conn, before_ms=now_ms - TASKS_KEPT_MS, limit=SLICE)):
        pass
    while await context.engine.write(lambda conn: blobs.sweep(conn, now_ms=now_ms)):
        pass
    await context.engine.write(lambda conn: spending.sweep(conn, now_ms=now_ms))
    task_id = TaskId(context.ids.new())
    await context.engine.write(lambda conn: plan(conn, task_id, now_ms=now_ms, at_ms=now_ms + EVERY_MS))


JOBS = {KIND: run}
