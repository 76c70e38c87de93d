"""The rows of one session in memory, folded from its tape: what the database should have."""

from collections.abc import Iterable, Iterator
from typing import assert_never

import msgspec
from msgspec.structs import replace

from palyra.core.clock import from_ms
from palyra.core.errors import PalyraError
from palyra.core.events import Entry, RunAccepted
from palyra.core.ids import PrincipalId, RunId, SessionId
from palyra.core.policy.approval import Approval, Grant
from palyra.core.projection import changes
from palyra.core.projection.ledger import RESERVED, LedgerTurn, turn_closed
from palyra.core.projection.project import project
from palyra.core.run.machine import begin, evolve
from palyra.core.session_events import SessionEvent


class Unreplayable(Exception):
    """An entry does not fit those before it."""

    def __init__(self, tape_seq: int, problem: str) -> None:
        super().__init__(problem)
        self.tape_seq = tape_seq


class SessionRows:
    """The rows that derive from one tape. Messages are not kept: `fold` yields them."""

    def __init__(self, session_id: SessionId) -> None:
        self.session_id = session_id
        self.message_count = 0
        self._session: changes.Columns = {"reset_count": 0, "reset_seq": 0, "active_run_id": None}
        self.approvals: dict[str, Approval] = {}
        self.grants: dict[str, Grant] = {}
        self.turns: dict[tuple[str, str], dict[int, LedgerTurn]] = {}
        """The turns of each run, by the id of its root run and its own id. Requests for embeddings have their own id
        twice."""
        self.unreserved: set[tuple[str, int]] = set()
        """Turns without a reservation, by run and number: from before there was a ledger."""
        self.warnings: list[changes.WarningAdded] = []
        self._runs: dict[RunId, tuple[changes.RunAdded, changes.RunProgress]] = {}
        self._accepted: dict[RunId, RunAccepted] = {}
        """The acceptance of runs that have not started."""

    def fold(self, entries: Iterable[Entry]) -> Iterator[changes.MessageAdded]:
        """Take the entries of the tape in, and yield its messages; raise `Unreplayable` at one that does not fit.

        The rows are complete when the iterator is exhausted.
        """
        for entry in entries:
            try:
                messages = self._take(entry)
            except (PalyraError, msgspec.DecodeError, AssertionError, KeyError) as error:
                raise Unreplayable(entry.tape_seq, f"this entry is not valid after those before it: {error}") from error
            yield from messages

    def fold_all(self, entries: Iterable[Entry]) -> "SessionRows":
        """Do the same without the messages, and return the rows."""
        for _ in self.fold(entries):
            pass
        return self

    @property
    def session(self) -> changes.Columns:
        """The columns of the session that its tape knows."""
        return {**self._session, "message_count": self.message_count}

    @property
    def runs(self) -> dict[RunId, changes.Columns]:
        """The rows of the runs."""
        return {run_id: changes.run_row(*run) for run_id, run in self._runs.items()}

    def accepted(self, run_id: RunId) -> RunAccepted:
        """See `Rows`."""
        return self._accepted.pop(run_id)

    def approval(self, approval_id: str, principal: PrincipalId) -> Approval | None:
        """See `Rows`."""
        return self.approvals.get(approval_id)

    def _take(self, entry: Entry) -> list[changes.MessageAdded]:
        event, run_id, seq = entry.event, entry.run_id, entry.tape_seq
        if isinstance(event, SessionEvent):
            return self._apply(project(self, seq, event), None)
        assert run_id is not None, "it does not belong to a run"
        if isinstance(event, RunAccepted) and run_id not in self._runs:
            state = begin(run_id, self.session_id, event)
            self._accepted[run_id] = event
            return self._apply(project(self, seq, event, None, state), None)
        progress = self._runs[run_id][1]
        before = progress.state
        after = evolve(before, event)
        progress.state, progress.last_seq = after, seq
        messages = self._apply(project(self, seq, event, before, after), progress)
        if progress.ended_ms is not None:
            # The texts and calls of a run are not needed once it has ended, and a long session has many runs.
            progress.state = replace(after, text=(), calls=())
            self._accepted.pop(run_id, None)
        return messages

    def _apply(
        self, row_changes: Iterable[changes.Change], progress: changes.RunProgress | None
    ) -> list[changes.MessageAdded]:
        messages: list[changes.MessageAdded] = []
        for change in row_changes:
            match change:
                case changes.MessageAdded():
                    messages.append(change)
                case changes.TokensUsed() | changes.RunEnded():
                    assert progress is not None
                    progress.add(change)
                case changes.RunAdded(state=state):
                    self._runs[state.run_id] = change, changes.RunProgress(state, change.tape_seq)
                    self.turns[state.root_run_id, state.run_id] = {}
                case (
                    changes.ActiveRunChanged()
                    | changes.SessionAdded()
                    | changes.SessionChanged()
                    | changes.ContextReset()
                ):
                    self._apply_to_session(change)
                case changes.TurnOpened() | changes.TurnClosed():
                    self._apply_to_ledger(change)
                case changes.WarningAdded():
                    self.warnings.append(change)
                case changes.GrantAdded(grant=grant):
                    self.grants[grant.grant_id] = grant
                case changes.GrantEnded(grant_id=grant_id):
                    if grant_id in self.grants:
                        self.grants[grant_id] = replace(self.grants[grant_id], revoked_at=from_ms(change.at_ms))
                case changes.ApprovalAdded() | changes.ApprovalClosed() | changes.ApprovalReissued():
                    self._apply_to_approvals(change)
                case changes.RunProgress() | changes.ConversationGrown():
                    raise AssertionError("a unit of work makes these of others")
                case _ as never:
                    assert_never(never)
        self.message_count += len(messages)
        return messages

    def _apply_to_session(
        self, change: changes.ActiveRunChanged | changes.SessionAdded | changes.SessionChanged | changes.ContextReset
    ) -> None:
        match change:
            case changes.ActiveRunChanged(run_id=run_id):
                self._session["active_run_id"] = run_id
            case changes.SessionAdded(session=session):
                self._session |= changes.session_row(session)
            case changes.SessionChanged(columns=columns):
                self._session |= columns
            case changes.ContextReset(tape_seq=tape_seq):
                self._session |= {"reset_count": self.message_count, "reset_seq": tape_seq}

    def _apply_to_ledger(self, change: changes.TurnOpened | changes.TurnClosed) -> None:
        match change:
            case changes.TurnOpened(turn=turn):
                turns = self.turns.setdefault((turn.root_run_id, turn.run_id), {})
                assert turn.turn not in turns, f"turn {turn.turn} of {turn.run_id} begins twice"
                turns[turn.turn] = turn
                if not change.is_reserved:
                    self.unreserved.add((turn.run_id, turn.turn))
            case changes.TurnClosed(turn=number):
                turns = self.turns[change.root_run_id, change.run_id]
                assert turns[number].state == RESERVED, f"turn {number} of {change.run_id} ends twice"
                turns[number] = turn_closed(turns[number], change.outcome, change.usage, change.micros)

    def _apply_to_approvals(
        self, change: changes.ApprovalAdded | changes.ApprovalClosed | changes.ApprovalReissued
    ) -> None:
        match change:
            case changes.ApprovalAdded(approval=approval):
                self.approvals[approval.approval_id] = approval
            case changes.ApprovalClosed(approval_id=approval_id):
                self.approvals[approval_id] = replace(
                    self.approvals[approval_id],
                    decision=change.decision,
                    scope=change.scope,
                    answered_at=from_ms(change.at_ms),
                    answered_by=change.by,
                    answer=change.answer,
                )
            case changes.ApprovalReissued(approval_id=approval_id):
                if approval_id in self.approvals:
                    self.approvals[approval_id] = replace(self.approvals[approval_id], reissued_as=change.run_id)
