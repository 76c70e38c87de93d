"""How a run is written to: by its carrier, and by others who want something of it. All of it goes through a `Book`."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from palyra.core.errors import Conflict
from palyra.core.events import RunCancelled, RunCompleted, RunEvent, RunFailed
from palyra.core.ids import IdSource, RunId
from palyra.core.run import TERMINAL, IllegalTransition, RunState, RunStatus
from palyra.core.step import Finish, next_step
from palyra.journal import runs, tape
from palyra.journal.engine import Connection
from palyra.journal.leases import Lease, LeaseLost
from palyra.runs.book import Book
from palyra.runs.replay import fold, replay


class Overtaken(Conflict):
    """Somebody else wrote to the run in between; what was to be recorded no longer fits."""


def record(
    conn: Connection,
    state: RunState,
    events: Sequence[RunEvent],
    *,
    lease: Lease,
    ids: IdSource,
    also: Callable[[Connection], Sequence[RunEvent]] | None = None,
) -> RunState:
    """Write what the carrier of a run has done, and return where the run stands now.

    A guard looks at the rows first, once the session is held; what it returns is written before the rest.
    """
    book = Book.open(conn, state.session_id, ids=ids)
    mark = runs.mark(conn, state.run_id)
    if mark.lease != lease:
        raise LeaseLost
    overtaken = mark.run_seq > state.run_seq
    if overtaken:
        state = fold(state, tape.of_run(conn, state.run_id, after_run_seq=state.run_seq))
    try:
        for event in (*also(conn), *events) if also is not None else events:
            state = book.add(state, event)
    except IllegalTransition:
        if overtaken:
            raise Overtaken from None
        raise
    if state.status not in TERMINAL and isinstance(step := next_step(state), Finish) and step.status is RunStatus.DONE:
        # Nothing is left to do but to say so: that needs no commit of its own.
        state = book.add(state, ending(step, at=events[-1].at))
    book.close()
    return state


def ending(step: Finish, *, at: datetime) -> RunEvent:
    """Return the event with which a run ends."""
    match step:
        case Finish(status=RunStatus.DONE, limit=limit):
            return RunCompleted(at=at, limit_reached=limit)
        case Finish(status=RunStatus.CANCELLED, reason=reason):
            return RunCancelled(at=at, reason=reason)
        case Finish(reason=reason, code=code):
            return RunFailed(at=at, code=code, reason=reason)


def intrude(
    conn: Connection,
    run_id: RunId,
    decide: Callable[[RunState, bool], Iterable[RunEvent]],
    *,
    ids: IdSource,
    now_ms: int,
) -> RunState:
    """Write to a run from outside. `decide` is given its state, and whether somebody carries it at this moment."""
    session_id = runs.session_of(conn, run_id)
    assert session_id is not None
    book = Book.open(conn, session_id, ids=ids)
    state = replay(conn, run_id)
    carried = runs.is_carried(conn, run_id, now_ms=now_ms)
    for event in decide(state, carried):
        state = book.add(state, event)
    book.close()
    return state
