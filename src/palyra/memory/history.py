"""The conversation as the model sees it: the last runs that fit, kept in memory between turns.

Messages are only ever appended to a session. So messages that were read once are cached, run by run, and a turn reads
only the new ones: it costs the same after ten thousand others. The cache is a copy; each time, the journal is asked how
far the conversation goes and where it was last reset.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from palyra.core.ids import RunId, SessionId
from palyra.core.model.message_tokens import max_tokens_of
from palyra.core.model.prompt import Message, Role
from palyra.core.policy import labels
from palyra.core.projection.changes import StoredMessage
from palyra.journal.engines.base import Connection
from palyra.journal.stores import messages, sessions

MAX_SESSIONS = 64
MAX_NEW = 500
NOT_RUN = "[interrupted] this call was not executed: its run ended first"


@dataclass(frozen=True, slots=True)
class NewMessages:
    """The messages in the journal that are not cached yet."""

    reset_seq: int
    in_scope: int
    """How many messages there are since the last reset."""
    messages: list[StoredMessage]
    complete: bool
    """The cached messages are out of date: these replace them."""


@dataclass(frozen=True, slots=True)
class HistoryWindow:
    """The part of a conversation that a prompt holds."""

    messages: tuple[Message, ...]
    first_seq: int | None
    last_seq: int | None
    count: int
    dropped: int
    tokens: int
    max_tokens: int
    """Their maximum number of tokens."""
    labels: tuple[str, ...]
    pictured: bool
    """Whether some of its messages have images."""


@dataclass(frozen=True, slots=True)
class _RunMessages:
    """The messages of one run, each result after the call that it answers.

    A run that begins with results of client tools continues the run that handed their calls over: both are then one
    block.
    """

    run_id: RunId
    stored: tuple[StoredMessage, ...]
    messages: tuple[Message, ...]
    tokens: int
    max_tokens: int
    labels: tuple[str, ...]
    pictured: bool


@dataclass(slots=True)
class SessionHistory:
    """The cached messages of a session, run by run."""

    reset_seq: int
    last_seq: int
    cut_at: int | None = None
    """The token limit for which older runs were dropped, if some were."""
    in_scope: int = 0
    """The number of messages since the last reset, cached or not."""
    # Sums over the blocks are kept with them, so that a long conversation is not added up again each time.
    blocks: deque[_RunMessages] = field(default_factory=deque)
    messages: list[Message] = field(default_factory=list)
    labels: Counter[tuple[str, ...]] = field(default_factory=Counter)
    tokens: int = 0
    max_tokens: int = 0
    count: int = 0
    pictured: int = 0
    """How many of the blocks have images."""

    def window(self, *, tokens: int) -> HistoryWindow:
        """Return the latest runs that fit into so many tokens, always including the newest."""
        return _window(_latest(self, tokens=tokens), self.in_scope, tokens=tokens)

    @property
    def last_tokens(self) -> int:
        """The tokens of the last message."""
        return self.blocks[-1].stored[-1].tokens if self.blocks else 0

    @property
    def last_input(self) -> str:
        """The last message of a person."""
        said = self._last_assistant_message()
        return said.text if said is not None else ""

    @property
    def last_pictured(self) -> bool:
        """Whether that message has images."""
        said = self._last_assistant_message()
        return said is not None and bool(said.images)

    def _last_assistant_message(self) -> Message | None:
        kept = self.blocks[-1].stored if self.blocks else ()
        return next((item.message for item in reversed(kept) if item.message.role is Role.USER), None)

    def append(self, block: _RunMessages) -> None:
        """Append a run."""
        self.blocks.append(block)
        self.messages += block.messages
        self.labels[block.labels] += 1
        self.tokens += block.tokens
        self.max_tokens += block.max_tokens
        self.count += len(block.stored)
        self.pictured += block.pictured

    def pop(self) -> _RunMessages:
        """Remove and return the last run."""
        block = self.blocks.pop()
        del self.messages[len(self.messages) - len(block.messages) :]
        self._forget(block)
        return block

    def drop(self) -> None:
        """Drop the oldest run."""
        block = self.blocks.popleft()
        del self.messages[: len(block.messages)]
        self._forget(block)

    def _forget(self, block: _RunMessages) -> None:
        self.labels[block.labels] -= 1
        if not self.labels[block.labels]:
            del self.labels[block.labels]
        self.tokens -= block.tokens
        self.max_tokens -= block.max_tokens
        self.count -= len(block.stored)
        self.pictured -= block.pictured


class HistoryCache:
    """A cache of the most recently used conversations, of limited size."""

    def __init__(self) -> None:
        self._known: OrderedDict[SessionId, SessionHistory] = OrderedDict()

    def position(self, session_id: SessionId, *, most: int) -> tuple[int, int] | None:
        """Return the cached reset boundary and last message of a session, if enough of it is cached."""
        known = self._known.get(session_id)
        if known is None or (known.cut_at is not None and known.cut_at < most):
            return None
        return known.reset_seq, known.last_seq

    def take_in(self, session_id: SessionId, fresh: NewMessages, *, most: int) -> SessionHistory:
        """Add the new messages, and return the cached history. Runs beyond `most` tokens are dropped."""
        known = self._known.pop(session_id, None)
        if known is None or fresh.complete:
            known = SessionHistory(fresh.reset_seq, fresh.reset_seq)
        self._known[session_id] = known
        if len(self._known) > MAX_SESSIONS:
            self._known.popitem(last=False)
        _extend(known, fresh.messages)
        known.in_scope = fresh.in_scope
        while known.tokens > most and len(known.blocks) > 1:
            known.drop()
            known.cut_at = most
        return known


def read_new(conn: Connection, session_id: SessionId, *, position: tuple[int, int] | None, tokens: int) -> NewMessages:
    """Read the messages after a position; without one, after a reset or if there are many, all that can matter."""
    reset_seq, in_scope = sessions.scope(conn, session_id)
    if position is not None and position[0] == reset_seq:
        kept = messages.following(conn, session_id, after_seq=position[1], limit=MAX_NEW)
        if len(kept) < MAX_NEW:
            return NewMessages(reset_seq, in_scope, kept, complete=False)
    kept = messages.newest(conn, session_id, after_seq=reset_seq, tokens=tokens)
    return NewMessages(reset_seq, in_scope, _from_an_input(conn, session_id, kept), complete=True)


def _extend(known: SessionHistory, kept: list[StoredMessage]) -> None:
    if kept:
        known.last_seq = kept[-1].tape_seq
    place = 0
    while place < len(kept):
        run_id = kept[place].run_id
        end = place
        while end < len(kept) and kept[end].run_id == run_id:
            end += 1
        same, most_tokens = kept[place:end], _max_tokens(kept[place:end])
        if known.blocks and (known.blocks[-1].run_id == run_id or _goes_on(same)):
            before = known.pop()
            same, most_tokens = [*before.stored, *same], before.max_tokens + most_tokens
        known.append(_block(run_id, same, most_tokens))
        place = end


def _goes_on(kept: Sequence[StoredMessage]) -> bool:
    """Return whether the messages of a run begin with results of calls that another run handed over."""
    return kept[0].message.role is Role.TOOL


def _max_tokens(kept: Sequence[StoredMessage]) -> int:
    return sum(max_tokens_of(item.message) for item in kept)


def _block(run_id: RunId, kept: list[StoredMessage], most_tokens: int) -> _RunMessages:
    return _RunMessages(
        run_id=run_id,
        stored=tuple(kept),
        messages=_paired(kept),
        tokens=sum(item.tokens for item in kept),
        max_tokens=most_tokens,
        labels=labels.mixed_label(*(item.labels for item in kept)),
        pictured=any(item.message.images for item in kept),
    )


def _latest(known: SessionHistory, *, tokens: int) -> SessionHistory:
    """Return the latest runs that fit, at least one, without dropping the others."""
    if known.tokens <= tokens or len(known.blocks) <= 1:
        return known
    first, room = len(known.blocks), tokens
    while first > 0 and (first == len(known.blocks) or known.blocks[first - 1].tokens <= room):
        first -= 1
        room -= known.blocks[first].tokens
    part = SessionHistory(known.reset_seq, known.last_seq)
    for number, block in enumerate(known.blocks):
        if number >= first:
            part.append(block)
    return part


def _window(known: SessionHistory, in_scope: int, *, tokens: int) -> HistoryWindow:
    if len(known.blocks) == 1 and known.tokens > tokens:
        short = SessionHistory(known.reset_seq, known.last_seq)
        short.append(_shortened(known.blocks[0], tokens))
        known = short
    blocks = known.blocks
    return HistoryWindow(
        messages=tuple(known.messages),
        first_seq=blocks[0].stored[0].tape_seq if blocks else None,
        last_seq=blocks[-1].stored[-1].tape_seq if blocks else None,
        count=known.count,
        dropped=in_scope - known.count,
        tokens=known.tokens,
        max_tokens=known.max_tokens,
        labels=labels.join(*known.labels),
        pictured=known.pictured > 0,
    )


def _shortened(block: _RunMessages, tokens: int) -> _RunMessages:
    """Return a run that is too long by itself without its oldest steps.

    The person's messages in the run are always kept, and so is the last step: a model that does not see the results of
    its calls makes them again. Of the attached history, the latest part that fits is kept.
    """
    asked = [item for item in block.stored if _is_input(item)]
    # A caller may attach everything, with results of client tools at the end: then those are what is answered.
    chosen = asked or [item for item in block.stored if item.message.role is Role.USER][-1:]
    room = tokens - sum(item.tokens for item in chosen)
    for number, step in enumerate(reversed(_steps(block.stored))):
        room -= sum(item.tokens for item in step)
        if room < 0 and (number > 0 or (asked and step[0].message.attached)):
            break
        chosen = [*chosen, *step]
    ordered = [item for _, item in sorted({item.tape_seq: item for item in chosen}.items())]
    said = (place for place, item in enumerate(ordered) if item.message.role is Role.USER)
    shown = ordered[next(said, 0) :]
    return _block(block.run_id, shown, _max_tokens(shown))


def _is_input(item: StoredMessage) -> bool:
    return item.message.role is Role.USER and not item.message.attached


def _steps(kept: Sequence[StoredMessage]) -> list[list[StoredMessage]]:
    """Return the steps of the model: each time its message, and the results of the calls in it.

    A message of the attached history is a step by itself.
    """
    steps: list[list[StoredMessage]] = []
    for item in kept:
        if item.message.role is Role.ASSISTANT or (item.message.role is Role.USER and item.message.attached):
            steps.append([item])
        elif item.message.role is Role.TOOL and steps:
            steps[-1].append(item)
    return steps


def _from_an_input(conn: Connection, session_id: SessionId, kept: list[StoredMessage]) -> list[StoredMessage]:
    """Begin with a message of a person: a history that is cut within a turn does not make sense to the model.

    If the cut is within the last run, the person's message before it is fetched, and the message whose results come
    first.
    """
    if kept and kept[0].run_id == kept[-1].run_id:
        earlier: list[StoredMessage] = []
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


def _before(conn: Connection, session_id: SessionId, first: StoredMessage) -> Iterator[StoredMessage]:
    """Yield the messages before one of them, latest first."""
    before = first.tape_seq
    while page := messages.transcript(conn, session_id, before=before, limit=messages.SLICE):
        yield from page
        before = page[-1].tape_seq


def _paired(kept: list[StoredMessage]) -> tuple[Message, ...]:
    """Put results after the calls they answer, in the order of the calls; a call without one gets a placeholder."""
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
