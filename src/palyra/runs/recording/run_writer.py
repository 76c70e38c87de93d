"""Writes to a run: for its worker, and for others. All of it goes through a `SessionWriter`."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from palyra.core.errors import Conflict
from palyra.core.events import RunCancelled, RunCompleted, RunEvent, RunFailed
from palyra.core.ids import IdSource, RunId
from palyra.core.run.state import TERMINAL, RunEventInvalid, RunState, RunStatus
from palyra.core.run.steps import Finish, next_step
from palyra.journal import tape
from palyra.journal.engines.base import Connection
from palyra.journal.stores import runs
from palyra.journal.stores.leases import Lease, LeaseLost
from palyra.runs.recording.replay import fold, replay
from palyra.runs.recording.session_writer import SessionWriter


class RunChanged(Conflict):
    """The run changed in between, so the event could not be recorded."""


def write_run(
    conn: Connection,
    state: RunState,
    events: Sequence[RunEvent],
    *,
    lease: Lease,
    ids: IdSource,
    also: Callable[[Connection], Sequence[RunEvent]] | None = None,
) -> RunState:
    """Write the events of the worker that executes a run, and return the new state of the run.

    A guard reads rows first, once the session is locked; what it returns is written before the rest.
    """
    writer = SessionWriter.open(conn, state.session_id, ids=ids)
    mark = runs.mark(conn, state.run_id)
    if mark.lease != lease:
        raise LeaseLost
    overtaken = mark.run_seq > state.run_seq
    if overtaken:
        state = fold(state, tape.of_run(conn, state.run_id, after_run_seq=state.run_seq))
    try:
        for event in (*also(conn), *events) if also is not None else events:
            state = writer.add(state, event)
    except RunEventInvalid:
        if overtaken:
            raise RunChanged from None
        raise
    if state.status not in TERMINAL and isinstance(step := next_step(state), Finish) and step.status is RunStatus.DONE:
        # Only the end is left to record, which needs no commit of its own.
        state = writer.add(state, ending_event(step, at=events[-1].at))
    writer.close()
    return state


def ending_event(step: Finish, *, at: datetime) -> RunEvent:
    """Return the event that ends a run."""
    match step:
        case Finish(status=RunStatus.DONE, limit=limit):
            return RunCompleted(at=at, limit_reached=limit)
        case Finish(status=RunStatus.CANCELLED, reason=reason):
            return RunCancelled(at=at, reason=reason)
        case Finish(reason=reason, code=code):
            return RunFailed(at=at, code=code, reason=reason)


def write_from_outside(
    conn: Connection,
    run_id: RunId,
    decide: Callable[[RunState, bool], Iterable[RunEvent]],
    *,
    ids: IdSource,
    now_ms: int,
) -> RunState:
    """Write to a run from outside. `decide` gets its state, and whether a worker is executing it now."""
    session_id = runs.session_of(conn, run_id)
    assert session_id is not None
    writer = SessionWriter.open(conn, session_id, ids=ids)
    state = replay(conn, run_id)
    execution = runs.is_leased(conn, run_id, now_ms=now_ms)
    for event in decide(state, execution):
        state = writer.add(state, event)
    writer.close()
    return state
