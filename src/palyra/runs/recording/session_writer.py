"""The only way to write to a session: events go to the tape and to the projections, in one transaction.

Theory of operation. A unit of work opens the session's writer: it locks the head of the tape, so no other unit can
write to the session until it commits. Every event is first folded into the state of its run (`evolve`); one that does
not fit raises, and the unit is rolled back. When the writer is closed, the entries go to the tape, together with
all that they imply: the run's row, messages, the next run in the queue, tasks for other sessions. Nothing is ever shown
that is not part of such a commit.

Others write to a run too: a cancel, an answer, a further input. The worker of a run therefore passes the state that
it decided on; what was written since is folded in first. If the worker's events no longer fit, `RunChanged` is raised
and the worker decides again.
"""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from palyra.core.clock import to_ms
from palyra.core.event import ParentRun
from palyra.core.events import (
    ApprovalRequested,
    ChildStarted,
    Entry,
    HistoryAttached,
    ModelText,
    RunAccepted,
    RunCancelled,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunStarted,
    ToolProposed,
)
from palyra.core.ids import CallId, IdSource, PrincipalId, RunId, SessionId, TaskId
from palyra.core.policy import labels
from palyra.core.policy.approval import Approval
from palyra.core.projection.changes import (
    ActiveRunChanged,
    Change,
    ConversationGrown,
    MessageAdded,
    RowChange,
    RunEnded,
    RunProgress,
    TokensUsed,
)
from palyra.core.projection.project import project
from palyra.core.run.machine import begin, evolve
from palyra.core.run.state import CallStage, RunState
from palyra.core.session import Session
from palyra.core.session_events import SessionCreated, SessionEvent, SessionReset
from palyra.core.task import NewTask
from palyra.journal import tape
from palyra.journal.engines.base import Connection, RunLeased
from palyra.journal.engines.tape_head import TapeHead
from palyra.journal.projection.apply import apply
from palyra.journal.stores import approvals, runs, sessions, stops, tasks
from palyra.journal.stores.leases import Lease
from palyra.journal.stores.runs import QueueSlot
from palyra.runs.recording.replay import TapeEntryInvalid, replay

_CUTTING_OFF = (RunFailed, RunCancelled)
"""Events that may end a turn early."""

CHILD_START = "child.start"
CHILD_ENDED = "child.ended"
CHILD_CANCEL = "child.cancel"
APPROVAL_EXPIRE = "approval.expire"
SESSION_TITLE = "session.title"


