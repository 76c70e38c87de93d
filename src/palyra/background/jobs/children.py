"""Jobs that write to two sessions: start a child run, report its end to the parent, cancel it."""

from functools import partial

from palyra.background.queue import Job, JobContext
from palyra.core.ids import CallId, RunId
from palyra.core.tool import JsonObject
from palyra.journal.stores import runs
from palyra.runs.engine import child_runs
from palyra.runs.engine.attester import ExecutionAttester
from palyra.runs.recording import session_writer
from palyra.runs.services import cancellation


async def start(payload: JsonObject, context: JobContext) -> None:
    """Start the child run that a call of its parent waits for."""
    at = context.clock.now()
    parent, call_id = RunId(payload["parent_run_id"]), CallId(payload["call_id"])
    await context.engine.write(lambda conn: child_runs.start(conn, parent, call_id, ids=context.ids, at=at))


async def ended(payload: JsonObject, context: JobContext, *, attester: ExecutionAttester) -> None:
    """Report the end of a child run to its parent."""
    child = RunId(payload["run_id"])
    await context.engine.write(
        lambda conn: child_runs.report(conn, child, attester=attester, clock=context.clock, ids=context.ids)
    )


async def cancel(payload: JsonObject, context: JobContext) -> None:
    """Cancel a child run whose parent has ended; do nothing if it never started."""
    child = RunId(payload["run_id"])
    if await context.engine.read(lambda conn: runs.session_of(conn, child)) is None:
        return
    await context.engine.write(
        lambda conn: cancellation.cancel(
            conn, child, actor="system", reason=payload["reason"], clock=context.clock, ids=context.ids
        )
    )


def jobs(attester: ExecutionAttester) -> dict[str, Job]:
    """Return the jobs for child runs."""
    return {
        session_writer.CHILD_START: start,
        session_writer.CHILD_ENDED: partial(ended, attester=attester),
        session_writer.CHILD_CANCEL: cancel,
    }
