"""Child runs: each in a session of its own, started, ended and cancelled by units of their own.

A unit holds one tape. What concerns two sessions is therefore a task in the commit of the one and a unit on the other;
each of these units looks first whether it has been done already, so that it may be tried as often as need be.
"""

from collections.abc import Iterator
from datetime import datetime

from palyra.core import labels
from palyra.core.clock import Clock, to_ms
from palyra.core.events import ChildEnded, ChildStarted, Parent, RunAccepted, RunEvent
from palyra.core.ids import CallId, IdSource, RunId
from palyra.core.limits import Limits
from palyra.core.run import TERMINAL, RunState, RunStatus, Stage
from palyra.core.session import new_session
from palyra.core.tool import Outcome
from palyra.journal import messages, runs, stops, tape
from palyra.journal.engine import Connection
from palyra.runs.attestations import Attester
from palyra.runs.book import Book
from palyra.runs.learned import scanned
from palyra.runs.record import intrude
from palyra.runs.replay import replay


def limits_for_child(state: RunState) -> Limits:
    """Return the limits of a child: never more than its parent has left."""
    limits = state.limits
    return limits.within(
        model_turns=limits.model_turns - state.counted_turns,
        tool_calls=limits.tool_calls - state.executed,
        wall_clock_ms=limits.wall_clock_ms - state.carried_ms,
    )


def refusal(state: RunState) -> str | None:
    """Say why the run may not have a further child, None if it may."""
    depth = state.parent.depth + 1 if state.parent else 1
    if depth > state.limits.depth:
        return f"a run may stand at most {state.limits.depth} levels below the first; do this task yourself"
    if state.children >= state.limits.children:
        return f"a run may have at most {state.limits.children} children; do this task yourself"
    return None


def start(conn: Connection, parent_run_id: RunId, call_id: CallId, *, ids: IdSource, at: datetime) -> None:
    """Begin the child that a call waits for, unless it exists or is not wanted any more."""
    # The parent's tape is held too: a cancel of the parent looks for the child, and finds it begun or never to begin.
    # Nobody else can wait for the child's, which does not exist yet.
    session_id = runs.session_of(conn, parent_run_id)
    assert session_id is not None
    tape.lock(conn, session_id)
    parent = replay(conn, parent_run_id)
    event = _started(conn, parent_run_id, call_id)
    if not _awaited(parent, event) or runs.session_of(conn, event.child_run_id) is not None:
        return
    if stops.holds(conn, parent.principal):
        # The parent, which was active when it was stopped, ends without it.
        return
    above = Parent(
        run_id=parent.run_id,
        session_id=parent.session_id,
        call_id=call_id,
        depth=parent.parent.depth + 1 if parent.parent else 1,
        root_run_id=parent.root_run_id,
        root_session_id=parent.root_session_id,
    )
    session = new_session(
        event.child_session_id,
        parent.principal,
        agent_id=parent.agent_id,
        at=at,
        parent_session_id=parent.session_id,
    )
    book = Book.create(conn, session, parent=above, ids=ids)
    if book is None:
        return
    book.accept(
        event.child_run_id,
        RunAccepted(
            at=at,
            actor=f"run:{parent.run_id}",
            # The model wrote the task: it holds whatever the model had read.
            labels=labels.mixed(event.labels, (labels.TOOL,)),
            text=event.text,
            principal=parent.principal,
            agent_id=parent.agent_id,
            limits=event.limits,
            origin="run",
            parent=above,
            channels=parent.channels,
        ),
    )
    book.close()


def report(conn: Connection, child_run_id: RunId, *, attester: Attester, clock: Clock, ids: IdSource) -> None:
    """Tell the parent how its child ended, unless it knows or does not wait any more."""
    child = replay(conn, child_run_id)
    assert child.parent is not None
    answer = messages.answer_of(conn, child.session_id, child.run_id)
    learned = _labels(conn, child_run_id)
    reason = runs.reason_of(conn, child_run_id)
    parent, at = child.parent, clock.now()

    def decide(state: RunState, carried: bool) -> Iterator[RunEvent]:
        if state.status in TERMINAL:
            return
        waiting = [c for c in state.calls if c.call.call_id == parent.call_id and c.stage is Stage.WAITING]
        if waiting and waiting[0].waits_for == child_run_id:
            done = child.status is RunStatus.DONE
            event = ChildEnded(
                at=at,
                actor=f"run:{child_run_id}",
                labels=learned,
                call_id=parent.call_id,
                child_run_id=child_run_id,
                outcome=Outcome.OK if done else Outcome.ERROR,
                text=answer if done else f"the child run ended {child.status.value}: {reason or 'no reason given'}",
                signals=scanned(answer) if done else (),
            )
            yield attester.attest(state, event)

    intrude(conn, parent.run_id, decide, ids=ids, now_ms=to_ms(at))


def _labels(conn: Connection, run_id: RunId) -> tuple[str, ...]:
    """Return where the words of a run come from: all that its last turn had before it."""
    events = (entry.event for entry in reversed(tape.of_run(conn, run_id)) if entry.kind == "model_turn_ended")
    last = next(events, None)
    return labels.mixed(last.labels, (labels.TOOL,)) if last is not None else (labels.TOOL,)


def _awaited(parent: RunState, event: ChildStarted) -> bool:
    return parent.status not in TERMINAL and any(
        c.stage is Stage.WAITING and c.waits_for == event.child_run_id for c in parent.calls
    )


def _started(conn: Connection, run_id: RunId, call_id: CallId) -> ChildStarted:
    for entry in reversed(tape.of_run(conn, run_id)):
        if entry.kind == "child_started":
            event = entry.event
            assert isinstance(event, ChildStarted)
            if event.call_id == call_id:
                return event
    raise AssertionError(f"run {run_id} has no child for call {call_id}")
