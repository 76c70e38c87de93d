"""Move the tapes of sessions that were archived long ago to files of the home."""

import logging
from datetime import timedelta
from functools import partial
from pathlib import Path

from palyra.background.queue import Job, JobContext
from palyra.core.clock import to_ms
from palyra.core.ids import SessionId, TaskId
from palyra.core.task import NewTask
from palyra.core.tool import JsonObject
from palyra.journal import retention, tasks
from palyra.journal.engine import Connection
from palyra.journal.exported import FileUnreadable
from palyra.journal.retention import ArchiveUnproved
from palyra.journal.whole import FileNotWritten

KIND = "journal.retention"
EVERY_MS = 3600_000
AT_ONCE = 20
WORK_SECONDS = 20.0
"""A task has a minute; what is not done by then waits for the next."""

log = logging.getLogger(__name__)


def plan(conn: Connection, task_id: TaskId, *, now_ms: int, at_ms: int) -> None:
    """See to it that the next rotation is written down."""
    key = str(at_ms // EVERY_MS)
    tasks.add(conn, task_id, NewTask(kind=KIND, key=key, payload={}, not_before_ms=at_ms), now_ms=now_ms)


def jobs(folder: Path, *, archived_days: int) -> dict[str, Job]:
    """Return the job for a home folder; with 0 days everything is kept."""

    async def run(payload: JsonObject, context: JobContext) -> None:
        if archived_days > 0:
            await _run(folder, timedelta(days=archived_days), context)

    return {KIND: run}


async def _run(folder: Path, kept_for: timedelta, context: JobContext) -> None:
    now, began = context.clock.now(), context.clock.monotonic()
    now_ms, before_ms = to_ms(now), to_ms(now - kept_for)
    task_id = TaskId(context.ids.new())
    # First, so that trouble with one session does not end the rotation of all others.
    await context.engine.write(lambda conn: plan(conn, task_id, now_ms=now_ms, at_ms=now_ms + EVERY_MS))
    for session_id in await context.engine.read(retention.unfinished):
        await _clear(session_id, context)
    after = ""
    while context.clock.monotonic() - began < WORK_SECONDS:
        found = await context.engine.read(partial(retention.due, before_ms=before_ms, after=after, limit=AT_ONCE))
        try:
            for session_id in found:
                await _rotate(session_id, folder, context)
        except FileNotWritten as error:
            # The disk is full, most likely: no other session would fit either. The next round tries again.
            log.warning("sessions are not rotated: %s", error.detail)
            return
        if not found:
            return
        after = found[-1]


async def _rotate(session_id: SessionId, folder: Path, context: JobContext) -> None:
    at = context.clock.now()
    try:
        record = await context.engine.read(
            lambda conn: retention.put_into_archive(conn, session_id, folder=folder, at=at)
        )
    except (ArchiveUnproved, FileUnreadable) as error:
        log.warning("session %s is not rotated: %s", session_id, error.detail)
        return
    if not await context.engine.write(lambda conn: retention.take_out(conn, session_id, record)):
        # Somebody took it up again in the same moment. The file is removed where files may be waited for.
        await context.engine.read(lambda _: (folder / record.file).unlink(missing_ok=True))
        return
    await _clear(session_id, context)
    log.info("session %s is rotated to %s", session_id, record.file)


async def _clear(session_id: SessionId, context: JobContext) -> None:
    words = await context.engine.read(lambda conn: retention.words_of(conn, session_id))
    while await context.engine.write(lambda conn: retention.remove_slice(conn, session_id, words)):
        pass
