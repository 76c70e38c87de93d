"""The conversation as the model sees it: the last runs that fit, kept in memory between turns.

A session's messages are only ever added to. So what was read once is kept, run by run, and a turn reads what is new
and nothing else: it costs the same after ten thousand others. What is kept is a copy; the journal is asked each time
how far the conversation goes and where it was last reset.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from palyra.core import labels
from palyra.core.ids import RunId, SessionId
from palyra.core.prompt import Message, Role
from palyra.journal import messages, sessions
from palyra.journal.engine import Connection
from palyra.journal.messages import Kept

MOST_SESSIONS = 64
MOST_NEW = 500
NOT_RUN = "[interrupted] this call was not carried out: its run ended first"


@dataclass(frozen=True, slots=True)
class Fresh:
    """What the journal has beyond what is kept."""

    reset_seq: int
    in_scope: int
    """How many messages there are since the last reset."""
    kept: list[Kept]
    whole: bool
    """These are all that matter: whatever was kept before is out of date."""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a conversation that a prompt holds."""

    messages: tuple[Message, ...]
    first_seq: int | None
    last_seq: int | None
    count: int
    dropped: int
    tokens: int
    most_tokens: int
    """What they come to at the most."""
    labels: tuple[str, ...]
    pictured: bool
    """Whether pictures belong to some of its messages."""


@dataclass(frozen=True, slots=True)
class _Block:
    """The messages of one run, each result behind the call that it answers.

    A run that begins with results of the caller's tools goes on with the run that handed their calls over: then both
    are one block.
    """

    run_id: RunId
    kept: tuple[Kept, ...]
    messages: tuple[Message, ...]
    tokens: int
    most_tokens: int
    labels: tuple[str, ...]
    pictured: bool


@dataclass(slots=True)
class Conversation:
    """What is known of a session's messages, run by run."""

    reset_seq: int
    last_seq: int
    cut_at: int | None = None
    """The room for which older runs were forgotten, if some were."""
    in_scope: int = 0
    """How many messages there are since the last reset, known or not."""
    # What follows from the blocks is kept beside them, so that a long conversation is not summed up anew each time.
    blocks: deque[_Block] = field(default_factory=deque)
    messages: list[Message] = field(default_factory=list)
    labels: Counter[tuple[str, ...]] = field(default_factory=Counter)
    tokens: int = 0
    most_tokens: int = 0
    count: int = 0
    pictured: int = 0
    """How many of the blocks have pictures."""

    def window(self, *, tokens: int) -> Window:
        """Return the latest runs that fit into so many tokens, the newest always among them."""
        return _window(_latest(self, tokens=tokens), self.in_scope, tokens=tokens)

    @property
    def last_tokens(self) -> int:
        """What the last message takes."""
        return self.blocks[-1].kept[-1].tokens if self.blocks else 0

    @property
    def last_input(self) -> str:
        """What a person said last."""
        said = self._last_said()
        return said.text if said is not None else ""

    @property
    def last_pictured(self) -> bool:
        """Whether pictures came with it."""
        said = self._last_said()
        return said is not None and bool(said.images)

    def _last_said(self) -> Message | None:
        kept = self.blocks[-1].kept if self.blocks else ()
        return next((item.message for item in reversed(kept) if item.message.role is Role.USER), None)

    def append(self, block: _Block) -> None:
        """Add a run behind the others."""
        self.blocks.append(block)
        self.messages += block.messages
        self.labels[block.labels] += 1
        self.tokens += block.tokens
        self.most_tokens += block.most_tokens
        self.count += len(block.kept)
        self.pictured += block.pictured

    def pop(self) -> _Block:
        """Take the last run away."""
        block = self.blocks.pop()
        del self.messages[len(self.messages) - len(block.messages) :]
        self._forget(block)
        return block

    def drop(self) -> None:
        """Forget the oldest run."""
        block = self.blocks.popleft()
        del self.messages[: len(block.messages)]
        self._forget(block)

    def _forget(self, block: _Block) -> None:
        self.labels[block.labels] -= 1
        if not self.labels[block.labels]:
            del self.labels[block.labels]
        self.tokens -= block.tokens
        self.most_tokens -= block.most_tokens
        self.count -= len(block.kept)
        self.pictured -= block.pictured


