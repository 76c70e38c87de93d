"""The events of runs, and the closed union that a tape consists of.

An event is stored forever. New fields have defaults; a changed meaning gets a new tag; a changed name needs an entry in
`core/upcast.py`, which maps what earlier releases have stored. Events are plain data: stored text is decoded into these
structs only.
"""

from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import Struct, field

from palyra.core.attestation import Attestation
from palyra.core.channel import UNKNOWN
from palyra.core.event import Event, ParentRun
from palyra.core.ids import AgentId, CallId, PrincipalId, RunId, SessionId
from palyra.core.limits import LimitKind, Limits
from palyra.core.model.prompt import Image, Role, StopReason
from palyra.core.model.request_options import NO_REQUEST_OPTIONS, RequestOptions
from palyra.core.model.routing_plan import RoutingPlan
from palyra.core.policy.approval import ApprovalScope
from palyra.core.policy.effect import Effect
from palyra.core.session_events import SessionEvent
from palyra.core.spending.budget import BudgetOverrun, Reservation
from palyra.core.spending.usage import Usage
from palyra.core.tool import CallOutcome, CallRuntime, JsonObject, Risk, ToolCall, Verdict
from palyra.core.upcast import upcast


class InputMode(StrEnum):
    """What happens to an input while another run is active in its session."""

    QUEUE = "queue"
    STEER = "steer"
    INTERRUPT = "interrupt"


class ApprovalDecision(StrEnum):
    """How an approval ended."""

    ALLOWED = "allowed"
    DENIED = "denied"
    TIMED_OUT = "timed_out"
    WITHDRAWN = "withdrawn"


class Reissue(Struct, frozen=True, kw_only=True):
    """A call that is proposed again because its approval request expired."""

    approval_id: str
    """The approval request that expired."""
    tool: str
    arguments: JsonObject
    labels: tuple[str, ...] = ()
    """Where the arguments came from."""


class RunAccepted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="run_accepted"):
    """A message was accepted. From now on the run is guaranteed to end."""

    text: str
    principal: PrincipalId
    agent_id: AgentId
    limits: Limits
    agent_reason: str = ""
    """Why this agent answers."""
    channel: str = UNKNOWN
    """Where the message came from; `run` or `reissue` if another run led to it."""
    mode: InputMode = InputMode.QUEUE
    idempotency_key: str | None = None
    parent: ParentRun | None = None
    reissue: Reissue | None = None
    """The call that the run begins with, before any model turn."""
    images: tuple[Image, ...] = ()
    """Images that belong to the message."""
    options: RequestOptions = NO_REQUEST_OPTIONS
    """The caller's request options."""
    source_channels: tuple[str, ...] = ()
    """For a run that another run led to: the channels of the messages behind it."""
    sealed: int = 0
    """How many secrets in it were stored in the vault and replaced by markers."""
    removed: int = 0
    """How many secrets could not be stored: they are lost."""


class HistoryAttached(Event, frozen=True, kw_only=True, omit_defaults=True, tag="history_attached"):
    """A message of the attached history, before the run's own message: from another conversation, or the result of a
    client tool."""

    role: Role
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: CallId | None = None
    """The call that a tool message answers."""
    images: tuple[Image, ...] = ()
    signals: tuple[str, ...] = ()
    """What scanners found in a tool message, as `core/text/scanner.py` names it."""


class RunStarted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="run_started"):
    """The run is now the active run of its session, and its input joins the conversation."""


class RunResumed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="run_resumed"):
    """The run was interrupted: an open turn is discarded, started calls are marked as interrupted."""

    reason: str = "restart"


class InputSteered(Event, frozen=True, kw_only=True, omit_defaults=True, tag="input_steered"):
    """A further message joins the run at its next model turn."""

    text: str
    idempotency_key: str | None = None
    channel: str = UNKNOWN
    sealed: int = 0
    """How many secrets in it were stored in the vault and replaced by markers."""
    removed: int = 0
    """How many secrets could not be stored: they are lost."""


class ContextAssembled(Event, frozen=True, kw_only=True, omit_defaults=True, tag="context_assembled"):
    """What the prompt of the next model turn contains: ranges, sizes and a digest, never the text itself."""

    inputs: int
    """How many inputs of the run the prompt contains."""
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
    """Why the prompt contains less of the conversation than would fit; empty if it does not."""


