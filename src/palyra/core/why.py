"""Where something came from: the tape of a run as a tree of causes, each with its place on the tape.

An input leads to turns of the model, a turn to calls, a call to verdicts, questions, executions and what they left
behind. The tree is worked out from the entries alone; nothing in it is guessed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from palyra.core.events import (
    ApprovalRequested,
    ApprovalResolved,
    CallHandedOver,
    CancelRequested,
    ChildEnded,
    ChildStarted,
    ContextAssembled,
    Entry,
    Event,
    InputSteered,
    LimitReached,
    MessageGiven,
    ModelText,
    ModelTurnEnded,
    ModelTurnStarted,
    ModelTurnVoided,
    PolicyDecided,
    RunAccepted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunResumed,
    ToolFinished,
    ToolProposed,
    ToolStarted,
    decode,
)
from palyra.core.ids import CallId
from palyra.core.link import (
    Call,
    Turn,
    approval_link,
    call_link,
    child_link,
    end_link,
    execution_link,
    given_link,
    handed_over_link,
    input_link,
    policy_link,
    question_link,
    result_of,
    steered_link,
    turn_link,
    unfinished_link,
)
from palyra.core.tool import JsonObject
from palyra.core.trace import Link, walk


@dataclass(frozen=True, slots=True)
class Focus:
    """Which part of a run is asked about: all of it, a turn, or a call; and at which entry."""

    turn: int | None = None
    call_id: CallId | None = None
    tape_seq: int | None = None


WHOLE = Focus()


def focus_on(entries: Sequence[Entry], tape_seq: int) -> Focus:
    """Return the part of the run that an entry of it belongs to."""
    entry = next(entry for entry in entries if entry.tape_seq == tape_seq)
    event = decode(entry.content)
    # A question about budgets belongs to no call.
    call_id, turn = getattr(event, "call_id", None) or None, getattr(event, "turn", None)
    if isinstance(event, ContextAssembled):
        following = (decode(later.content) for later in entries if later.tape_seq > tape_seq)
        turn = next((later.turn for later in following if isinstance(later, ModelTurnStarted)), None)
    return Focus(turn=None if call_id is not None else turn, call_id=call_id, tape_seq=tape_seq)


def proposes(entries: Iterable[Entry], call_id: CallId) -> bool:
    """Tell whether a call was proposed in these entries."""
    return any(
        isinstance(event := decode(entry.content), ToolProposed) and event.call_id == call_id for entry in entries
    )


def run_tree(
    entries: Sequence[Entry],
    *,
    focus: Focus = WHOLE,
    left: Mapping[CallId, Sequence[Link]] | None = None,
    below: Mapping[CallId, Link] | None = None,
) -> Link:
    """Return the causes of a run as a tree that begins with its input.

    `left` is what calls left behind beside the tape, `below` what the tree of a child is that a call waited for.
    """
    story = _Story(left or {}, below or {})
    for entry in entries:
        story.take(entry, decode(entry.content))
    return story.tree(focus)


class _Story:
    """Takes the entries of one run in their order."""

    def __init__(self, left: Mapping[CallId, Sequence[Link]], below: Mapping[CallId, Link]) -> None:
        self._left = left
        self._below = below
        self._root: Link | None = None
        self._parts: list[tuple[int, Link | Turn | Call]] = []
        self._calls: dict[CallId, Call] = {}
        self._context: ContextAssembled | None = None
        self._seen: list[JsonObject] = []
        self._asked: dict[str, tuple[Entry, ApprovalRequested]] = {}
        """Open questions about budgets."""
        self._usage = [0, 0]
        self._micros: int | None = None

    def take(self, entry: Entry, event: Event) -> None:
        match event:
            case RunAccepted():
                self._root = input_link(entry, event)
            case MessageGiven():
                self._add(entry, given_link(entry, event))
            case InputSteered():
                self._add(entry, steered_link(entry, event))
            case ContextAssembled():
                self._context = event
            case ModelTurnStarted():
                turn = Turn(entry, event, self._context, list(self._seen))
                self._parts.append((entry.tape_seq, turn))
            case ModelText():
                self._turn.text.append(event.text)
            case ModelTurnEnded():
                self._turn.ended = event
                self._usage[0] += event.usage.input_tokens
                self._usage[1] += event.usage.output_tokens
                self._spend(event.micros)
            case ModelTurnVoided():
                self._turn.voided = event
                self._spend(event.micros)
            case ToolProposed():
                call = self._calls[event.call_id] = Call(entry, event)
                if event.turn == 0:
                    # A person proposed it once more: it stands in no turn.
                    self._parts.append((entry.tape_seq, call))
                else:
                    self._turn.calls.append(call)
            case RunResumed() | LimitReached() | CancelRequested() | RunCompleted() | RunFailed() | RunCancelled():
                self._add(entry, end_link(entry, event))
            case _:
                self._take_of_call(entry, event)

    def _take_of_call(self, entry: Entry, event: Event) -> None:
        match event:
            case PolicyDecided():
                self._calls[event.call_id].links.append(policy_link(entry, event))
            case ApprovalRequested(budgets=budgets) if budgets:
                self._asked[event.approval_id] = (entry, event)
                self._add(entry, question_link(entry, event))
            case ApprovalResolved(call_id=""):
                self._answered(entry, event)
            case ApprovalRequested():
                self._calls[event.call_id].asked[event.approval_id] = (entry, event)
            case ApprovalResolved():
                call = self._calls[event.call_id]
                call.links.append(approval_link(entry, event, call.asked.pop(event.approval_id, None)))
            case ToolStarted():
                call = self._calls[event.call_id]
                call.started, call.attempts = (entry, event), event.attempt
            case ToolFinished():
                call = self._calls[event.call_id]
                call.links.append(execution_link(entry, event, call))
                self._seen.append(result_of(call, event.outcome.value, event.labels))
            case CallHandedOver():
                self._calls[event.call_id].links.append(handed_over_link(entry, event))
            case ChildStarted():
                self._calls[event.call_id].links.append(child_link(entry, event))
            case ChildEnded():
                call = self._calls[event.call_id]
                call.links.append(execution_link(entry, event, call))
                self._seen.append(result_of(call, event.outcome.value, event.labels))
            case _:
                pass

    def _answered(self, entry: Entry, event: ApprovalResolved) -> None:
        """Let the answer take the place of the question about budgets."""
        asked = self._asked.pop(event.approval_id)
        self._parts = [(seq, part) for seq, part in self._parts if seq != asked[0].tape_seq]
        self._add(entry, approval_link(entry, event, asked))

    def _spend(self, micros: int | None) -> None:
        if micros is not None:
            self._micros = (self._micros or 0) + micros

    def tree(self, focus: Focus) -> Link:
        assert self._root is not None, "a run begins with its acceptance"
        then = []
        for _, part in self._parts:
            if isinstance(part, Link):
                if focus.turn is None and focus.call_id is None:
                    then.append(_marked(part, focus))
            elif isinstance(part, Call):
                if focus.turn is None and focus.call_id in (None, part.event.call_id):
                    then.append(self._call(part, focus))
            elif (shown := self._shown(part, focus)) is not None:
                then.append(shown)
        tokens = {"input_tokens": self._usage[0], "output_tokens": self._usage[1]}
        if self._micros is not None:
            tokens["cost_micros"] = self._micros
        root = _marked(replace(self._root, facts={**self._root.facts, **tokens}, then=tuple(then)), focus)
        # Of what has no link of its own, the whole is shown.
        return root if any(link.subject for link in walk(root)) else replace(root, subject=not self._below)

    def _shown(self, turn: Turn, focus: Focus) -> Link | None:
        if focus.turn is not None and turn.event.turn != focus.turn:
            return None
        calls = [call for call in turn.calls if focus.call_id in (None, call.event.call_id)]
        if focus.call_id is not None and not calls:
            return None
        shown = [] if focus.turn is not None else [self._call(call, focus) for call in calls]
        asked = focus.turn is not None and turn.event.turn == focus.turn
        return replace(_marked(turn_link(turn), focus), then=tuple(shown), subject=asked)

    def _call(self, call: Call, focus: Focus) -> Link:
        call_id = call.event.call_id
        links = [*call.links, *(question_link(entry, event) for entry, event in call.asked.values())]
        if call.started is not None and not any(link.kind == "execution" for link in links):
            links.append(unfinished_link(*call.started))
        if (child := self._below.get(call_id)) is not None:
            links = [replace(link, then=(child,)) if link.kind == "child" else link for link in links]
        links += self._left.get(call_id, ())
        then = tuple(_marked(part, focus) for part in links)
        asked = focus.call_id == call_id and not any(link.subject for part in then for link in walk(part))
        return replace(call_link(call), then=then, subject=asked)

    @property
    def _turn(self) -> Turn:
        return next(part for _, part in reversed(self._parts) if isinstance(part, Turn))

    def _add(self, entry: Entry, link: Link) -> None:
        self._parts.append((entry.tape_seq, link))


def _marked(link: Link, focus: Focus) -> Link:
    return replace(link, subject=link.subject or (focus.tape_seq is not None and link.tape_seq == focus.tape_seq))
