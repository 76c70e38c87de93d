"""The state of a run: everything the next decision depends on. `machine` derives it."""

from enum import StrEnum

from msgspec import Struct

from palyra.core.channel import UNKNOWN
from palyra.core.errors import Internal
from palyra.core.event import ParentRun
from palyra.core.events import Reissue, ToolStarted
from palyra.core.ids import AgentId, CallId, PrincipalId, RunId, SessionId
from palyra.core.limits import LimitKind, Limits
from palyra.core.model.prompt import Reasoning
from palyra.core.model.request_options import NO_REQUEST_OPTIONS, RequestOptions
from palyra.core.run.repetition import NOTHING_FAILED, RepeatedFailures
from palyra.core.spending.budget import Reservation
from palyra.core.tool import ToolCall


class RunEventInvalid(Internal):
    """The event is not valid in the current state of the run."""


class RunStatus(StrEnum):
    """The public status of a run."""

    ACCEPTED = "accepted"
    IN_PROGRESS = "in_progress"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED})


class CallStage(StrEnum):
    """The stage of a call of the current turn."""

    PROPOSED = "proposed"
    ALLOWED = "allowed"
    NEEDS_APPROVAL = "needs_approval"
    WAITING = "waiting"
    STARTED = "started"
    INTERRUPTED = "interrupted"
    DENIED = "denied"
    FINISHED = "finished"
    HANDED_OVER = "handed_over"


SETTLED = frozenset({CallStage.DENIED, CallStage.FINISHED, CallStage.HANDED_OVER})
RUNNABLE = frozenset({CallStage.ALLOWED, CallStage.INTERRUPTED})


class CallState(Struct, frozen=True):
    """A call and its stage."""

    call: ToolCall
    stage: CallStage
    attempts: int = 0
    waits_for: str | None = None
    """The approval, or the child run, that the call waits for."""
    for_child: bool = False
    """It waits for a child run, not for a person."""
    approval_id: str | None = None
    """The approval that lets it run; its effect is compared with what was approved."""
    policy_hash: str = ""
    """The policies that decided it."""
    labels: tuple[str, ...] = ()
    """The labels of its arguments when it was judged."""
    credentials: tuple[str, ...] = ()
    """The secrets that may be sent with it: those that it was judged with."""
    grant_id: str | None = None
    """The grant that covers it."""
    answered: str | None = None
    """The approval with which a person let it run, with the proposed or with edited arguments."""
    started: ToolStarted | None = None
    """When its last attempt began."""
    edited: bool = False
    """A person wrote the arguments. They are judged like any others, but need no approval."""


class FailedAttempt(Struct, frozen=True):
    """A failed attempt of the current turn."""

    model: str
    """`PROVIDER/MODEL`."""
    kind: str
    retry_ms: int = 0
    reason: str = ""
    refused: bool = False
    """The provider rejected it without doing any work."""


