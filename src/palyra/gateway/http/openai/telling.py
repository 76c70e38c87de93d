"""The answer of a run, told from its tape as it grows.

All text of the run is the answer, turn after turn, with an empty line between two turns. What is told piece by piece
adds up to what is told at once.
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
    ModelTurnEnded,
    ModelTurnStarted,
    ModelTurnVoided,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunResumed,
    TapeEvent,
    ToolProposed,
)
from palyra.core.ids import CallId, RunId
from palyra.core.prompt import StopReason
from palyra.core.tool import ToolCall
from palyra.core.usage import Usage

BETWEEN = "\n\n"


class Said(Struct, frozen=True):
    """A piece of the answer."""

    text: str


class Thought(Struct, frozen=True):
    """A piece of what the model thinks."""

    text: str


class Torn(Struct, frozen=True):
    """What was told of the present turn does not count: another will take its place."""

    reason: str


class Over(Struct, frozen=True):
    """The answer is complete, or there will be none."""


Piece = Said | Thought | Torn | Over


class Telling:
    """Takes the entries of a run in their order."""

    def __init__(self, *, void: frozenset[int] = frozenset()) -> None:
        """Turns that are known to be `void` are passed over."""
        self._void = void
        self._texts: dict[int, str] = {}
        self._thoughts: dict[int, str] = {}
        self._open: int | None = None
        self._told = False
        """Whether something of the open turn was told."""
        self._proposed: dict[CallId, ToolCall] = {}
        self.calls: list[ToolCall] = []
        """What was left to the caller."""
        self.usage = Usage()
        self.stop = StopReason.END
        self.asked: set[str] = set()
        """The questions that are open."""
        self.children: set[RunId] = set()
        """The runs that work for this one."""
        self.added = False
        """The door had something to say itself; with that the answer ends, and not the run."""
        self.end: RunCompleted | RunFailed | RunCancelled | None = None
        self.last_seq = 0

    @property
    def text(self) -> str:
        """All that was said."""
        return BETWEEN.join(text for text in self._texts.values() if text)

    @property
    def thoughts(self) -> str:
        """All that was thought."""
        return BETWEEN.join(text for text in self._thoughts.values() if text)

    def take(self, entry: Entry) -> Iterator[Piece]:
        """Take an entry in, and yield what there is to tell of it."""
        self.last_seq = entry.tape_seq
        yield from self._take(entry.event)

    def add(self, text: str) -> Said:
        """Add something that the door itself has to say."""
        self.added = True
        return Said(self._add(self._texts, -len(self._texts) - 1, text))

    def _take(self, event: TapeEvent) -> Iterator[Piece]:
        match event:
            case ModelTurnStarted(turn=turn):
                self._open, self._told = turn, False
                self._proposed = {}
            case ModelText(turn=turn, text=text) if turn not in self._void and text:
                # Who joined a run in the middle of a turn has not seen it begin.
                self._open, self._told = turn, True
                yield Said(self._add(self._texts, turn, text))
            case ModelReasoning(turn=turn, text=text) if turn not in self._void and text:
                self._open, self._told = turn, True
                yield Thought(self._add(self._thoughts, turn, text))
            case ToolProposed(call_id=call_id, tool=tool, arguments=arguments):
                self._proposed[call_id] = ToolCall(call_id=call_id, tool=tool, arguments=arguments)
            case ModelTurnEnded(usage=usage, stop=stop):
                self._open = None
                self.usage, self.stop = self.usage.plus(usage), stop
            case ModelTurnVoided(reason=reason):
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
                yield Over()
            case _:
                pass

    def _add(self, texts: dict[int, str], turn: int, text: str) -> str:
        begins = turn not in texts and any(texts.values())
        texts[turn] = texts.get(turn, "") + text
        return BETWEEN + text if begins else text

    def _tear(self, reason: str) -> Iterator[Piece]:
        if self._open is None:
            return
        turn, told = self._open, self._told
        self._open, self._told = None, False
        self._texts.pop(turn, None)
        self._thoughts.pop(turn, None)
        if told:
            yield Torn(reason)


def void_turns(entries: list[Entry]) -> frozenset[int]:
    """Return the turns among the entries that are known not to count."""
    void: set[int] = set()
    open_turn: int | None = None
    for entry in entries:
        if entry.kind not in ("model_turn_started", "model_turn_ended", "model_turn_voided", "run_resumed"):
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
