"""What concerns two sessions at once: starting a child run, reporting its end, cancelling it."""

from functools import partial

from palyra.background.queue import Job, JobContext
from palyra.core.ids import CallId, RunId
from palyra.core.tool import JsonObject
from palyra.journal import runs
from palyra.runs import book, children, control
from palyra.runs.attestations import Attester


async def start(payload: JsonObject, context: JobContext) -> None:
    """Begin the child that a call of its parent waits for."""
    at = context.clock.now()
    parent, call_id = RunId(payload["parent_run_id"]), CallId(payload["call_id"])
    await context.engine.write(lambda conn: children.start(conn, parent, call_id, ids=context.ids, at=at))


async def ended(payload: JsonObject, context: JobContext, *, attester: Attester) -> None:
    """Tell the parent that its child has ended."""
    child = RunId(payload["run_id"])
    await context.engine.write(
        lambda conn: children.report(conn, child, attester=attester, clock=context.clock, ids=context.ids)
    )


async def cancel(payload: JsonObject, context: JobContext) -> None:
    """Cancel a child whose parent has ended; one that never began needs nothing."""
    child = RunId(payload["run_id"])
    if await context.engine.read(lambda conn: runs.session_of(conn, child)) is None:
        return
    await context.engine.write(
        lambda conn: control.cancel(
            conn, child, actor="system", reason=payload["reason"], clock=context.clock, ids=context.ids
        )
    )


def jobs(attester: Attester) -> dict[str, Job]:
    """Return the jobs of children."""
    return {
        book.CHILD_START: start,
        book.CHILD_ENDED: partial(ended, attester=attester),
        book.CHILD_CANCEL: cancel,
    }
