"""Everything that can happen to a session or a run: the closed union that the tape is made of.

An event is stored for ever. Its tag is the stored name and never changes; new fields have defaults; a changed meaning
is a new tag. Events are plain data: nothing stored is revived as anything but these structs.

Every event has a time, an actor (the principal or part that caused it) and labels (where its content came from).
`carried_ms` is the time a worker spent on the run since the entry before it: the sum is the run's wall clock.
"""

from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import Struct

from palyra.core import channel
from palyra.core.approval import Scope
from palyra.core.attestation import Attestation
from palyra.core.brief import NO_BRIEF, Brief
from palyra.core.budget import Overdrawn, Reserved, Warned
from palyra.core.effect import Effect
from palyra.core.ids import AgentId, CallId, PrincipalId, RunId, SessionId
from palyra.core.limits import LimitKind, Limits
from palyra.core.prompt import Image, Role, StopReason
from palyra.core.routing import Plan
from palyra.core.tool import JsonObject, Outcome, Risk, Runtime, ToolCall, Verdict
from palyra.core.usage import Usage


class Mode(StrEnum):
    """What becomes of an input while another run is active in its session."""

    QUEUE = "queue"
    STEER = "steer"
    INTERRUPT = "interrupt"


class Decision(StrEnum):
    """How an approval ended."""

    ALLOWED = "allowed"
    DENIED = "denied"
    TIMED_OUT = "timed_out"
    WITHDRAWN = "withdrawn"


class Came(StrEnum):
    """What came of texts that were to be embedded."""

    ANSWERED = "answered"
    FAILED = "failed"
    """The provider did not do it, or did not say it so that it could be understood."""
    LOST = "lost"
    """Nobody knows: whoever waited for the answer was ended before it came."""


class Parent(Struct, frozen=True, kw_only=True):
    """The run that waits for this one, and the call that it waits in."""

    run_id: RunId
    session_id: SessionId
    call_id: CallId
    depth: int
    """How many runs stand above this one."""
    root_run_id: RunId | None = None
    """The run at the top, for which all below it work; of an old entry the nearest one is taken for it."""
    root_session_id: SessionId | None = None
    """Its session."""


class Reissue(Struct, frozen=True, kw_only=True):
    """A call that is proposed once more: nobody answered in time when it was asked about."""

    approval_id: str
    """The question of then."""
    tool: str
    arguments: JsonObject
    labels: tuple[str, ...] = ()
    """Where the arguments came from."""


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """What all events have."""

    at: datetime
    actor: str = "system"
    labels: tuple[str, ...] = ()
    carried_ms: int = 0


# -- events of a run


class RunAccepted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="run_accepted"):
    """An input was taken in. From here on the run will come to an end."""

    text: str
    principal: PrincipalId
    agent_id: AgentId
    limits: Limits
    agent_reason: str = ""
    """Why it is this agent that answers."""
    origin: str = "api"
    mode: Mode = Mode.QUEUE
    idempotency_key: str | None = None
    parent: Parent | None = None
    reissue: Reissue | None = None
    """The call that the run begins with, before any turn of the model."""
    images: tuple[Image, ...] = ()
    """Pictures that belong to the message."""
    brief: Brief = NO_BRIEF
    """How the caller wants it to be answered."""
    channels: tuple[str, ...] = ()
    """Of a run that another one led to: by which channels the words came in that are behind it. Else `origin` is it."""
    sealed: int = 0
    """How many secrets in it the vault took: markers stand for them."""
    removed: int = 0
    """How many it could not take: they are lost."""


class MessageGiven(Event, frozen=True, kw_only=True, omit_defaults=True, tag="message_given"):
    """A message that the caller brought along, before the run's own: what was said elsewhere, or what a tool of the
    caller's gave back."""

    role: Role
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: CallId | None = None
    """The call that a tool's message answers."""
    images: tuple[Image, ...] = ()
    signals: tuple[str, ...] = ()
    """What scanners found in a tool's message, as `core/scan.py` names it."""


class RunStarted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="run_started"):
    """It is this run's turn: it is the active run of its session, and its input joins the conversation."""


class RunResumed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="run_resumed"):
    """The run was left in the middle of something: an open turn is void, started calls are interrupted."""

    reason: str = "restart"


class InputSteered(Event, frozen=True, kw_only=True, omit_defaults=True, tag="input_steered"):
    """A further message joins the run at its next model turn."""

    text: str
    idempotency_key: str | None = None
    origin: str = channel.UNKNOWN
    sealed: int = 0
    """How many secrets in it the vault took: markers stand for them."""
    removed: int = 0
    """How many it could not take: they are lost."""