class History:
    """The conversations that were looked at last, a bounded number of them."""

    def __init__(self) -> None:
        self._known: OrderedDict[SessionId, Conversation] = OrderedDict()

    def position(self, session_id: SessionId, *, most: int) -> tuple[int, int] | None:
        """Return the reset boundary and the last message that are known of a session, if enough of it is known."""
        known = self._known.get(session_id)
        if known is None or (known.cut_at is not None and known.cut_at < most):
            return None
        return known.reset_seq, known.last_seq

    def take_in(self, session_id: SessionId, fresh: Fresh, *, most: int) -> Conversation:
        """Take in what is new, and return what is known then. What goes beyond `most` tokens is forgotten."""
        known = self._known.pop(session_id, None)
        if known is None or fresh.whole:
            known = Conversation(fresh.reset_seq, fresh.reset_seq)
        self._known[session_id] = known
        if len(self._known) > MOST_SESSIONS:
            self._known.popitem(last=False)
        _extend(known, fresh.kept)
        known.in_scope = fresh.in_scope
        while known.tokens > most and len(known.blocks) > 1:
            known.drop()
            known.cut_at = most
        return known


def read_fresh(conn: Connection, session_id: SessionId, *, position: tuple[int, int] | None, tokens: int) -> Fresh:
    """Read what came after a position; without one, after a reset or when that is much, all that can matter."""
    reset_seq, in_scope = sessions.scope(conn, session_id)
    if position is not None and position[0] == reset_seq:
        kept = messages.following(conn, session_id, after_seq=position[1], limit=MOST_NEW)
        if len(kept) < MOST_NEW:
            return Fresh(reset_seq, in_scope, kept, whole=False)
    kept = messages.newest(conn, session_id, after_seq=reset_seq, tokens=tokens)
    return Fresh(reset_seq, in_scope, _from_an_input(conn, session_id, kept), whole=True)


def _extend(known: Conversation, kept: list[Kept]) -> None:
    if kept:
        known.last_seq = kept[-1].tape_seq
    place = 0
    while place < len(kept):
        run_id = kept[place].run_id
        end = place
        while end < len(kept) and kept[end].run_id == run_id:
            end += 1
        same, most_tokens = kept[place:end], _most_tokens(kept[place:end])
        if known.blocks and (known.blocks[-1].run_id == run_id or _goes_on(same)):
            before = known.pop()
            same, most_tokens = [*before.kept, *same], before.most_tokens + most_tokens
        known.append(_block(run_id, same, most_tokens))
        place = end


def _goes_on(kept: Sequence[Kept]) -> bool:
    """Tell whether the messages of a run begin with results of calls that another run has handed over."""
    return kept[0].message.role is Role.TOOL


def _most_tokens(kept: Sequence[Kept]) -> int:
    return sum(messages.most_tokens_of(item.message) for item in kept)


def _block(run_id: RunId, kept: list[Kept], most_tokens: int) -> _Block:
    return _Block(
        run_id=run_id,
        kept=tuple(kept),
        messages=_paired(kept),
        tokens=sum(item.tokens for item in kept),
        most_tokens=most_tokens,
        labels=labels.mixed(*(item.labels for item in kept)),
        pictured=any(item.message.images for item in kept),
    )


def _latest(known: Conversation, *, tokens: int) -> Conversation:
    """Return the latest runs that fit, at least one, without forgetting the others."""
    if known.tokens <= tokens or len(known.blocks) <= 1:
        return known
    first, room = len(known.blocks), tokens
    while first > 0 and (first == len(known.blocks) or known.blocks[first - 1].tokens <= room):
        first -= 1
        room -= known.blocks[first].tokens
    part = Conversation(known.reset_seq, known.last_seq)
    for number, block in enumerate(known.blocks):
        if number >= first:
            part.append(block)
    return part


