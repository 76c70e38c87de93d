"""The projection: which changes of derived rows follow from an entry.

The write path applies them to the database in the commit of the entry; verify and rebuild fold them over a tape
(`SessionRows`). A new kind of event gets a rule here, or is named in `WITHOUT_ROWS`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

from palyra.core import event, events, session_events
from palyra.core.clock import to_ms
from palyra.core.ids import PrincipalId, RunId, SessionId
from palyra.core.model.message_tokens import tokens_of
from palyra.core.policy.approval import Approval
from palyra.core.projection.approvals import RUN_ENDED, approval_of_event, grant_of_answer
from palyra.core.projection.changes import (
    ActiveRunChanged,
    ApprovalAdded,
    ApprovalClosed,
    ApprovalReissued,
    Change,
    ContextReset,
    GrantAdded,
    GrantEnded,
    MessageAdded,
    RunAdded,
    RunEnded,
    SessionAdded,
    SessionChanged,
    StoredMessage,
    TokensUsed,
    TurnClosed,
    TurnOpened,
    WarningAdded,
)
from palyra.core.projection.ledger import DISCARDED, SETTLED, embeddings_opened, turn_abandoned, turn_opened
from palyra.core.projection.transcript import message_of_event
from palyra.core.run.state import RunState
from palyra.core.session import new_session
from palyra.core.spending.budget import BudgetWarning
from palyra.core.spending.usage import Usage

INPUT_CHARS = 200
"""How much of a message the row of its run shows."""

NO_CHANGES: tuple[Change, ...] = ()


class Rows(Protocol):
    """What the projection must know of the rows before an entry.

    The write path reads it when asked, a replay has it in memory.
    """

    @property
    def session_id(self) -> SessionId: ...

    def accepted(self, run_id: RunId) -> events.RunAccepted:
        """Return the event with which a run that starts now was accepted."""
        ...

    def approval(self, approval_id: str, principal: PrincipalId) -> Approval | None:
        """Return an open approval request; None for one from before there were rows."""
        ...


class _Step(NamedTuple):
    """An entry's position on the tape, and the state of its run before and after it."""

    rows: Rows
    seq: int
    before: RunState
    """The state itself for an acceptance."""
    after: RunState


def project(
    rows: Rows, seq: int, event: events.TapeEvent, before: RunState | None = None, after: RunState | None = None
) -> Sequence[Change]:
    """Return what an entry changes in the derived rows, apart from the run's state.

    An event of a run comes with the state before it (None for an acceptance) and the state with it.
    """
    rule = _RULES.get(type(event))
    if rule is None:
        return NO_CHANGES
    return rule(_Step(rows, seq, cast(RunState, before or after), cast(RunState, after)), event)


# -- runs and messages


def _accepted(step: _Step, event: events.RunAccepted) -> Sequence[Change]:
    added = RunAdded(step.after, event.text[:INPUT_CHARS], step.seq, to_ms(event.at))
    if event.reissue is None:
        return (added,)
    return added, ApprovalReissued(event.reissue.approval_id, step.after.run_id)


def _started(step: _Step, event: events.RunStarted) -> Sequence[Change]:
    # The input joins the conversation here, not where it was accepted.
    run_id = step.after.run_id
    return ActiveRunChanged(run_id), *_message(step, step.rows.accepted(run_id))


def _message(step: _Step, event: events.RunEvent) -> Sequence[Change]:
    state = step.after
    message = message_of_event(state, event)
    if message is None:
        return NO_CHANGES
    stored = StoredMessage(step.seq, state.run_id, message, tokens_of(message), event.labels, to_ms(event.at))
    return (MessageAdded(state.principal, stored),)


def _ended(step: _Step, event: events.RunCompleted | events.RunFailed | events.RunCancelled) -> Sequence[Change]:
    at_ms = to_ms(event.at)
    changes = [*_abandon_turn(step), *_message(step, event)]
    # An answer would have no effect any more.
    changes += [
        ApprovalClosed(approval_id, events.ApprovalDecision.WITHDRAWN.value, None, "system", RUN_ENDED, at_ms)
        for _, approval_id in step.before.open_questions
    ]
    if step.before.started:
        changes.append(ActiveRunChanged(None))
    changes.append(RunEnded(at_ms, None if isinstance(event, events.RunCompleted) else event.reason))
    return changes


# -- the ledger


def _turn_started(step: _Step, event: events.ModelTurnStarted) -> Sequence[Change]:
    return (TurnOpened(turn_opened(step.before, event), event.reserved is not None),)


def _turn_ended(step: _Step, event: events.ModelTurnEnded) -> Sequence[Change]:
    usage = event.usage
    closed = _turn_closed(step, event.turn, SETTLED, usage, event.cost_micros)
    return closed, TokensUsed(usage.input_tokens, usage.output_tokens), *_message(step, event)


def _turn_discarded(step: _Step, event: events.ModelTurnDiscarded) -> Sequence[Change]:
    return (_turn_closed(step, event.turn, DISCARDED, event.usage, event.cost_micros),)


def _resumed(step: _Step, _: events.RunResumed) -> Sequence[Change]:
    return _abandon_turn(step)


def _abandon_turn(step: _Step) -> Sequence[Change]:
    """Settle a turn that was left open at its full reservation: its real usage is unknown."""
    before = step.before
    if before.turn is None:
        return NO_CHANGES
    return (_turn_closed(step, before.turn, DISCARDED, *turn_abandoned(before.reserved)),)


