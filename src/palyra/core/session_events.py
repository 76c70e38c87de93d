"""The events of sessions, which belong to no run. `core/events.py` has those of runs, and the rules for both."""

from enum import StrEnum

from palyra.core.event import Event, ParentRun
from palyra.core.ids import AgentId, PrincipalId, RunId
from palyra.core.spending.budget import BudgetWarning, Reservation
from palyra.core.spending.usage import Usage


class EmbeddingsOutcome(StrEnum):
    """The result of a request for embeddings."""

    ANSWERED = "answered"
    FAILED = "failed"
    """The provider refused, failed, or sent an answer that could not be parsed."""
    LOST = "lost"
    """Unknown: the process that waited for the answer ended before it came."""


class SessionCreated(Event, frozen=True, kw_only=True, omit_defaults=True, tag="session_created"):
    """The session was created."""

    principal: PrincipalId
    agent_id: AgentId | None = None
    key: str | None = None
    label: str | None = None
    parent: ParentRun | None = None


class SessionReset(Event, frozen=True, kw_only=True, omit_defaults=True, tag="session_reset"):
    """The session was reset: earlier messages stay on the tape and are no longer context."""


class SessionRenamed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="session_renamed"):
    """The title changed, by a person or by the daemon after the first exchange."""

    title: str


class SessionAgentBound(Event, frozen=True, kw_only=True, omit_defaults=True, tag="session_agent_bound"):
    """The agent that answers in this session from now on; none means the default agent."""

    agent_id: AgentId | None = None


class SessionArchived(Event, frozen=True, kw_only=True, omit_defaults=True, tag="session_archived"):
    """The session was archived. Cleaning up also frees its key."""

    freed_key: str | None = None


class SessionUnarchived(Event, frozen=True, kw_only=True, omit_defaults=True, tag="session_unarchived"):
    """The session was unarchived."""


class FileCheckpointRestored(Event, frozen=True, kw_only=True, omit_defaults=True, tag="file_checkpoint_restored"):
    """A person restored a file from a file checkpoint of this session."""

    checkpoint_id: str
    path: str
    saved_as: str
    """The file checkpoint with the content that was replaced."""
    digest: str | None = None
    """The digest of the content now; none if the file was removed."""


class GrantRevoked(Event, frozen=True, kw_only=True, omit_defaults=True, tag="grant_revoked"):
    """A person revoked a grant of this session."""

    grant_id: str


class EmbeddingsStarted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="embeddings_started"):
    """A provider was asked for embeddings. Neither texts nor vectors are stored, only their number and a digest."""

    request_id: RunId
    """Used in the ledger instead of a run id."""
    principal: PrincipalId
    agent_id: AgentId
    """The agent whose spending it is: the one that answers in the session."""
    provider: str
    model: str
    texts: int
    bytes: int
    digest: str
    """The digest of the texts as they were sent."""
    reserved: Reservation
    """What is reserved for it until it is settled."""
    warned: tuple[BudgetWarning, ...] = ()
    """The budgets that only warn and that it exceeds, each reported once."""
    settings_hash: str = ""
    """The digest of the settings in force."""


class EmbeddingsEnded(Event, frozen=True, kw_only=True, omit_defaults=True, tag="embeddings_ended"):
    """A request for embeddings ended, with its outcome and usage."""

    request_id: RunId
    outcome: EmbeddingsOutcome
    usage: Usage
    """An estimate if the provider reported none, and nothing if it refused."""
    cost_micros: int | None = None
    """What that cost, in millionths of the currency; None if the model has no price."""
    vectors: int = 0
    reason: str = ""
    """Why there are no vectors."""
    failure: str = ""
    """The kind of failure, as `FailureKind` names it."""


SessionEvent = (
    SessionCreated
    | SessionReset
    | SessionRenamed
    | SessionAgentBound
    | SessionArchived
    | SessionUnarchived
    | FileCheckpointRestored
    | GrantRevoked
    | EmbeddingsStarted
    | EmbeddingsEnded
)