class ModelTurnStarted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="model_turn_started"):
    """A request was sent to the model."""

    turn: int
    provider: str
    model: str
    reason: str = ""
    """Why this provider was chosen."""
    last: bool = False
    """The final turn at a limit: the model gets no tools."""
    settings_hash: str = ""
    """The digest of the settings in force."""
    discovered_tools: tuple[str, ...] = ()
    """The tools discovered by search so far, offered in addition to the default ones."""
    plan: RoutingPlan | None = None
    """How the model was chosen."""
    reserved: Reservation | None = None
    """What is reserved for the turn until it is settled."""


class BudgetWarned(Event, frozen=True, kw_only=True, omit_defaults=True, tag="budget_warned"):
    """A turn exceeds a budget that only warns. This is recorded once for each budget and period."""

    overrun: BudgetOverrun
    scope: str
    """Whose spending it counts,"""
    period: str
    """and in which day, month or run: the ledger account."""


class ModelReasoning(Event, frozen=True, kw_only=True, omit_defaults=True, tag="model_reasoning"):
    """A piece of the model's reasoning. One with a dialect ends a block, with the data its provider must get back."""

    turn: int
    text: str = ""
    dialect: str = ""
    data: JsonObject = field(default_factory=dict)


class ModelText(Event, frozen=True, kw_only=True, omit_defaults=True, tag="model_text"):
    """A piece of the model's answer."""

    turn: int
    text: str


class ToolProposed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="tool_proposed"):
    """The model proposed a tool call. Nothing has been decided yet."""

    turn: int
    """0 for a call that a person proposed again."""
    call_id: CallId
    tool: str
    arguments: JsonObject
    malformed: str = ""


class ModelTurnEnded(Event, frozen=True, kw_only=True, omit_defaults=True, tag="model_turn_ended"):
    """The model finished this turn."""

    turn: int
    stop: StopReason
    usage: Usage
    cost_micros: int | None = None
    """What it cost, in millionths of the currency; None if the model has no price."""


class ModelTurnDiscarded(Event, frozen=True, kw_only=True, omit_defaults=True, tag="model_turn_discarded"):
    """The turn's text and proposals are discarded: the stream broke, or never began."""

    turn: int
    reason: str
    failure: str = ""
    """The kind of failure, as `FailureKind` names it."""
    retry_after_ms: int = 0
    """How long the provider asks us to wait."""
    refused: bool = False
    """The provider rejected the request without doing any work."""
    usage: Usage = Usage()
    """What it is assumed to have used: an estimate, and nothing if the provider refused."""
    cost_micros: int | None = None
    """What that cost, in millionths of the currency."""


class PolicyDecided(Event, frozen=True, kw_only=True, omit_defaults=True, tag="policy_decided"):
    """The policy decided whether a proposed call may run."""

    call_id: CallId
    verdict: Verdict
    risk: Risk | None
    reason: str
    policies: tuple[str, ...] = ()
    policy_hash: str = ""
    effect: Effect | None = None
    """What the call would do, as the policy judged it."""
    approver_reachable: bool = False
    """Whether an approver was reachable."""
    grant_id: str | None = None
    """The grant that covers the call."""
    manifest_hash: str | None = None
    """The manifest of the tool's plugin, which limited the call."""
    signals: tuple[str, ...] = ()
    """What scanners had found in the results that the session has read, as `core/text/scanner.py` names it."""


class ApprovalRequested(Event, frozen=True, kw_only=True, omit_defaults=True, tag="approval_requested"):
    """A person is asked to approve a call, or to let the run exceed a budget."""

    call_id: CallId
    """Empty if it is about budgets."""
    approval_id: str
    expires_at: datetime
    tool: str = ""
    arguments: JsonObject = field(default_factory=dict)
    effect: Effect | None = None
    reason: str = ""
    policies: tuple[str, ...] = ()
    policy_hash: str = ""
    budgets: tuple[BudgetOverrun, ...] = ()
    """The budgets that the next model turn would exceed."""


class ApprovalResolved(Event, frozen=True, kw_only=True, omit_defaults=True, tag="approval_resolved"):
    """The approval request was answered, expired or was withdrawn."""

    call_id: CallId
    approval_id: str
    decision: ApprovalDecision
    reason: str = ""
    scope: ApprovalScope = ApprovalScope.ONCE
    arguments: JsonObject | None = None
    """The arguments as the person edited them; they are judged again."""
    grant_id: str | None = None
    """The grant that this answer creates."""
    until: datetime | None = None
    """When that grant expires."""
    sealed: int = 0
    """How many secrets in it were stored in the vault and replaced by markers."""
    removed: int = 0
    """How many secrets could not be stored: they are lost."""
    pattern: str = ""
    """The commands that it covers, if the person wrote a pattern; otherwise it covers the class of the call."""