def _turn_closed(step: _Step, turn: int, outcome: str, usage: Usage, micros: int | None) -> TurnClosed:
    return TurnClosed(step.after.root_run_id, step.after.run_id, turn, outcome, usage, micros)


def _warned(step: _Step, event: events.BudgetWarned) -> Sequence[Change]:
    warning = BudgetWarning(overrun=event.overrun, scope=event.scope, period=event.period)
    return (WarningAdded(warning, step.after.session_id, step.after.run_id, to_ms(event.at)),)


def _embeddings_started(step: _Step, event: session_events.EmbeddingsStarted) -> Sequence[Change]:
    session_id, at_ms = step.rows.session_id, to_ms(event.at)
    warnings = (WarningAdded(warning, session_id, event.request_id, at_ms) for warning in event.warned)
    return TurnOpened(embeddings_opened(session_id, event)), *warnings


def _embeddings_ended(_: _Step, event: session_events.EmbeddingsEnded) -> Sequence[Change]:
    outcome = SETTLED if event.outcome is session_events.EmbeddingsOutcome.ANSWERED else DISCARDED
    return (TurnClosed(event.request_id, event.request_id, 1, outcome, event.usage, event.cost_micros),)


# -- approvals and grants


def _approval_requested(step: _Step, event: events.ApprovalRequested) -> Sequence[Change]:
    return (ApprovalAdded(approval_of_event(step.after, event)),)


def _approval_resolved(step: _Step, event: events.ApprovalResolved) -> Sequence[Change]:
    changes = _message(step, event)
    approval = step.rows.approval(event.approval_id, step.after.principal)
    if approval is None:
        return changes
    closed = ApprovalClosed(
        event.approval_id, event.decision.value, event.scope, event.actor, event.reason, to_ms(event.at)
    )
    if event.grant_id is None:
        return closed, *changes
    return closed, GrantAdded(grant_of_answer(approval, event, event.grant_id)), *changes


def _grant_revoked(_: _Step, event: session_events.GrantRevoked) -> Sequence[Change]:
    return (GrantEnded(event.grant_id, to_ms(event.at)),)


# -- sessions


def _session_created(step: _Step, event: session_events.SessionCreated) -> Sequence[Change]:
    session = new_session(
        step.rows.session_id,
        event.principal,
        at=event.at,
        agent_id=event.agent_id,
        key=event.key,
        label=event.label,
        parent_session_id=event.parent.session_id if event.parent is not None else None,
    )
    return (SessionAdded(session),)


def _session_reset(step: _Step, event: session_events.SessionReset) -> Sequence[Change]:
    return (ContextReset(step.seq, to_ms(event.at)),)


def _session_renamed(_: _Step, event: session_events.SessionRenamed) -> Sequence[Change]:
    return (SessionChanged({"title": event.title}, to_ms(event.at)),)


def _session_agent_bound(_: _Step, event: session_events.SessionAgentBound) -> Sequence[Change]:
    return (SessionChanged({"agent_id": event.agent_id}, to_ms(event.at)),)


def _session_archived(_: _Step, event: session_events.SessionArchived) -> Sequence[Change]:
    at_ms = to_ms(event.at)
    freed = {"key": None} if event.freed_key is not None else {}
    return (SessionChanged({"archived_ms": at_ms, **freed}, at_ms),)


def _session_unarchived(_: _Step, event: session_events.SessionUnarchived) -> Sequence[Change]:
    return (SessionChanged({"archived_ms": None}, to_ms(event.at)),)


_RULES: dict[type[event.Event], Callable[[_Step, Any], Sequence[Change]]] = {
    events.RunAccepted: _accepted,
    events.HistoryAttached: _message,
    events.RunStarted: _started,
    events.RunResumed: _resumed,
    events.InputSteered: _message,
    events.ModelTurnStarted: _turn_started,
    events.BudgetWarned: _warned,
    events.ToolProposed: _message,
    events.ModelTurnEnded: _turn_ended,
    events.ModelTurnDiscarded: _turn_discarded,
    events.PolicyDecided: _message,
    events.ApprovalRequested: _approval_requested,
    events.ApprovalResolved: _approval_resolved,
    events.ToolFinished: _message,
    events.ChildEnded: _message,
    events.RunCompleted: _ended,
    events.RunFailed: _ended,
    events.RunCancelled: _ended,
    session_events.SessionCreated: _session_created,
    session_events.SessionReset: _session_reset,
    session_events.SessionRenamed: _session_renamed,
    session_events.SessionAgentBound: _session_agent_bound,
    session_events.SessionArchived: _session_archived,
    session_events.SessionUnarchived: _session_unarchived,
    session_events.GrantRevoked: _grant_revoked,
    session_events.EmbeddingsStarted: _embeddings_started,
    session_events.EmbeddingsEnded: _embeddings_ended,
}

WITH_ROWS = frozenset(_RULES)
WITHOUT_ROWS: frozenset[type[event.Event]] = frozenset(
    {
        events.ContextAssembled,
        events.ModelReasoning,
        events.ModelText,
        events.ToolStarted,
        events.CallHandedOver,
        events.ChildStarted,
        events.LimitReached,
        events.CancelRequested,
        session_events.FileCheckpointRestored,
    }
)
"""Events that change the state of their run at most. The run's row shows its state."""