class SessionWriter:
    """A session's tape, locked for one unit of work. Open it first, close it last."""

    def __init__(self, conn: Connection, session_id: SessionId, *, head: TapeHead, ids: IdSource) -> None:
        self._conn = conn
        self.session_id = session_id
        self._head = head
        self._ids = ids
        self._fresh: list[tape.NewEntry] = []
        self._messages: list[MessageAdded] = []
        self._touched: dict[RunId, RunProgress] = {}
        self._queued: dict[RunId, tuple[RunState, RunAccepted]] = {}
        """Runs of the queue that this unit has read or added."""
        self._active: ActiveRunChanged | None = None
        """The run that is active after this unit, if that changes."""
        self._tasks: list[NewTask] = []

    @classmethod
    def open(cls, conn: Connection, session_id: SessionId, *, ids: IdSource) -> "SessionWriter":
        """Lock the tape of a session that exists."""
        head = tape.lock(conn, session_id)
        assert head is not None, f"session {session_id} has no tape"
        return cls(conn, session_id, head=head, ids=ids)

    @property
    def seq(self) -> int:
        """The sequence number of the last entry, including those of this unit."""
        return self._head.tape_seq + len(self._fresh)

    @classmethod
    def create(
        cls, conn: Connection, session: Session, *, parent: ParentRun | None, ids: IdSource
    ) -> "SessionWriter | None":
        """Create a session and its tape; None if another unit took its key or label at the same time."""
        event = SessionCreated(
            at=session.created_at,
            actor=session.principal,
            principal=session.principal,
            agent_id=session.agent_id,
            key=session.key,
            label=session.label,
            parent=parent,
        )
        writer = cls(conn, session.session_id, head=TapeHead(0, tape.GENESIS), ids=ids)
        if not writer.note(event):
            return None
        tape.begin(conn, session.session_id)
        return writer

    def note(self, event: SessionEvent) -> bool:
        """Add an event of the session itself; False if its rows do not allow it, and then the unit must not close."""
        assert not (self._messages and isinstance(event, SessionReset)), "a reset counts the messages that are stored"
        self._fresh.append(tape.NewEntry(None, 0, event))
        return self._apply(project(self, self.seq, event))

    def accept(
        self,
        run_id: RunId,
        event: RunAccepted,
        *,
        attached_messages: Sequence[HistoryAttached] = (),
        first: bool = False,
        carrier: str | None = None,
    ) -> RunState:
        """Add a new run; it starts at once if no other is open, else it queues, at the front if it is `first`.

        If it starts and there is a `carrier`, that worker holds its lease from this commit on. The attached history in
        `given` joins the conversation before its input, so the run must start at once.
        """
        waiting = self._open_runs()
        lease = Lease(run_id, carrier, 1) if carrier is not None and not waiting else None
        state = begin(run_id, self.session_id, event)
        self._fresh.append(tape.NewEntry(run_id, 1, event))
        # The position orders the queue; a run that goes first is put before everything accepted so far.
        slot = QueueSlot(-self.seq if first else self.seq, lease)
        self._apply(project(self, self.seq, event, None, state), slot=slot)
        self._queued[run_id] = state, event
        assert not (waiting and attached_messages), "attached history must not come in the middle of another run"
        for message in attached_messages:
            state = self.add(state, message)
        if waiting:
            self._queued[run_id] = state, event
            return state
        state = self._start(state, at=event.at)
        if lease is not None:
            self._conn.publish(RunLeased(lease.owner, lease.epoch, state))
        return state

    def add(self, state: RunState, event: RunEvent) -> RunState:
        """Fold an event of a run into its state, and add it to the tape."""
        if isinstance(event, _CUTTING_OFF) and state.started:
            cut_off = state.text_labels if state.turn is not None and state.text else (labels.OWNER,)
            event = replace(event, in_conversation=True, labels=labels.join(event.labels, cut_off))
        after = evolve(state, event)
        self._fresh.append(tape.NewEntry(state.run_id, after.run_seq, event))
        progress = self._touched.get(state.run_id)
        if progress is None:
            progress = self._touched[state.run_id] = RunProgress(after, self.seq)
        else:
            progress.state, progress.last_seq = after, self.seq
        if changes := project(self, self.seq, event, state, after):
            self._apply(changes, progress)
        if not isinstance(event, ModelText):  # by far the most frequent kind
            self._cause(state, after, event)
        return after

    def _apply(
        self, changes: Sequence[Change], progress: RunProgress | None = None, *, slot: QueueSlot | None = None
    ) -> bool:
        """Write changes of rows now, apart from those that are written together when the writer is closed."""
        now: list[RowChange] = []
        for change in changes:
            match change:
                case MessageAdded():
                    self._messages.append(change)
                case ActiveRunChanged():
                    self._active = change
                case TokensUsed() | RunEnded():
                    assert progress is not None
                    progress.add(change)
                case _:
                    now.append(change)
        return apply(self._conn, self.session_id, now, slot=slot)

    def accepted(self, run_id: RunId) -> RunAccepted:
        """Return the event with which a run that starts in this unit was accepted."""
        return self._queued[run_id][1]

    def approval(self, approval_id: str, principal: PrincipalId) -> Approval | None:
        """Return an approval request; None for one from before there were rows."""
        return approvals.get(self._conn, approval_id, principal)

    def state_of(self, run_id: RunId) -> RunState:
        """Return the state of a run that this unit has written to."""
        return self._touched[run_id].state

    def close(self) -> list[Entry]:
        """Write all entries and rows. The caller's unit commits."""
        if not self._fresh:
            return []
        entries = tape.append(self._conn, self.session_id, head=self._head, fresh=self._fresh)
        changes: list[RowChange] = [*self._touched.values()]
        if self._messages or self._active is not None:
            changes.append(ConversationGrown(self._messages, self._active, entries[-1].at_ms))
        apply(self._conn, self.session_id, changes)
        for task in self._tasks:
            tasks.add(self._conn, TaskId(self._ids.new()), task, now_ms=entries[-1].at_ms)
        return entries

    def release(self, *, at: datetime) -> None:
        """Start the next run of the queue, if it was held back and no longer is."""
        if not any(active for _, active in self._open_runs()):
            self._promote(at=at)

    def _start(self, state: RunState, *, at: datetime) -> RunState:
        """Make the run the session's active one."""
        after = self.add(state, RunStarted(at=at))
        accepted = self.accepted(state.run_id)
        if (again := accepted.reissue) is not None:
            # The run's first step, in this commit, so that no reader ever sees the run without it.
            proposed = ToolProposed(
                at=at,
                actor=accepted.actor,
                labels=again.labels,
                turn=0,
                call_id=CallId(self._ids.new()),
                tool=again.tool,
                arguments=again.arguments,
            )
            after = self.add(after, proposed)
        return after

    def _open_runs(self) -> list[tuple[RunId, bool]]:
        result = runs.open_in(self._conn, self.session_id)
        ended = {run_id for run_id, touched in self._touched.items() if touched.ended_ms is not None}
        return [(run_id, active) for run_id, active in result if run_id not in ended]

    def _cause(self, before: RunState, after: RunState, event: RunEvent) -> None:
        """Do what follows from an event and is no derived row: tasks, and the start of the next run."""
        match event:
            case ChildStarted():
                self._tasks.append(_child_start(after, event))
            case ApprovalRequested():
                self._tasks.append(_expiry(after, event))
            case RunCompleted() | RunFailed() | RunCancelled():
                self._end(before, after, event)
            case _:
                pass

    def _end(self, before: RunState, after: RunState, event: RunCompleted | RunFailed | RunCancelled) -> None:
        if after.parent is not None:
            payload = {"run_id": after.run_id, "session_id": after.session_id}
            self._tasks.append(NewTask(kind=CHILD_ENDED, key=after.run_id, payload=payload))
        for call in after.calls:
            if call.stage is CallStage.WAITING and call.for_child and call.waits_for is not None:
                payload = {"run_id": call.waits_for, "reason": "the run that asked for it has ended"}
                self._tasks.append(NewTask(kind=CHILD_CANCEL, key=call.waits_for, payload=payload))
        if (
            isinstance(event, RunCompleted)
            and after.parent is None
            and not sessions.titled(self._conn, self.session_id)
        ):
            payload = {"session_id": self.session_id}
            self._tasks.append(NewTask(kind=SESSION_TITLE, key=self.session_id, payload=payload))
        if before.started:
            self._promote(at=event.at)

    def _promote(self, *, at: datetime) -> None:
        """Start the next run of the queue, in the same commit in which the one before it ended.

        Runs of a stopped principal stay in the queue until the work is resumed.
        """
        for run_id, _ in self._open_runs():
            try:
                state = self._state_in_queue(run_id)
            except TapeEntryInvalid as error:
                # The run that ended must end, and those behind this one must get their turn.
                runs.park(self._conn, run_id, reason=error.detail)
                continue
            if not stops.is_stopped(self._conn, state.principal):
                self._start(state, at=at)
            return

    def _state_in_queue(self, run_id: RunId) -> RunState:
        if run_id not in self._queued:
            state = replay(self._conn, run_id)
            accepted = tape.first_of_run(self._conn, run_id).event
            assert isinstance(accepted, RunAccepted)
            self._queued[run_id] = state, accepted
        return self._queued[run_id][0]


def _expiry(state: RunState, event: ApprovalRequested) -> NewTask:
    payload = {"run_id": state.run_id, "call_id": event.call_id, "approval_id": event.approval_id}
    return NewTask(kind=APPROVAL_EXPIRE, key=event.approval_id, payload=payload, not_before_ms=to_ms(event.expires_at))


def _child_start(state: RunState, event: ChildStarted) -> NewTask:
    return NewTask(
        kind=CHILD_START,
        key=event.child_run_id,
        payload={"parent_run_id": state.run_id, "parent_session_id": state.session_id, "call_id": event.call_id},
    )