class ContextAssembled(Event, frozen=True, kw_only=True, omit_defaults=True, tag="context_assembled"):
    """What the next model turn was shown: ranges, sizes and a digest, never the text itself."""

    inputs: int
    """How many inputs of the run the assembler saw."""
    first_seq: int | None
    """The first and the last tape entry whose message is in the prompt."""
    last_seq: int | None
    messages: int
    dropped: int
    """Messages since the last reset that did not fit."""
    estimated_tokens: int
    window_tokens: int
    digest: str
    narrowed: str = ""
    """Why less of the conversation is shown than would fit; empty if it is not."""


class ModelTurnStarted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="model_turn_started"):
    """The model is asked."""

    turn: int
    provider: str
    model: str
    reason: str = ""
    """Why this provider was chosen."""
    last: bool = False
    """The final turn at a limit: no tools are offered."""
    settings_hash: str = ""
    """The settings in force."""
    found: tuple[str, ...] = ()
    """The tools that searches have brought so far, offered beside those that always are."""
    plan: Plan | None = None
    """How the model was chosen."""
    reserved: Reserved | None = None
    """What is set aside for the turn until it is settled."""


class BudgetWarned(Event, frozen=True, kw_only=True, omit_defaults=True, tag="budget_warned"):
    """A turn goes beyond a budget that only warns. It is told once for each budget and period."""

    overdrawn: Overdrawn
    scope: str
    """Whose spending it counts,"""
    period: str
    """and in which day, month or run: the account of the ledger."""


class ModelReasoning(Event, frozen=True, kw_only=True, omit_defaults=True, tag="model_reasoning"):
    """A piece of what the model thinks. One with a dialect ends a thought, and has what its provider must see again."""

    turn: int
    text: str = ""
    dialect: str = ""
    data: JsonObject = {}


class ModelText(Event, frozen=True, kw_only=True, omit_defaults=True, tag="model_text"):
    """A piece of the model's answer."""

    turn: int
    text: str


class ToolProposed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="tool_proposed"):
    """The model wants a tool to be called. Nothing has been decided yet."""

    turn: int
    """0 for a call that a person proposes once more."""
    call_id: CallId
    tool: str
    arguments: JsonObject
    malformed: str = ""


class ModelTurnEnded(Event, frozen=True, kw_only=True, omit_defaults=True, tag="model_turn_ended"):
    """The model has said all it wanted to say in this turn."""

    turn: int
    stop: StopReason
    usage: Usage
    micros: int | None = None
    """What it cost, in millionths of the currency; None if the model has no price."""


class ModelTurnVoided(Event, frozen=True, kw_only=True, omit_defaults=True, tag="model_turn_voided"):
    """The turn's text and proposals do not count: the stream broke, or never began."""

    turn: int
    reason: str
    failure: str = ""
    """Which kind of failure it was, as `FailureKind` names it."""
    retry_ms: int = 0
    """How long the provider wants to be left alone."""
    refused: bool = False
    """It did no work: the request was turned down as it stood."""
    usage: Usage = Usage()
    """What it is taken to have used: an estimate, and nothing if the provider refused."""
    micros: int | None = None
    """What that cost."""


class PolicyDecided(Event, frozen=True, kw_only=True, omit_defaults=True, tag="policy_decided"):
    """Whether a proposed call may run."""

    call_id: CallId
    verdict: Verdict
    risk: Risk | None
    reason: str
    policies: tuple[str, ...] = ()
    policy_hash: str = ""
    effect: Effect | None = None
    """What the call would do, as it was judged."""
    has_channel: bool = False
    """Whether somebody could have been asked."""
    grant_id: str | None = None
    """The earlier answer that covers the call."""
    manifest_hash: str | None = None
    """The manifest of the plugin that the tool belongs to, by which the call was bounded."""
    signals: tuple[str, ...] = ()
    """What scanners had found in the results that the session has seen, as `core/scan.py` names it."""


class ApprovalRequested(Event, frozen=True, kw_only=True, omit_defaults=True, tag="approval_requested"):
    """A person is asked about a call, or whether the run may go beyond a budget."""

    call_id: CallId
    """Empty if it is about budgets."""
    approval_id: str
    expires_at: datetime
    tool: str = ""
    arguments: JsonObject = {}
    effect: Effect | None = None
    reason: str = ""
    policies: tuple[str, ...] = ()
    policy_hash: str = ""
    budgets: tuple[Overdrawn, ...] = ()
    """The budgets that the next turn of the model would go beyond."""


