"""Builds the trace of a run: its tape as a tree of causes, each with its position on the tape.

An input leads to model turns, a turn to calls, a call to policy decisions, approvals, executions and their results. The
tree is derived from the entries alone; nothing in it is guessed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from palyra.core.event import Event
from palyra.core.events import (
    ApprovalRequested,
    ApprovalResolved,
    CallHandedOver,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    ContextAssembled,
    Entry,
    HistoryAttached,
    InputSteered,
    LimitReached,
    ModelText,
    ModelTurnDiscarded,
    ModelTurnEnded,
    ModelTurnStarted,
    PolicyDecided,
    RunAccepted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunResumed,
    ToolFinished,
    ToolProposed,
    ToolStarted,
)
from palyra.core.ids import CallId
from palyra.core.tool import JsonObject
from palyra.core.trace.tree import TraceNode, walk_nodes
from palyra.runs.trace.nodes import (
    CallTrace,
    TurnTrace,
    approval_node,
    cause_node,
    execution_node,
    result_of,
    turn_node,
)


@dataclass(frozen=True, slots=True)
class TraceFocus:
    """The part of a run that a trace is about: all of it, a turn, or a call; and at which entry."""

    turn: int | None = None
    call_id: CallId | None = None
    tape_seq: int | None = None


WHOLE_RUN = TraceFocus()


def focus_on(entries: Sequence[Entry], tape_seq: int) -> TraceFocus:
    """Return the part of the run that an entry belongs to."""
    entry = next(entry for entry in entries if entry.tape_seq == tape_seq)
    event = entry.event
    # An approval request about budgets does not belong to a call.
    call_id, turn = getattr(event, "call_id", None) or None, getattr(event, "turn", None)
    if isinstance(event, ContextAssembled):
        following = (later.event for later in entries if later.tape_seq > tape_seq)
        turn = next((later.turn for later in following if isinstance(later, ModelTurnStarted)), None)
    return TraceFocus(turn=None if call_id is not None else turn, call_id=call_id, tape_seq=tape_seq)


def proposes(entries: Iterable[Entry], call_id: CallId) -> bool:
    """Return whether a call was proposed in these entries."""
    return any(isinstance(event := entry.event, ToolProposed) and event.call_id == call_id for entry in entries)


def run_tree(
    entries: Sequence[Entry],
    *,
    focus: TraceFocus = WHOLE_RUN,
    left: Mapping[CallId, Sequence[TraceNode]] | None = None,
    below: Mapping[CallId, TraceNode] | None = None,
) -> TraceNode:
    """Return the causes of a run as a tree that begins with its input.

    `left` has the files and artifacts of calls, `below` the trees of the child runs that calls waited for.
    """
    story = _TraceBuilder(left or {}, below or {})
    for entry in entries:
        story.take(entry, entry.event)
    return story.tree(focus)


class _TraceBuilder:
    """Processes the entries of one run in order."""

    def __init__(self, left: Mapping[CallId, Sequence[TraceNode]], below: Mapping[CallId, TraceNode]) -> None:
        self._left = left
        self._below = below
        self._root: TraceNode | None = None
        self._parts: list[tuple[int, TraceNode | TurnTrace | CallTrace]] = []
        self._calls: dict[CallId, CallTrace] = {}
        self._context: ContextAssembled | None = None
        self._seen: list[JsonObject] = []
        self._asked: dict[str, tuple[Entry, ApprovalRequested]] = {}
        """Open approval requests about budgets."""
        self._usage = [0, 0]
        self._micros: int | None = None

    def take(self, entry: Entry, event: Event) -> None:
        match event:
            case RunAccepted():
                self._root = cause_node(entry, event)
            case HistoryAttached() | InputSteered():
                self._add(entry, cause_node(entry, event))
            case ContextAssembled():
                self._context = event
            case ModelTurnStarted():
                turn = TurnTrace(entry, event, self._context, list(self._seen))
                self._parts.append((entry.tape_seq, turn))
            case ModelText():
                self._turn.text.append(event.text)
            case ModelTurnEnded():
                self._turn.ended = event
                self._usage[0] += event.usage.input_tokens
                self._usage[1] += event.usage.output_tokens
                self._spend(event.cost_micros)
            case ModelTurnDiscarded():
                self._turn.discarded = event
                self._spend(event.cost_micros)
            case ToolProposed():
                call = self._calls[event.call_id] = CallTrace(entry, event)
                if event.turn == 0:
                    # A person proposed it again: it does not belong to a turn.
                    self._parts.append((entry.tape_seq, call))
                else:
                    self._turn.calls.append(call)
            case RunResumed() | LimitReached() | CancelRequested() | RunCompleted() | RunFailed() | RunCancelled():
                self._add(entry, cause_node(entry, event))
            case _:
                self._take_of_call(entry, event)

    def _take_of_call(self, entry: Entry, event: Event) -> None:
        match event:
            case PolicyDecided() | CallHandedOver() | ChildStarted():
                self._calls[event.call_id].nodes.append(cause_node(entry, event))
            case ApprovalRequested(budgets=budgets) if budgets:
                self._asked[event.approval_id] = (entry, event)
                self._add(entry, cause_node(entry, event))
            case ApprovalResolved(call_id=""):
                self._answered(entry, event)
            case ApprovalRequested():
                self._calls[event.call_id].approval[event.approval_id] = (entry, event)
            case ApprovalResolved():
                call = self._calls[event.call_id]
                call.nodes.append(approval_node(entry, event, call.approval.pop(event.approval_id, (entry, None))[1]))
            case ToolStarted():
                call = self._calls[event.call_id]
                call.started, call.attempts = (entry, event), event.attempt
            case ToolFinished() | ChildEnded():
                call = self._calls[event.call_id]
                call.nodes.append(execution_node(entry, event, call))
                self._seen.append(result_of(call, event.outcome.value, event.labels))
            case _:
                pass

    def _answered(self, entry: Entry, event: ApprovalResolved) -> None:
        """Replace the approval request about budgets with its answer."""
        request = self._asked.pop(event.approval_id)
        self._parts = [(seq, part) for seq, part in self._parts if seq != request[0].tape_seq]
        self._add(entry, approval_node(entry, event, request[1]))

    def _spend(self, micros: int | None) -> None:
        if micros is not None:
            self._micros = (self._micros or 0) + micros

    def tree(self, focus: TraceFocus) -> TraceNode:
        assert self._root is not None, "a run must begin with its acceptance"
        then = []
        for _, part in self._parts:
            if isinstance(part, TraceNode):
                if focus.turn is None and focus.call_id is None:
                    then.append(_marked(part, focus))
            elif isinstance(part, CallTrace):
                if focus.turn is None and focus.call_id in (None, part.event.call_id):
                    then.append(self._call(part, focus))
            elif (trace_node := self._node(part, focus)) is not None:
                then.append(trace_node)
        tokens = {"input_tokens": self._usage[0], "output_tokens": self._usage[1]}
        if self._micros is not None:
            tokens["cost_micros"] = self._micros
        root = _marked(replace(self._root, facts={**self._root.facts, **tokens}, then=tuple(then)), focus)
        # For an entry without a node of its own, the whole run is shown.
        return root if any(link.subject for link in walk_nodes(root)) else replace(root, subject=not self._below)

    def _node(self, turn: TurnTrace, focus: TraceFocus) -> TraceNode | None:
        if focus.turn is not None and turn.event.turn != focus.turn:
            return None
        calls = [call for call in turn.calls if focus.call_id in (None, call.event.call_id)]
        if focus.call_id is not None and not calls:
            return None
        trace_nodes = [] if focus.turn is not None else [self._call(call, focus) for call in calls]
        requested = focus.turn is not None and turn.event.turn == focus.turn
        return replace(_marked(turn_node(turn), focus), then=tuple(trace_nodes), subject=requested)

    def _call(self, call: CallTrace, focus: TraceFocus) -> TraceNode:
        call_id = call.event.call_id
        links = [*call.nodes, *(cause_node(entry, event) for entry, event in call.approval.values())]
        if call.started is not None and not any(link.kind == "execution" for link in links):
            links.append(cause_node(*call.started))
        if (child := self._below.get(call_id)) is not None:
            links = [replace(link, then=(child,)) if link.kind == "child" else link for link in links]
        links += self._left.get(call_id, ())
        then = tuple(_marked(part, focus) for part in links)
        requested = focus.call_id == call_id and not any(link.subject for part in then for link in walk_nodes(part))
        return replace(cause_node(call.proposed, call.event), then=then, subject=requested)

    @property
    def _turn(self) -> TurnTrace:
        return next(part for _, part in reversed(self._parts) if isinstance(part, TurnTrace))

    def _add(self, entry: Entry, link: TraceNode) -> None:
        self._parts.append((entry.tape_seq, link))


def _marked(link: TraceNode, focus: TraceFocus) -> TraceNode:
    return replace(link, subject=link.subject or (focus.tape_seq is not None and link.tape_seq == focus.tape_seq))
