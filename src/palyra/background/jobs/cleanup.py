"""Deletes expired data: idempotency keys after seven days, finished tasks after one, content that is not used."""

from palyra.background.queue import JobContext
from palyra.core.clock import to_ms
from palyra.core.ids import TaskId
from palyra.core.tool import JsonObject
from palyra.journal.content import blobs
from palyra.journal.ledger import accounts
from palyra.journal.stores import idempotency_keys, tasks

KIND = "journal.cleanup"
EVERY_MS = 3600_000
TASKS_KEPT_MS = 24 * 3600_000
SLICE = 500


async def run(payload: JsonObject, context: JobContext) -> None:
    """Delete in slices, so that no unit blocks others for long, then schedule the next cleanup."""
    now_ms = to_ms(context.clock.now())
    while await context.engine.write(lambda conn: idempotency_keys.expire(conn, now_ms=now_ms)):
        pass
    while await context.engine.write(lambda conn: tasks.sweep(conn, before_ms=now_ms - TASKS_KEPT_MS, limit=SLICE)):
        pass
    while await context.engine.write(lambda conn: blobs.sweep(conn, now_ms=now_ms)):
        pass
    await context.engine.write(lambda conn: accounts.sweep(conn, now_ms=now_ms))
    task_id = TaskId(context.ids.new())
    await context.engine.write(lambda conn: tasks.plan(conn, task_id, KIND, now_ms=now_ms, at_ms=now_ms + EVERY_MS))


JOBS = {KIND: run}