class ApprovalResolved(Event, frozen=True, kw_only=True, omit_defaults=True, tag="approval_resolved"):
    """The question is settled."""

    call_id: CallId
    approval_id: str
    decision: Decision
    reason: str = ""
    scope: Scope = Scope.ONCE
    arguments: JsonObject | None = None
    """What the person made of the arguments; they are judged anew."""
    grant_id: str | None = None
    """The allowance that this answer leaves behind."""
    until: datetime | None = None
    """When that allowance ends."""
    sealed: int = 0
    """How many secrets in it the vault took: markers stand for them."""
    removed: int = 0
    """How many it could not take: they are lost."""
    pattern: str = ""
    """The commands that it covers, if the person wrote a pattern; else it covers the class of the call."""


class ToolStarted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="tool_started"):
    """The tool is about to run; recorded before its first effect."""

    call_id: CallId
    attempt: int = 1
    runtime: Runtime | None = None
    """What carries it out. An execution that names it is attested when it ends; older ones name none."""
    spec: str = ""
    """The digest of the tool as it was described."""


class ToolFinished(Event, frozen=True, kw_only=True, omit_defaults=True, tag="tool_finished"):
    """What came of a call, in the words that the model is given."""

    call_id: CallId
    outcome: Outcome
    text: str
    artifact: str | None = None
    """Where the whole of it is kept, if the text is only a part."""
    attestation: Attestation | None = None
    """What the daemon states about the execution; a call that never started has none."""
    signals: tuple[str, ...] = ()
    """What scanners found in the text, as `core/scan.py` names it."""
    found: tuple[str, ...] = ()
    """The tools that a search has brought: they are offered from now on."""
    sealed: int = 0
    """How many secrets in it the vault took: markers stand for them."""
    removed: int = 0
    """How many it could not take: they are lost."""


class CallHandedOver(Event, frozen=True, kw_only=True, omit_defaults=True, tag="call_handed_over"):
    """The call is of a tool that the caller has: it is the caller's to carry out. Nothing was done here, so nothing was
    decided about it either. The run ends with it."""

    call_id: CallId


class ChildStarted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="child_started"):
    """The call is carried out by a run of its own; this one waits for it."""

    call_id: CallId
    child_run_id: RunId
    child_session_id: SessionId
    text: str
    limits: Limits


class ChildEnded(Event, frozen=True, kw_only=True, omit_defaults=True, tag="child_ended"):
    """The child came to an end; its answer is the call's result."""

    call_id: CallId
    child_run_id: RunId
    outcome: Outcome
    text: str
    attestation: Attestation | None = None
    """What the daemon states about the execution."""
    signals: tuple[str, ...] = ()
    """What scanners found in the text."""


class LimitReached(Event, frozen=True, kw_only=True, omit_defaults=True, tag="limit_reached"):
    """The run may not go further; the model gets one last turn without tools."""

    limit: LimitKind


class CancelRequested(Event, frozen=True, kw_only=True, omit_defaults=True, tag="cancel_requested"):
    """Somebody wants the run to stop."""

    reason: str


class RunCompleted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="run_completed"):
    """The run ended with an answer."""

    limit_reached: LimitKind | None = None


class RunFailed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="run_failed"):
    """The run ended without an answer."""

    code: str
    reason: str
    in_conversation: bool = False
    """Whether the conversation holds a message that says so. Entries written before this field existed have none."""


class RunCancelled(Event, frozen=True, kw_only=True, omit_defaults=True, tag="run_cancelled"):
    """The run was ended from outside, or by its wall clock."""

    reason: str
    in_conversation: bool = False
    """Whether the conversation holds a message that says so. Entries written before this field existed have none."""


# -- events of a session


class SessionCreated(Event, frozen=True, kw_only=True, omit_defaults=True, tag="session_created"):
    """The conversation begins."""

    principal: PrincipalId
    agent_id: AgentId | None = None
    key: str | None = None
    label: str | None = None
    parent: Parent | None = None


class SessionReset(Event, frozen=True, kw_only=True, omit_defaults=True, tag="session_reset"):
    """What was said before stays on the tape and is no longer context."""


class SessionRenamed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="session_renamed"):
    """The title changed, by a person or by the daemon after the first exchange."""

    title: str


class SessionAgentBound(Event, frozen=True, kw_only=True, omit_defaults=True, tag="session_agent_bound"):
    """An agent answers in this session from now on; none stands for the default one."""

    agent_id: AgentId | None = None


