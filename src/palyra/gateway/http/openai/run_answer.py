"""The answer of a run, read from its tape as it grows.

All text of the run is the answer, turn after turn, with an empty line between two turns. The pieces of a streamed
answer add up to the complete one.
"""

from collections.abc import Iterator

from msgspec import Struct

from palyra.core.events import (
    ApprovalRequested,
    ApprovalResolved,
    CallHandedOver,
    ChildEnded,
    ChildStarted,
    Entry,
    ModelReasoning,
    ModelText,
    ModelTurnDiscarded,
    ModelTurnEnded,
    ModelTurnStarted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunResumed,
    TapeEvent,
    ToolProposed,
)
from palyra.core.ids import CallId, RunId
from palyra.core.model.prompt import StopReason
from palyra.core.spending.usage import Usage
from palyra.core.tool import ToolCall

BETWEEN = "\n\n"


class AnswerDelta(Struct, frozen=True):
    """A piece of the answer."""

    text: str


class ReasoningPiece(Struct, frozen=True):
    """A piece of the model's reasoning."""

    text: str


class AttemptDiscardedPiece(Struct, frozen=True):
    """What was sent of the current turn is discarded: another attempt replaces it."""

    reason: str


class AnswerEnded(Struct, frozen=True):
    """The answer is complete, or there will be none."""


Piece = AnswerDelta | ReasoningPiece | AttemptDiscardedPiece | AnswerEnded


class RunAnswer:
    """Builds the answer from the entries of a run, in order."""

    def __init__(self, *, void: frozenset[int] = frozenset()) -> None:
        """Turns in `void` are known to be discarded, and are skipped."""
        self._void = void
        self._texts: dict[int, str] = {}
        self._thoughts: dict[int, str] = {}
        self._open: int | None = None
        self._told = False
        """Whether something of the open turn was sent."""
        self._proposed: dict[CallId, ToolCall] = {}
        self.calls: list[ToolCall] = []
        """The calls that were handed over to the client."""
        self.usage = Usage()
        self.stop = StopReason.END
        self.asked: set[str] = set()
        """The open approval requests."""
        self.children: set[RunId] = set()
        """The child runs of this run."""
        self.added = False
        """The API added a text of its own; that ends the answer, but not the run."""
        self.end: RunCompleted | RunFailed | RunCancelled | None = None
        self.last_seq = 0

    @property
    def text(self) -> str:
        """The whole text of the answer."""
        return BETWEEN.join(text for text in self._texts.values() if text)

    @property
    def thoughts(self) -> str:
        """The whole reasoning."""
        return BETWEEN.join(text for text in self._thoughts.values() if text)

    def take(self, entry: Entry) -> Iterator[Piece]:
        """Process an entry, and yield the pieces of the answer in it."""
        self.last_seq = entry.tape_seq
        yield from self._take(entry.event)

    def add(self, text: str) -> AnswerDelta:
        """Add a text of the API itself."""
        self.added = True
        return AnswerDelta(self._add(self._texts, -len(self._texts) - 1, text))

    def _take(self, event: TapeEvent) -> Iterator[Piece]:
        match event:
            case ModelTurnStarted(turn=turn):
                self._open, self._told = turn, False
                self._proposed = {}
            case ModelText(turn=turn, text=text) if turn not in self._void and text:
                # A client that joined in the middle of a turn has not seen its start.
                self._open, self._told = turn, True
                yield AnswerDelta(self._add(self._texts, turn, text))
            case ModelReasoning(turn=turn, text=text) if turn not in self._void and text:
                self._open, self._told = turn, True
                yield ReasoningPiece(self._add(self._thoughts, turn, text))
            case ToolProposed(call_id=call_id, tool=tool, arguments=arguments):
                self._proposed[call_id] = ToolCall(call_id=call_id, tool=tool, arguments=arguments)
            case ModelTurnEnded(usage=usage, stop=stop):
                self._open = None
                self.usage, self.stop = self.usage.plus(usage), stop
            case ModelTurnDiscarded(reason=reason):
                yield from self._tear(reason)
            case RunResumed():
                yield from self._tear("the daemon was interrupted")
            case CallHandedOver(call_id=call_id):
                self.calls.append(self._proposed[call_id])
            case ApprovalRequested(approval_id=approval_id):
                self.asked.add(approval_id)
            case ApprovalResolved(approval_id=approval_id):
                self.asked.discard(approval_id)
            case ChildStarted(child_run_id=child):
                self.children.add(child)
            case ChildEnded(child_run_id=child):
                self.children.discard(child)
            case RunCompleted() | RunFailed() | RunCancelled():
                self.end = event
                yield AnswerEnded()
            case _:
                pass

    def _add(self, texts: dict[int, str], turn: int, text: str) -> str:
        begins = turn not in texts and any(texts.values())
        texts[turn] = texts.get(turn, "") + text
        return BETWEEN + text if begins else text

    def _tear(self, reason: str) -> Iterator[Piece]:
        if self._open is None:
            return
        turn, reported = self._open, self._told
        self._open, self._told = None, False
        self._texts.pop(turn, None)
        self._thoughts.pop(turn, None)
        if reported:
            yield AttemptDiscardedPiece(reason)


def discarded_turns(entries: list[Entry]) -> frozenset[int]:
    """Return the discarded turns among the entries."""
    void: set[int] = set()
    open_turn: int | None = None
    for entry in entries:
        if entry.kind not in ("model_turn_started", "model_turn_ended", "model_turn_discarded", "run_resumed"):
            continue
        match entry.event:
            case ModelTurnStarted(turn=turn):
                open_turn = turn
            case ModelTurnEnded():
                open_turn = None
            case _ if open_turn is not None:
                void.add(open_turn)
                open_turn = None
            case _:
                pass
    return frozenset(void)
