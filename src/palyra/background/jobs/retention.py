"""Moves the tapes of sessions that were archived long ago to files in the home."""

import logging
from datetime import timedelta
from functools import partial
from pathlib import Path

from palyra.background.queue import Job, JobContext
from palyra.core.clock import to_ms
from palyra.core.ids import SessionId, TaskId
from palyra.core.tool import JsonObject
from palyra.journal.archive import rotation
from palyra.journal.archive.rotation import ArchiveInvalid
from palyra.journal.atomic_file import FileNotWritable
from palyra.journal.proof.export_proof import FileNotReadable
from palyra.journal.stores import tasks

KIND = "journal.retention"
EVERY_MS = 3600_000
BATCH_SIZE = 20
WORK_SECONDS = 20.0
"""A task has one minute; what is not done by then waits for the next round."""

log = logging.getLogger(__name__)


def jobs(folder: Path, *, archived_days: int) -> dict[str, Job]:
    """Return the job for a home folder; 0 days keeps everything."""

    async def run(payload: JsonObject, context: JobContext) -> None:
        if archived_days > 0:
            await _run(folder, timedelta(days=archived_days), context)

    return {KIND: run}


async def _run(folder: Path, kept_for: timedelta, context: JobContext) -> None:
    now, began = context.clock.now(), context.clock.monotonic()
    now_ms, before_ms = to_ms(now), to_ms(now - kept_for)
    task_id = TaskId(context.ids.new())
    # First, so that a problem with one session does not stop the rotation of all others.
    await context.engine.write(lambda conn: tasks.plan(conn, task_id, KIND, now_ms=now_ms, at_ms=now_ms + EVERY_MS))
    for session_id in await context.engine.read(rotation.unfinished):
        await _clear(session_id, context)
    after = ""
    while context.clock.monotonic() - began < WORK_SECONDS:
        session_ids = await context.engine.read(
            partial(rotation.due, before_ms=before_ms, after=after, limit=BATCH_SIZE)
        )
        try:
            for session_id in session_ids:
                await _rotate(session_id, folder, context)
        except FileNotWritable as error:
            # Most likely the disk is full: no other session would fit either. The next round tries again.
            log.warning("sessions are not rotated: %s", error.detail)
            return
        if not session_ids:
            return
        after = session_ids[-1]


async def _rotate(session_id: SessionId, folder: Path, context: JobContext) -> None:
    at = context.clock.now()
    try:
        record = await context.engine.read(lambda conn: rotation.write_archive(conn, session_id, folder=folder, at=at))
    except (ArchiveInvalid, FileNotReadable) as error:
        log.warning("session %s is not rotated: %s", session_id, error.detail)
        return
    if not await context.engine.write(lambda conn: rotation.detach_session(conn, session_id, record)):
        # The session was used again at the same moment. The file is removed where blocking is allowed.
        await context.engine.read(lambda _: (folder / record.file).unlink(missing_ok=True))
        return
    await _clear(session_id, context)
    log.info("session %s is rotated to %s", session_id, record.file)


async def _clear(session_id: SessionId, context: JobContext) -> None:
    words = await context.engine.read(lambda conn: rotation.index_rows_of(conn, session_id))
    while await context.engine.write(lambda conn: rotation.remove_slice(conn, session_id, words)):
        pass
