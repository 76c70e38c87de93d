"""Child runs: each has its own session, and is started, ended and cancelled in its own units of work.

A unit of work holds one tape. A change to two sessions is therefore a task in the commit of the first and a unit of
work on the second. Each of these units first checks whether it was done already, so it can be retried at any time.
"""

from collections.abc import Iterator
from datetime import datetime

from palyra.core.clock import Clock, to_ms
from palyra.core.event import ParentRun
from palyra.core.events import ChildEnded, ChildStarted, RunAccepted, RunEvent
from palyra.core.ids import CallId, IdSource, RunId
from palyra.core.limits import Limits
from palyra.core.policy import labels
from palyra.core.run.state import TERMINAL, CallStage, RunState, RunStatus
from palyra.core.session import new_session
from palyra.core.tool import CallOutcome
from palyra.journal import tape
from palyra.journal.engines.base import Connection
from palyra.journal.stores import messages, runs, stops
from palyra.runs.engine.attester import ExecutionAttester
from palyra.runs.labels.result_labels import scan_result
from palyra.runs.recording.replay import replay
from palyra.runs.recording.run_writer import write_from_outside
from palyra.runs.recording.session_writer import SessionWriter


def limits_for_child(state: RunState) -> Limits:
    """Return the limits of a child: never more than its parent has left."""
    limits = state.limits
    return limits.within(
        model_turns=limits.model_turns - state.counted_turns,
        tool_calls=limits.tool_calls - state.executed,
        wall_clock_ms=limits.wall_clock_ms - state.active_ms,
    )


def refusal(state: RunState) -> str | None:
    """Say why the run may not start another child, None if it may."""
    depth = state.parent.depth + 1 if state.parent else 1
    if depth > state.limits.max_depth:
        return f"a run may be at most {state.limits.max_depth} levels below the first; do this task yourself"
    if state.children >= state.limits.max_children:
        return f"a run may have at most {state.limits.max_children} child runs; do this task yourself"
    return None


def start(conn: Connection, parent_run_id: RunId, call_id: CallId, *, ids: IdSource, at: datetime) -> None:
    """Start the child that a call waits for, unless it exists or is no longer wanted."""
    # The parent's tape is locked too: a cancel of the parent then finds the child either started or never to start.
    # No other unit can wait for the child's tape, which does not exist yet.
    session_id = runs.session_of(conn, parent_run_id)
    assert session_id is not None
    tape.lock(conn, session_id)
    parent = replay(conn, parent_run_id)
    event = _started(conn, parent_run_id, call_id)
    if not _awaited(parent, event) or runs.session_of(conn, event.child_run_id) is not None:
        return
    if stops.is_stopped(conn, parent.principal):
        # The parent, which was active when the stop came, ends without the child.
        return
    above = ParentRun(
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
    writer = SessionWriter.create(conn, session, parent=above, ids=ids)
    if writer is None:
        return
    writer.accept(
        event.child_run_id,
        RunAccepted(
            at=at,
            actor=f"run:{parent.run_id}",
            # The model wrote the task, so the task has the labels of everything the model had read.
            labels=labels.mixed_label(event.labels, (labels.TOOL,)),
            text=event.text,
            principal=parent.principal,
            agent_id=parent.agent_id,
            limits=event.limits,
            channel="run",
            parent=above,
            source_channels=parent.channels,
        ),
    )
    writer.close()


def report(conn: Connection, child_run_id: RunId, *, attester: ExecutionAttester, clock: Clock, ids: IdSource) -> None:
    """Report to the parent how its child ended, unless the parent knows or no longer waits."""
    child = replay(conn, child_run_id)
    assert child.parent is not None
    answer = messages.answer_of(conn, child.session_id, child.run_id)
    learned = _labels(conn, child_run_id)
    reason = runs.reason_of(conn, child_run_id)
    parent, at = child.parent, clock.now()

    def decide(state: RunState, execution: bool) -> Iterator[RunEvent]:
        if state.status in TERMINAL:
            return
        waiting = [c for c in state.calls if c.call.call_id == parent.call_id and c.stage is CallStage.WAITING]
        if waiting and waiting[0].waits_for == child_run_id:
            done = child.status is RunStatus.DONE
            event = ChildEnded(
                at=at,
                actor=f"run:{child_run_id}",
                labels=learned,
                call_id=parent.call_id,
                child_run_id=child_run_id,
                outcome=CallOutcome.OK if done else CallOutcome.ERROR,
                text=answer if done else f"the child run ended {child.status.value}: {reason or 'no reason given'}",
                signals=scan_result(answer) if done else (),
            )
            yield attester.attest(state, event)

    write_from_outside(conn, parent.run_id, decide, ids=ids, now_ms=to_ms(at))


def _labels(conn: Connection, run_id: RunId) -> tuple[str, ...]:
    """Return the labels of a run's text: those of everything its last turn had read."""
    events = (entry.event for entry in reversed(tape.of_run(conn, run_id)) if entry.kind == "model_turn_ended")
    last = next(events, None)
    return labels.mixed_label(last.labels, (labels.TOOL,)) if last is not None else (labels.TOOL,)


def _awaited(parent: RunState, event: ChildStarted) -> bool:
    return parent.status not in TERMINAL and any(
        c.stage is CallStage.WAITING and c.waits_for == event.child_run_id for c in parent.calls
    )


def _started(conn: Connection, run_id: RunId, call_id: CallId) -> ChildStarted:
    for entry in reversed(tape.of_run(conn, run_id)):
        if entry.kind == "child_started":
            event = entry.event
            assert isinstance(event, ChildStarted)
            if event.call_id == call_id:
                return event
    raise AssertionError(f"run {run_id} has no child for call {call_id}")