class RunState(Struct, frozen=True):
    """Everything the next decision depends on. A struct, because the fold creates a new one for every event."""

    run_id: RunId
    session_id: SessionId
    principal: PrincipalId
    agent_id: AgentId
    limits: Limits
    parent: ParentRun | None = None
    reissue: Reissue | None = None
    """The call that the run begins with."""
    options: RequestOptions = NO_REQUEST_OPTIONS
    """The caller's request options."""
    channel: str = UNKNOWN
    """What led to the run: a client or channel by which a message came in, `run` for a task of another run."""
    channels: tuple[str, ...] = ()
    """The channels of the messages that the run follows."""
    status: RunStatus = RunStatus.ACCEPTED
    run_seq: int = 1
    started: bool = False
    inputs: int = 1
    inputs_shown: int = 0
    assembled: bool = False
    turns: int = 0
    turn: int | None = None
    """The open turn: started, neither ended nor discarded."""
    last_turn: bool = False
    """The last turn at a limit has begun."""
    interrupted_turns: int = 0
    """How many turns were interrupted because the daemon stopped. They do not count for the limit either."""
    interrupted_in_a_row: int = 0
    """How many of them since the last turn that ended normally."""
    text: tuple[str, ...] = ()
    """The pieces of the current turn's answer; for a failed or cancelled run, the partial text."""
    text_labels: tuple[str, ...] = ()
    """The labels of that text, which are those of the turn."""
    reasoning: tuple[Reasoning, ...] = ()
    """The model's reasoning in the current turn."""
    thinks: bool = False
    """The last reasoning block is still open."""
    last_model: str = ""
    """The model that was used last, as `PROVIDER/MODEL`."""
    reserved: Reservation | None = None
    """What is reserved for the open turn."""
    question: str | None = None
    """The approval that the run waits for before it may exceed a budget."""
    at_stake: tuple[str, ...] = ()
    """The budgets that the approval request is about, by their names."""
    lifted: tuple[str, ...] = ()
    """The budgets that the run may exceed."""
    refused: str | None = None
    """Why it may not: a person denied it, or the request expired."""
    failures: tuple[FailedAttempt, ...] = ()
    """The failed attempts of the current turn, since the last successful one."""
    failed_turns: int = 0
    """How many turns failed because of a provider. They do not count for the limit: the run continues without them."""
    calls: tuple[CallState, ...] = ()
    repetition: RepeatedFailures = NOTHING_FAILED
    answered: bool = False
    executed: int = 0
    children: int = 0
    active_ms: int = 0
    limit: LimitKind | None = None
    cancel: str | None = None
    discovered_tools: tuple[str, ...] = ()
    """The tools discovered so far."""

    @property
    def counted_turns(self) -> int:
        """The turns that count for the limit."""
        return self.turns - self.failed_turns - self.interrupted_turns

    @property
    def root_run_id(self) -> RunId:
        """The run that this one works for: itself, unless it is a child run."""
        return self.run_id if self.parent is None else self.parent.root_run_id or self.parent.run_id

    @property
    def root_session_id(self) -> SessionId:
        """The session of that run."""
        return self.session_id if self.parent is None else self.parent.root_session_id or self.parent.session_id

    @property
    def open_questions(self) -> list[tuple[CallId, str]]:
        """The unanswered approval requests: for each the call (empty if it is about budgets) and the id."""
        about_calls = [
            (call.call.call_id, call.waits_for)
            for call in self.calls
            if call.stage is CallStage.WAITING and not call.for_child and call.waits_for is not None
        ]
        return about_calls if self.question is None else [*about_calls, (CallId(""), self.question)]

    @property
    def is_answered(self) -> bool:
        """Whether the model has answered every message."""
        return self.answered and self.inputs == self.inputs_shown

    @property
    def is_handed_over(self) -> bool:
        """Whether the caller must act: a call of a client tool was handed over."""
        return any(c.stage is CallStage.HANDED_OVER for c in self.calls)

    def is_callers(self, call: CallState) -> bool:
        """Return whether a call is of a client tool."""
        return any(tool.name == call.call.tool for tool in self.options.tools)

    @property
    def is_bounded(self) -> bool:
        """Whether the caller's token limit cut a turn off in its calls: a retry costs as much and ends the same way."""
        bounded = self.options.generation.max_output_tokens is not None
        return bounded and all(call.call.malformed for call in self.calls)

    @property
    def may_ask_model(self) -> bool:
        """Whether a model turn may start."""
        free = self.turn is None and self.question is None and self.refused is None and self.cancel is None
        # A handed-over call is the caller's to execute: the model sees its result in another run.
        free = free and not self.is_handed_over
        return free and self.started and all(c.stage in SETTLED for c in self.calls)

    @property
    def has_text(self) -> bool:
        """Whether the current turn contains more than whitespace."""
        return any(not piece.isspace() and piece for piece in self.text)

    def call(self, call_id: CallId) -> CallState:
        """Return the call with that id in the current turn."""
        for candidate in self.calls:
            if candidate.call.call_id == call_id:
                return candidate
        raise RunEventInvalid(f"the current turn has no call {call_id}")


def require(fits: bool, otherwise: str) -> None:
    """Raise `RunEventInvalid` with that reason if an event does not fit."""
    if not fits:
        raise RunEventInvalid(otherwise)
