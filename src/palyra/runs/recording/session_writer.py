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
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from palyra.core.clock import to_ms
from palyra.core.events import (
    ApprovalRequested,
    ApprovalResolved,
    BudgetWarned,
    ChildStarted,
    Entry,
    HistoryAttached,
    ModelTurnDiscarded,
    ModelTurnEnded,
    ModelTurnStarted,
    ParentRun,
    RunAccepted,
    RunCancelled,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunResumed,
    RunStarted,
    SessionCreated,
    SessionEvent,
    TapeEvent,
    ToolProposed,
)
from palyra.core.ids import CallId, IdSource, RunId, SessionId, TaskId
from palyra.core.model.prompt import Message
from palyra.core.policy import labels
from palyra.core.projection.ledger import SETTLED, VOIDED, turn_abandoned, turn_opened
from palyra.core.run.machine import begin, evolve
from palyra.core.run.record import RunRecord
from palyra.core.run.state import CallStage, RunState
from palyra.core.session import Session
from palyra.core.spending.budget import BudgetWarning
from palyra.core.spending.usage import Usage
from palyra.core.task import NewTask
from palyra.journal import tape
from palyra.journal.engines.base import Connection, RunLeased
from palyra.journal.engines.tape_head import TapeHead
from palyra.journal.ledger import budget_warnings
from palyra.journal.ledger import turns as ledger
from palyra.journal.stores import approvals, grants, messages, runs, sessions, stops, tasks
from palyra.journal.stores.leases import Lease
from palyra.journal.stores.messages import StoredMessage
from palyra.runs.recording.replay import TapeEntryInvalid, replay
from palyra.runs.recording.transcript import message_of_event

INPUT_SHOWN = 200
NO_USAGE = Usage()

_CUTTING_OFF = (RunFailed, RunCancelled)
"""Events that may end a turn early."""

CHILD_START = "child.start"
CHILD_ENDED = "child.ended"
CHILD_CANCEL = "child.cancel"
APPROVAL_EXPIRE = "approval.expire"
SESSION_TITLE = "session.title"


@dataclass(slots=True)
class _PendingRun:
    state: RunState
    last_seq: int
    usage: Usage = NO_USAGE
    ended_ms: int | None = None
    reason: str | None = None