class SessionArchived(Event, frozen=True, kw_only=True, omit_defaults=True, tag="session_archived"):
    """The session is put away. Cleaning up also frees its key."""

    freed_key: str | None = None


class SessionUnarchived(Event, frozen=True, kw_only=True, omit_defaults=True, tag="session_unarchived"):
    """The session is back in the list."""


class CheckpointRestored(Event, frozen=True, kw_only=True, omit_defaults=True, tag="checkpoint_restored"):
    """A person brought a file back to what it was at a checkpoint of this session."""

    checkpoint_id: str
    path: str
    kept_as: str
    """The checkpoint that holds what was there until then."""
    digest: str | None = None
    """The content that is there now; none if the file was removed."""


class GrantRevoked(Event, frozen=True, kw_only=True, omit_defaults=True, tag="grant_revoked"):
    """A person took back what an answer of this session had allowed beyond one call."""

    grant_id: str


class EmbeddingsStarted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="embeddings_started"):
    """A provider is asked to turn texts into vectors. Neither is kept: how many there are, and a digest, is."""

    request_id: RunId
    """Stands in the ledger in the place of a run."""
    principal: PrincipalId
    agent_id: AgentId
    """The agent whose spending it is: the one that answers in the session."""
    provider: str
    model: str
    texts: int
    bytes: int
    digest: str
    """Of the texts as they were sent."""
    reserved: Reserved
    """What is set aside for it until it is settled."""
    warned: tuple[Warned, ...] = ()
    """The budgets that only warn and that it goes beyond, each told once."""
    settings_hash: str = ""
    """The settings in force."""


class EmbeddingsEnded(Event, frozen=True, kw_only=True, omit_defaults=True, tag="embeddings_ended"):
    """What came of it, and what it took."""

    request_id: RunId
    came: Came
    usage: Usage
    """An estimate if nobody counted, and nothing if the provider refused."""
    micros: int | None = None
    """What that cost, in millionths of the currency; None if the model has no price."""
    vectors: int = 0
    reason: str = ""
    """Why there are none."""
    failure: str = ""
    """Which kind of failure it was, as `FailureKind` names it."""


RunEvent = (
    RunAccepted
    | MessageGiven
    | RunStarted
    | RunResumed
    | InputSteered
    | ContextAssembled
    | BudgetWarned
    | ModelTurnStarted
    | ModelReasoning
    | ModelText
    | ToolProposed
    | ModelTurnEnded
    | ModelTurnVoided
    | PolicyDecided
    | ApprovalRequested
    | ApprovalResolved
    | ToolStarted
    | ToolFinished
    | CallHandedOver
    | ChildStarted
    | ChildEnded
    | LimitReached
    | CancelRequested
    | RunCompleted
    | RunFailed
    | RunCancelled
)
SessionEvent = (
    SessionCreated
    | SessionReset
    | SessionRenamed
    | SessionAgentBound
    | SessionArchived
    | SessionUnarchived
    | CheckpointRestored
    | GrantRevoked
    | EmbeddingsStarted
    | EmbeddingsEnded
)
TapeEvent = RunEvent | SessionEvent

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[TapeEvent] = msgspec.json.Decoder(TapeEvent)


def encode(event: TapeEvent) -> str:
    """Return the event as it is stored. The text, byte for byte, is what the chain covers."""
    return _encoder.encode(event).decode()


def decode(content: str) -> TapeEvent:
    """Return the event of a stored text; `msgspec.DecodeError` if it is none."""
    return _decoder.decode(content)


def kind_of(event: TapeEvent) -> str:
    """Return the stored name of the event's kind."""
    tag: str = event.__struct_config__.tag  # type: ignore[assignment]
    return tag


class Entry(Struct, frozen=True):
    """One line of a session's tape, as it is stored."""

    session_id: SessionId
    tape_seq: int
    run_id: RunId | None
    run_seq: int
    kind: str
    at_ms: int
    content: str

    @property
    def event(self) -> TapeEvent:
        """The event that the content holds."""
        return decode(self.content)

    def to_json(self) -> str:
        """Return the entry as clients see it: its position, and the event as it is stored."""
        # Ids and kinds are ours and hold nothing that JSON must escape; the content is JSON already.
        run = f'"{self.run_id}"' if self.run_id else "null"
        return (
            f'{{"session_id":"{self.session_id}","run_id":{run},"tape_seq":{self.tape_seq},'
            f'"run_seq":{self.run_seq},"event":{self.content}}}'
        )
