"""Where a run stands: all that the next decision depends on. How it comes about is told in `machine`."""

from enum import StrEnum

from msgspec import Struct

from palyra.core.brief import NO_BRIEF, Brief
from palyra.core.budget import Reserved
from palyra.core.errors import Broken
from palyra.core.events import (
    Parent,
    Reissue,
    ToolStarted,
)
from palyra.core.ids import AgentId, CallId, PrincipalId, RunId, SessionId
from palyra.core.limits import LimitKind, Limits
from palyra.core.prompt import Reasoning
from palyra.core.repetition import NOTHING_FAILED, Repetition
from palyra.core.tool import ToolCall


class IllegalTransition(Broken):
    """The event does not fit the state of the run."""


class RunStatus(StrEnum):
    """Where a run stands, as the world sees it."""

    ACCEPTED = "accepted"
    IN_PROGRESS = "in_progress"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED})


class Stage(StrEnum):
    """Where a call of the present turn stands."""

    PROPOSED = "proposed"
    ALLOWED = "allowed"
    ASK = "ask"
    WAITING = "waiting"
    STARTED = "started"
    INTERRUPTED = "interrupted"
    DENIED = "denied"
    FINISHED = "finished"
    HANDED_OVER = "handed_over"


SETTLED = frozenset({Stage.DENIED, Stage.FINISHED, Stage.HANDED_OVER})
RUNNABLE = frozenset({Stage.ALLOWED, Stage.INTERRUPTED})


class CallState(Struct, frozen=True):
    """A call and its stage."""

    call: ToolCall
    stage: Stage
    attempts: int = 0
    waits_for: str | None = None
    """The approval, or the child run, that the call waits for."""
    for_child: bool = False
    """It waits for a child, not for a person."""
    approval_id: str | None = None
    """The approval under which it may run; what it does is compared with what was approved."""
    policy_hash: str = ""
    """The policies by which it was decided."""
    labels: tuple[str, ...] = ()
    """Where its arguments come from, as it was judged."""
    credentials: tuple[str, ...] = ()
    """The secrets that may go along: those that it was judged with."""
    grant_id: str | None = None
    """The earlier answer that covers it."""
    answered: str | None = None
    """The approval with which a person let it run, be it with arguments of his own."""
    started: ToolStarted | None = None
    """The beginning of its last attempt."""
    edited: bool = False
    """A person wrote the arguments. They are judged like any others, but nobody is asked about his own words."""


class Failure(Struct, frozen=True):
    """A try of the present turn that came to nothing."""

    model: str
    """`PROVIDER/MODEL`."""
    kind: str
    retry_ms: int = 0
    reason: str = ""
    refused: bool = False
    """It was turned down as it stood, and no work was done."""


class RunState(Struct, frozen=True):
    """All that the next decision depends on. A struct, because the fold makes a new one for every event."""

    run_id: RunId
    session_id: SessionId
    principal: PrincipalId
    agent_id: AgentId
    limits: Limits
    parent: Parent | None = None
    reissue: Reissue | None = None
    """The call that the run begins with."""
    brief: Brief = NO_BRIEF
    """How the caller wants to be answered."""
    origin: str = "api"
    """What led to the run: a client or channel by which a message came in, `run` for a task of another run."""
    channels: tuple[str, ...] = ()
    """By which channels the words came in that the run follows."""
    status: RunStatus = RunStatus.ACCEPTED
    run_seq: int = 1
    started: bool = False
    inputs: int = 1
    inputs_seen: int = 0
    assembled: bool = False
    turns: int = 0
    turn: int | None = None
    """The open turn: started, neither ended nor void."""
    last_turn: bool = False
    """The last turn at a limit has begun."""
    interrupted_turns: int = 0
    """How many turns were cut off by the end of the daemon. They do not count for the limit either."""
    interrupted_in_a_row: int = 0
    """How many of them since a turn last came to its end."""
    text: tuple[str, ...] = ()
    """The pieces of the present turn's answer; of a run that failed or was cancelled, what was cut off."""
    text_labels: tuple[str, ...] = ()
    """Where that text comes from: the labels of the turn."""
    reasoning: tuple[Reasoning, ...] = ()
    """What the model thought in the present turn."""
    thinks: bool = False
    """The last thought is not at its end."""
    asked: str = ""
    """The model that was asked last, as `PROVIDER/MODEL`."""
    reserved: Reserved | None = None
    """What is set aside for the open turn."""
    question: str | None = None
    """The approval that the run waits for before it may go beyond a budget."""
    at_stake: tuple[str, ...] = ()
    """The budgets that the question is about, by their names."""
    lifted: tuple[str, ...] = ()
    """The budgets that the run may go beyond."""
    refused: str | None = None
    """Why it may not: somebody said so, or nobody answered."""
    failures: tuple[Failure, ...] = ()
    """The tries of the present turn that came to nothing, since the last one that did not."""
    failed_turns: int = 0
    """How many turns a provider has failed in. They do not count for the limit: the run goes on as if they were not."""
    calls: tuple[CallState, ...] = ()
    repetition: Repetition = NOTHING_FAILED
    answered: bool = False
    executed: int = 0
    children: int = 0
    carried_ms: int = 0
    limit: LimitKind | None = None
    cancel: str | None = None
    found: tuple[str, ...] = ()
    """The tools that searches have brought so far."""

    @property
    def counted_turns(self) -> int:
        """The turns that count for the limit."""
        return self.turns - self.failed_turns - self.interrupted_turns

    @property
    def root_run_id(self) -> RunId:
        """The run that this one works for: itself, unless it is a child."""
        return self.run_id if self.parent is None else self.parent.root_run_id or self.parent.run_id

    @property
    def root_session_id(self) -> SessionId:
        """The session of that run."""
        return self.session_id if self.parent is None else self.parent.root_session_id or self.parent.session_id

    @property
    def open_questions(self) -> list[tuple[CallId, str]]:
        """What a person was asked and has not answered: each the call, empty if it is about budgets, and the id."""
        about_calls = [
            (call.call.call_id, call.waits_for)
            for call in self.calls
            if call.stage is Stage.WAITING and not call.for_child and call.waits_for is not None
        ]
        return about_calls if self.question is None else [*about_calls, (CallId(""), self.question)]

    @property
    def is_answered(self) -> bool:
        """Whether the model has answered, and to everything that was said."""
        return self.answered and self.inputs == self.inputs_seen

    @property
    def is_handed_over(self) -> bool:
        """Whether it is the caller's turn: a call of a tool of his was left to him."""
        return any(c.stage is Stage.HANDED_OVER for c in self.calls)

    def is_callers(self, call: CallState) -> bool:
        """Tell whether a call is of a tool that the caller has."""
        return any(tool.name == call.call.tool for tool in self.brief.tools)

    @property
    def is_bounded(self) -> bool:
        """Whether a turn that ends for its length was cut off in the midst of its calls by the caller's own bound: to
        ask again would cost as much, and end in the same way."""
        bounded = self.brief.options.max_output_tokens is not None
        return bounded and all(call.call.malformed for call in self.calls)

    @property
    def said_something(self) -> bool:
        """Whether the present turn holds more than blanks."""
        return any(not piece.isspace() and piece for piece in self.text)

    def call(self, call_id: CallId) -> CallState:
        """Return the call of that id in the present turn."""
        for candidate in self.calls:
            if candidate.call.call_id == call_id:
                return candidate
        raise IllegalTransition(f"the present turn has no call {call_id}")