class SessionWriter:
    """A session's tape, locked for one unit of work. Open it first, close it last."""

    def __init__(self, conn: Connection, session_id: SessionId, *, head: TapeHead, ids: IdSource) -> None:
        self._conn = conn
        self._session_id = session_id
        self._head = head
        self._ids = ids
        self._fresh: list[tape.NewEntry] = []
        self._messages: list[StoredMessage] = []
        self._touched: dict[RunId, _PendingRun] = {}
        self._accepted: dict[RunId, tuple[RunState, RunAccepted]] = {}
        """Runs that this unit adds to the queue: their first entry is not on the tape yet."""
        self._active: sessions.SessionActivity | None = None
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
        if not sessions.insert(conn, session):
            return None
        book = cls(conn, session.session_id, head=tape.begin(conn, session.session_id), ids=ids)
        book.note(
            SessionCreated(
                at=session.created_at,
                actor=session.principal,
                principal=session.principal,
                agent_id=session.agent_id,
                key=session.key,
                label=session.label,
                parent=parent,
            )
        )
        return book

    def note(self, event: SessionEvent) -> None:
        """Add an event of the session itself."""
        self._fresh.append(tape.NewEntry(None, 0, event))

    def accept(
        self,
        run_id: RunId,
        event: RunAccepted,
        *,
        given: Sequence[HistoryAttached] = (),
        first: bool = False,
        carrier: str | None = None,
    ) -> RunState:
        """Add a new run; it starts at once if no other is open, else it queues, at the front if it is `first`.

        If it starts and there is a `carrier`, that worker holds its lease from this commit on. The attached history in
        `given` joins the conversation before its input, so the run must start at once.
        """
        waiting = self._open_runs()
        lease = Lease(run_id, carrier, 1) if carrier is not None and not waiting else None
        state = begin(run_id, self._session_id, event)
        self._fresh.append(tape.NewEntry(run_id, 1, event))
        if event.reissue is not None:
            approvals.note_reissue(self._conn, event.reissue.approval_id, run_id)
        runs.insert(
            self._conn,
            RunRecord(
                run_id=run_id,
                session_id=self._session_id,
                agent_id=event.agent_id,
                status=state.status,
                input=event.text[:INPUT_SHOWN],
                reason=None,
                limit_reached=None,
                parent_run_id=event.parent.run_id if event.parent else None,
                accepted_seq=self.seq,
                last_seq=self.seq,
                accepted_at=event.at,
                ended_at=None,
                turns=0,
                tool_calls=0,
                usage=Usage(),
                cancel_requested=False,
            ),
            principal=event.principal,
            run_seq=1,
            # The position orders the queue; a run that goes first is put before everything accepted so far.
            place=-self.seq if first else self.seq,
            ready=False,
            lease=lease,
        )
        assert not (waiting and given), "what is given would stand in the middle of another run"
        for message in given:
            state = self.add(state, message)
        if waiting:
            self._accepted[run_id] = (state, event)
            return state
        state = self._start(state, event, at=event.at)
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
        touched = self._touched.setdefault(state.run_id, _PendingRun(after, self.seq))
        touched.state, touched.last_seq = after, self.seq
        if message := message_of_event(after, event):
            self._add_message(state, message, event)
        match event:
            case ModelTurnStarted():
                ledger.begin(self._conn, turn_opened(state, event))
            case ModelTurnEnded(usage=usage):
                touched.usage = Usage(
                    input_tokens=touched.usage.input_tokens + usage.input_tokens,
                    output_tokens=touched.usage.output_tokens + usage.output_tokens,
                )
                self._settle_turn(state, event.turn, SETTLED, usage, event.micros)
            case ModelTurnDiscarded(usage=usage):
                self._settle_turn(state, event.turn, VOIDED, usage, event.micros)
            case RunResumed():
                self._close_turn(state)
            case BudgetWarned():
                self._warn(state, event)
            case ChildStarted():
                self._tasks.append(_child_start(after, event))
            case ApprovalRequested():
                approvals.insert(self._conn, approvals.approval_of_event(after, event))
                self._tasks.append(_expiry(after, event))
            case ApprovalResolved():
                self._settle(after, event)
            case RunCompleted() | RunFailed() | RunCancelled():
                touched.ended_ms = to_ms(event.at)
                touched.reason = None if isinstance(event, RunCompleted) else event.reason
                self._end(state, after, event)
            case _:
                pass
        return after

    def state_of(self, run_id: RunId) -> RunState:
        """Return the state of a run that this unit has written to."""
        return self._touched[run_id].state

    def close(self) -> list[Entry]:
        """Write all entries and rows. The caller's unit commits."""
        if not self._fresh:
            return []
        entries = tape.append(self._conn, self._session_id, head=self._head, fresh=self._fresh)
        for touched in self._touched.values():
            runs.advance(
                self._conn,
                runs.RunProgress(
                    state=touched.state,
                    last_seq=touched.last_seq,
                    usage=touched.usage,
                    ended_ms=touched.ended_ms,
                    reason=touched.reason,
                ),
            )
        if self._messages:
            principal = next(iter(self._touched.values())).state.principal
            messages.insert(self._conn, self._session_id, principal, kept=self._messages)
        if self._messages or self._active is not None:
            sessions.touch(
                self._conn,
                self._session_id,
                at_ms=entries[-1].at_ms,
                active=self._active,
                messages=len(self._messages),
            )
        for task in self._tasks:
            tasks.add(self._conn, TaskId(self._ids.new()), task, now_ms=entries[-1].at_ms)
        return entries

    def release(self, *, at: datetime) -> None:
        """Start the next run of the queue, if it was held back and no longer is."""
        if not any(active for _, active in self._open_runs()):
            self._promote(at=at)

    def _start(self, state: RunState, accepted: RunAccepted, *, at: datetime) -> RunState:
        """Make the run the session's active one; its input joins the conversation here, not where it was accepted."""
        after = self.add(state, RunStarted(at=at))
        self._active = sessions.SessionActivity(after.run_id)
        if message := message_of_event(after, accepted):
            self._add_message(after, message, accepted)
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

    def _add_message(self, state: RunState, message: Message, event: TapeEvent) -> None:
        tokens = messages.tokens_of(message)
        self._messages.append(StoredMessage(self.seq, state.run_id, message, tokens, event.labels, to_ms(event.at)))

    def _open_runs(self) -> list[tuple[RunId, bool]]:
        found = runs.open_in(self._conn, self._session_id)
        ended = {run_id for run_id, touched in self._touched.items() if touched.ended_ms is not None}
        return [(run_id, active) for run_id, active in found if run_id not in ended]

    def _settle(self, state: RunState, event: ApprovalResolved) -> None:
        asked = approvals.get(self._conn, event.approval_id, state.principal)
        # Approval requests from before there were rows have none.
        if asked is None:
            return
        approvals.settle(
            self._conn,
            event.approval_id,
            decision=event.decision.value,
            scope=event.scope,
            by=event.actor,
            answer=event.reason,
            at_ms=to_ms(event.at),
        )
        if event.grant_id is not None:
            grants.insert(self._conn, grants.allowance(asked, event, event.grant_id))

    def _close_turn(self, state: RunState) -> None:
        """Settle a turn that was left open at its full reservation: its real usage is unknown."""
        if state.turn is not None:
            self._settle_turn(state, state.turn, VOIDED, *turn_abandoned(state.reserved))

    def _settle_turn(self, state: RunState, turn: int, outcome: str, usage: Usage, micros: int | None) -> None:
        root_run_id, run_id = state.root_run_id, state.run_id
        ledger.settle(self._conn, root_run_id, run_id, turn, outcome=outcome, usage=usage, micros=micros)

    def _warn(self, state: RunState, event: BudgetWarned) -> None:
        warned = BudgetWarning(overdrawn=event.overdrawn, scope=event.scope, period=event.period)
        budget_warnings.insert(
            self._conn, warned, session_id=state.session_id, run_id=state.run_id, at_ms=to_ms(event.at)
        )

    def _end(self, before: RunState, after: RunState, event: RunCompleted | RunFailed | RunCancelled) -> None:
        self._close_turn(before)
        if before.open_questions:
            approvals.withdraw_of_run(self._conn, after.run_id, at_ms=to_ms(event.at))
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
            and not sessions.titled(self._conn, self._session_id)
        ):
            payload = {"session_id": self._session_id}
            self._tasks.append(NewTask(kind=SESSION_TITLE, key=self._session_id, payload=payload))
        if before.started:
            self._active = sessions.SessionActivity(None)
            self._promote(at=event.at)

    def _promote(self, *, at: datetime) -> None:
        """Start the next run of the queue, in the same commit in which the one before it ended.

        Runs of a stopped principal stay in the queue until the work is resumed.
        """
        for run_id, _ in self._open_runs():
            try:
                state, accepted = self._accepted.get(run_id) or self._queued(run_id)
            except TapeEntryInvalid as error:
                # The run that ended must end, and those behind this one must get their turn.
                runs.park(self._conn, run_id, reason=error.detail)
                continue
            if not stops.is_stopped(self._conn, state.principal):
                self._start(state, accepted, at=at)
            return

    def _queued(self, run_id: RunId) -> tuple[RunState, RunAccepted]:
        state = replay(self._conn, run_id)
        accepted = tape.first_of_run(self._conn, run_id).event
        assert isinstance(accepted, RunAccepted)
        return state, accepted


def _expiry(state: RunState, event: ApprovalRequested) -> NewTask:
    payload = {"run_id": state.run_id, "call_id": event.call_id, "approval_id": event.approval_id}
    return NewTask(kind=APPROVAL_EXPIRE, key=event.approval_id, payload=payload, not_before_ms=to_ms(event.expires_at))


def _child_start(state: RunState, event: ChildStarted) -> NewTask:
    return NewTask(
        kind=CHILD_START,
        key=event.child_run_id,
        payload={"parent_run_id": state.run_id, "parent_session_id": state.session_id, "call_id": event.call_id},
    )