class ToolStarted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="tool_started"):
    """The tool is about to run; recorded before its first effect."""

    call_id: CallId
    attempt: int = 1
    runtime: CallRuntime | None = None
    """What executes it. An execution that names it is attested when it ends; older entries have none."""
    spec: str = ""
    """The digest of the tool's description."""


class ToolFinished(Event, frozen=True, kw_only=True, omit_defaults=True, tag="tool_finished"):
    """A call ended, with the text that the model gets as its result."""

    call_id: CallId
    outcome: CallOutcome
    text: str
    artifact: str | None = None
    """Where the full result is stored, if the text is only a part."""
    attestation: Attestation | None = None
    """The attestation of the execution; None for a call that never started."""
    signals: tuple[str, ...] = ()
    """What scanners found in the text, as `core/text/scanner.py` names it."""
    discovered_tools: tuple[str, ...] = ()
    """The tools that a search discovered: they are offered from now on."""
    sealed: int = 0
    """How many secrets in it were stored in the vault and replaced by markers."""
    removed: int = 0
    """How many secrets could not be stored: they are lost."""


class CallHandedOver(Event, frozen=True, kw_only=True, omit_defaults=True, tag="call_handed_over"):
    """The call is of a client tool, so the caller must execute it. The daemon neither ran it nor decided about it. The
    run ends with it."""

    call_id: CallId


class ChildStarted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="child_started"):
    """The call is executed by a child run; this run waits for it."""

    call_id: CallId
    child_run_id: RunId
    child_session_id: SessionId
    text: str
    limits: Limits


class ChildEnded(Event, frozen=True, kw_only=True, omit_defaults=True, tag="child_ended"):
    """The child run ended; its answer is the call's result."""

    call_id: CallId
    child_run_id: RunId
    outcome: CallOutcome
    text: str
    attestation: Attestation | None = None
    """The attestation of the execution."""
    signals: tuple[str, ...] = ()
    """What scanners found in the text."""


class LimitReached(Event, frozen=True, kw_only=True, omit_defaults=True, tag="limit_reached"):
    """The run reached a limit; the model gets one last turn without tools."""

    limit: LimitKind


class CancelRequested(Event, frozen=True, kw_only=True, omit_defaults=True, tag="cancel_requested"):
    """Someone asked to cancel the run."""

    reason: str


class RunCompleted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="run_completed"):
    """The run ended with an answer."""

    limit_reached: LimitKind | None = None


class RunFailed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="run_failed"):
    """The run ended without an answer."""

    code: str
    reason: str
    in_conversation: bool = False
    """Whether the conversation has a message that says so. Entries written before this field existed have none."""


class RunCancelled(Event, frozen=True, kw_only=True, omit_defaults=True, tag="run_cancelled"):
    """The run was cancelled, or its wall clock limit ended it."""

    reason: str
    in_conversation: bool = False
    """Whether the conversation has a message that says so. Entries written before this field existed have none."""


# -- events of a session


RunEvent = (
    RunAccepted
    | HistoryAttached
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
    | ModelTurnDiscarded
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
TapeEvent = RunEvent | SessionEvent

FINAL_KINDS = frozenset({"run_completed", "run_failed", "run_cancelled"})
"""The kinds of the entries that end a run."""

_TAG_AT = len('{"kind":"')
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[TapeEvent] = msgspec.json.Decoder(TapeEvent)


def encode(event: TapeEvent) -> str:
    """Return the event as it is stored. The hash chain covers this text, byte for byte."""
    return _encoder.encode(event).decode()


def decode(content: str) -> TapeEvent:
    """Return the event of a stored text, of any release; raise `msgspec.DecodeError` if it is not an event."""
    # The tag comes first in what we write: `{"kind":"run_started",…`.
    return _decoder.decode(upcast(content[_TAG_AT : content.find('"', _TAG_AT)], content)[1])


def kind_of(event: TapeEvent) -> str:
    """Return the stored name of the event's kind."""
    tag: str = event.__struct_config__.tag  # type: ignore[assignment]
    return tag


class Entry(Struct, frozen=True):
    """One entry of a session's tape. `journal/proof` holds it as it is stored; everything else with today's names."""

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
        """Return the entry as clients see it: its position, and the event."""
        # Ids and kinds are our own and need no JSON escapes; the content is JSON already.
        run = f'"{self.run_id}"' if self.run_id else "null"
        return (
            f'{{"session_id":"{self.session_id}","run_id":{run},"tape_seq":{self.tape_seq},'
            f'"run_seq":{self.run_seq},"event":{self.content}}}'
        )
