"""What an entry changes in the derived rows: a closed union of values.

`TokensUsed`, `RunEnded`, `MessageAdded` and `ActiveRunChanged` are parts of one row change: a unit of work writes one
`RunProgress` for each of its runs, and one `ConversationGrown`, however many entries it has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from palyra.core.clock import to_ms
from palyra.core.ids import PrincipalId, RunId
from palyra.core.model.prompt import Message
from palyra.core.policy.approval import Approval, ApprovalScope, Grant
from palyra.core.projection.ledger import LedgerTurn
from palyra.core.run.state import RunState, RunStatus
from palyra.core.session import Session
from palyra.core.spending.budget import BudgetWarning
from palyra.core.spending.usage import Usage

Columns = dict[str, object]
"""The values of a row by the names of its columns."""

RUN_COLUMNS = (
    "run_id, session_id, principal, agent_id, input, parent_run_id, accepted_seq, accepted_ms, input_tokens,"
    " output_tokens, status, reason, limit_reached, run_seq, last_seq, ended_ms, turns, tool_calls, ready,"
    " cancel_requested"
)
"""The derived columns of a run. Its lease and its position in the queue are not derived."""
SESSION_COLUMNS = (
    "principal, agent_id, key, label, title, created_ms, archived_ms, parent_session_id, message_count, reset_count,"
    " reset_seq, active_run_id"
)
"""The derived columns of a session. `updated_ms` is the time of a commit, which no tape has."""


class TokensUsed(Struct, frozen=True):
    """The run used tokens."""

    input_tokens: int
    output_tokens: int


class RunEnded(Struct, frozen=True):
    """The run ended."""

    at_ms: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message and its position on the tape."""

    tape_seq: int
    run_id: RunId
    message: Message
    tokens: int
    labels: tuple[str, ...]
    at_ms: int


class MessageAdded(Struct, frozen=True):
    """The conversation has a further message."""

    principal: PrincipalId
    message: StoredMessage


class ActiveRunChanged(Struct, frozen=True):
    """Another run is active in the session, None for no run."""

    run_id: RunId | None


class RunAdded(Struct, frozen=True):
    """A run was accepted."""

    state: RunState
    input: str
    """The first words of the message that started it."""
    tape_seq: int
    at_ms: int


@dataclass(slots=True)
class RunProgress:
    """What the entries of a run change in its row."""

    state: RunState
    last_seq: int
    input_tokens: int = 0
    output_tokens: int = 0
    ended_ms: int | None = None
    reason: str | None = None

    def add(self, change: TokensUsed | RunEnded) -> None:
        """Add what one entry changes."""
        match change:
            case TokensUsed():
                self.input_tokens += change.input_tokens
                self.output_tokens += change.output_tokens
            case RunEnded():
                self.ended_ms, self.reason = change.at_ms, change.reason

    @property
    def is_idle(self) -> bool:
        """Whether no worker may hold the run: it has ended, or it waits."""
        return self.ended_ms is not None or self.state.status is RunStatus.WAITING

    def columns(self) -> Columns:
        """Return the columns that follow from the state, and the end."""
        state = self.state
        return {
            "status": state.status.value,
            "reason": self.reason,
            "limit_reached": state.limit.value if state.limit else None,
            "run_seq": state.run_seq,
            "last_seq": self.last_seq,
            "ended_ms": self.ended_ms,
            "turns": state.turns,
            "tool_calls": state.executed,
            "ready": int(state.started and not self.is_idle),
            "cancel_requested": int(state.cancel is not None),
        }


def run_row(run: RunAdded, progress: RunProgress) -> Columns:
    """Return a run's row (`RUN_COLUMNS`), from its acceptance and what followed."""
    state = run.state
    return {
        "run_id": state.run_id,
        "session_id": state.session_id,
        "principal": state.principal,
        "agent_id": state.agent_id,
        "input": run.input,
        "parent_run_id": state.parent.run_id if state.parent else None,
        "accepted_seq": run.tape_seq,
        "accepted_ms": run.at_ms,
        "input_tokens": progress.input_tokens,
        "output_tokens": progress.output_tokens,
        **progress.columns(),
    }


def session_row(session: Session) -> Columns:
    """Return the columns of a new session that its creation determines."""
    return {
        "principal": session.principal,
        "agent_id": session.agent_id,
        "key": session.key,
        "label": session.label,
        "title": session.title,
        "created_ms": to_ms(session.created_at),
        "archived_ms": None,
        "parent_session_id": session.parent_session_id,
    }


class ConversationGrown(Struct, frozen=True):
    """What a unit of work adds to a conversation."""

    messages: Sequence[MessageAdded]
    active: ActiveRunChanged | None
    """The run that is active after it, if that changes."""
    at_ms: int


class SessionAdded(Struct, frozen=True):
    """A session was created."""

    session: Session


class SessionChanged(Struct, frozen=True):
    """Columns of the session's row changed."""

    columns: Columns
    at_ms: int


class ContextReset(Struct, frozen=True):
    """The messages so far are no longer context."""

    tape_seq: int
    at_ms: int


class ApprovalAdded(Struct, frozen=True):
    """A person is asked."""

    approval: Approval


class ApprovalClosed(Struct, frozen=True):
    """An approval request was answered, expired or was withdrawn."""

    approval_id: str
    decision: str
    scope: ApprovalScope | None
    by: str
    answer: str
    at_ms: int


class ApprovalReissued(Struct, frozen=True):
    """A run proposes the call of an approval request again."""

    approval_id: str
    run_id: RunId


class GrantAdded(Struct, frozen=True):
    """An answer created a grant."""

    grant: Grant


class GrantEnded(Struct, frozen=True):
    """A grant was revoked."""

    grant_id: str
    at_ms: int


class TurnOpened(Struct, frozen=True):
    """A model turn began."""

    turn: LedgerTurn
    is_reserved: bool = True
    """False for a turn from before there was a ledger: it may have no row."""


class TurnClosed(Struct, frozen=True):
    """A model turn was settled or discarded."""

    root_run_id: str
    run_id: str
    turn: int
    outcome: str
    usage: Usage
    micros: int | None


class WarningAdded(Struct, frozen=True):
    """A budget that only warns was exceeded."""

    warning: BudgetWarning
    session_id: str
    run_id: str
    at_ms: int


Part = TokensUsed | RunEnded | MessageAdded | ActiveRunChanged
"""Changes that a unit of work writes together, at its end."""
RowChange = (
    RunAdded
    | RunProgress
    | ConversationGrown
    | SessionAdded
    | SessionChanged
    | ContextReset
    | ApprovalAdded
    | ApprovalClosed
    | ApprovalReissued
    | GrantAdded
    | GrantEnded
    | TurnOpened
    | TurnClosed
    | WarningAdded
)
Change = Part | RowChange
