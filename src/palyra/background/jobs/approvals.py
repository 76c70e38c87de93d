"""Approval requests that expired without an answer."""

from palyra.background.queue import JobContext
from palyra.core.ids import CallId, RunId
from palyra.core.tool import JsonObject
from palyra.runs.recording import session_writer
from palyra.runs.services import approvals


async def expire(payload: JsonObject, context: JobContext) -> None:
    """Deny the call, and let its run continue."""
    run_id, call_id = RunId(payload["run_id"]), CallId(payload["call_id"])
    await context.engine.write(
        lambda conn: approvals.expire(
            conn, run_id, call_id, payload["approval_id"], clock=context.clock, ids=context.ids
        )
    )


JOBS = {session_writer.APPROVAL_EXPIRE: expire}