def _window(known: Conversation, in_scope: int, *, tokens: int) -> Window:
    if len(known.blocks) == 1 and known.tokens > tokens:
        short = Conversation(known.reset_seq, known.last_seq)
        short.append(_shortened(known.blocks[0], tokens))
        known = short
    blocks = known.blocks
    return Window(
        messages=tuple(known.messages),
        first_seq=blocks[0].kept[0].tape_seq if blocks else None,
        last_seq=blocks[-1].kept[-1].tape_seq if blocks else None,
        count=known.count,
        dropped=in_scope - known.count,
        tokens=known.tokens,
        most_tokens=known.most_tokens,
        labels=labels.join(*known.labels),
        pictured=known.pictured > 0,
    )


def _shortened(block: _Block, tokens: int) -> _Block:
    """Return a run that is too long by itself without its oldest steps.

    What the person said in the run always stays, and so does the last step: a model that does not see what its calls
    brought makes them again. Of what the caller brought along, the latest that fits does.
    """
    asked = [item for item in block.kept if _is_input(item)]
    # A caller may bring all of it along, with results of its own tools as the end: then that is what is answered.
    chosen = asked or [item for item in block.kept if item.message.role is Role.USER][-1:]
    room = tokens - sum(item.tokens for item in chosen)
    for number, step in enumerate(reversed(_steps(block.kept))):
        room -= sum(item.tokens for item in step)
        if room < 0 and (number > 0 or (asked and step[0].message.given)):
            break
        chosen = [*chosen, *step]
    ordered = [item for _, item in sorted({item.tape_seq: item for item in chosen}.items())]
    said = (place for place, item in enumerate(ordered) if item.message.role is Role.USER)
    shown = ordered[next(said, 0) :]
    return _block(block.run_id, shown, _most_tokens(shown))


def _is_input(item: Kept) -> bool:
    return item.message.role is Role.USER and not item.message.given


def _steps(kept: Sequence[Kept]) -> list[list[Kept]]:
    """Return what the model said and did: each time its message, and the results of the calls in it.

    What somebody said elsewhere is a step by itself.
    """
    steps: list[list[Kept]] = []
    for item in kept:
        if item.message.role is Role.ASSISTANT or (item.message.role is Role.USER and item.message.given):
            steps.append([item])
        elif item.message.role is Role.TOOL and steps:
            steps[-1].append(item)
    return steps


def _from_an_input(conn: Connection, session_id: SessionId, kept: list[Kept]) -> list[Kept]:
    """Begin with something a person said: a cut in the middle of a turn tells the model nothing.

    If that goes through the last run, what the person said before it is fetched, and the message whose results come
    first.
    """
    if kept and kept[0].run_id == kept[-1].run_id:
        earlier: list[Kept] = []
        torn = kept[0].message.role is Role.TOOL
        for item in _before(conn, session_id, kept[0]):
            if item.run_id != kept[0].run_id and not torn:
                break
            if torn or item.message.role is Role.USER:
                earlier.append(item)
                torn = torn and item.message.role is not Role.ASSISTANT
        return [*earlier[::-1], *kept]
    inputs = (place for place, item in enumerate(kept) if item.message.role is Role.USER)
    return kept[next(inputs, 0) :]


def _before(conn: Connection, session_id: SessionId, first: Kept) -> Iterator[Kept]:
    """Yield the messages that stand before one of them, latest first."""
    before = first.tape_seq
    while page := messages.transcript(conn, session_id, before=before, limit=messages.SLICE):
        yield from page
        before = page[-1].tape_seq


def _paired(kept: list[Kept]) -> tuple[Message, ...]:
    """Put results behind the calls they answer, in the order of the calls; a call without one gets a stand-in."""
    results = {item.message.call_id: item.message for item in kept if item.message.role is Role.TOOL}
    paired: list[Message] = []
    for item in kept:
        message = item.message
        if message.role is Role.TOOL:
            continue
        paired.append(message)
        for call in message.calls:
            missing = Message(role=Role.TOOL, text=NOT_RUN, call_id=call.call_id)
            paired.append(results.get(call.call_id, missing))
    return tuple(paired)
