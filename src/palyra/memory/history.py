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
        message = self._last_assistant_message()
        return message.text if message is not None else ""

    @property
    def last_pictured(self) -> bool:
        """Whether that message has images."""
        message = self._last_assistant_message()
        return message is not None and bool(message.images)

    def _last_assistant_message(self) -> Message | None:
        stored = self.blocks[-1].stored if self.blocks else ()
        return next((item.message for item in reversed(stored) if item.message.role is Role.USER), None)

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

    def position(self, session_id: SessionId, *, maximum: int) -> tuple[int, int] | None:
        """Return the cached reset boundary and last message of a session, if enough of it is cached."""
        session_history = self._known.get(session_id)
        if session_history is None or (session_history.cut_at is not None and session_history.cut_at < maximum):
            return None
        return session_history.reset_seq, session_history.last_seq

    def take_in(self, session_id: SessionId, fresh: NewMessages, *, maximum: int) -> SessionHistory:
        """Add the new messages, and return the cached history. Runs beyond `most` tokens are dropped."""
        session_history = self._known.pop(session_id, None)
        if session_history is None or fresh.complete:
            session_history = SessionHistory(fresh.reset_seq, fresh.reset_seq)
        self._known[session_id] = session_history
        if len(self._known) > MAX_SESSIONS:
            self._known.popitem(last=False)
        _extend(session_history, fresh.messages)
        session_history.in_scope = fresh.in_scope
        while session_history.tokens > maximum and len(session_history.blocks) > 1:
            session_history.drop()
            session_history.cut_at = maximum
        return session_history


def read_new(conn: Connection, session_id: SessionId, *, position: tuple[int, int] | None, tokens: int) -> NewMessages:
    """Read the messages after a position; without one, after a reset or if there are many, all that can matter."""
    reset_seq, in_scope = sessions.scope(conn, session_id)
    if position is not None and position[0] == reset_seq:
        stored_messages = messages.following(conn, session_id, after_seq=position[1], limit=MAX_NEW)
        if len(stored_messages) < MAX_NEW:
            return NewMessages(reset_seq, in_scope, stored_messages, complete=False)
    stored_messages = messages.newest(conn, session_id, after_seq=reset_seq, tokens=tokens)
    return NewMessages(reset_seq, in_scope, _from_an_input(conn, session_id, stored_messages), complete=True)


def _extend(session_history: SessionHistory, stored_messages: list[StoredMessage]) -> None:
    if stored_messages:
        session_history.last_seq = stored_messages[-1].tape_seq
    index = 0
    while index < len(stored_messages):
        run_id = stored_messages[index].run_id
        end = index
        while end < len(stored_messages) and stored_messages[end].run_id == run_id:
            end += 1
        same, max_tokens = stored_messages[index:end], _max_tokens(stored_messages[index:end])
        if session_history.blocks and (session_history.blocks[-1].run_id == run_id or _goes_on(same)):
            before = session_history.pop()
            same, max_tokens = [*before.stored, *same], before.max_tokens + max_tokens
        session_history.append(_block(run_id, same, max_tokens))
        index = end


def _goes_on(stored_messages: Sequence[StoredMessage]) -> bool:
    """Return whether the messages of a run begin with results of calls that another run handed over."""
    return stored_messages[0].message.role is Role.TOOL


def _max_tokens(stored_messages: Sequence[StoredMessage]) -> int:
    return sum(max_tokens_of(item.message) for item in stored_messages)


def _block(run_id: RunId, stored_messages: list[StoredMessage], max_tokens: int) -> _RunMessages:
    return _RunMessages(
        run_id=run_id,
        stored=tuple(stored_messages),
        messages=_paired(stored_messages),
        tokens=sum(item.tokens for item in stored_messages),
        max_tokens=max_tokens,
        labels=labels.mixed_label(*(item.labels for item in stored_messages)),
        pictured=any(item.message.images for item in stored_messages),
    )


def _latest(session_history: SessionHistory, *, tokens: int) -> SessionHistory:
    """Return the latest runs that fit, at least one, without dropping the others."""
    if session_history.tokens <= tokens or len(session_history.blocks) <= 1:
        return session_history
    first, room = len(session_history.blocks), tokens
    while first > 0 and (first == len(session_history.blocks) or session_history.blocks[first - 1].tokens <= room):
        first -= 1
        room -= session_history.blocks[first].tokens
    part = SessionHistory(session_history.reset_seq, session_history.last_seq)
    for number, block in enumerate(session_history.blocks):
        if number >= first:
            part.append(block)
    return part


def _window(session_history: SessionHistory, in_scope: int, *, tokens: int) -> HistoryWindow:
    if len(session_history.blocks) == 1 and session_history.tokens > tokens:
        short = SessionHistory(session_history.reset_seq, session_history.last_seq)
        short.append(_shortened(session_history.blocks[0], tokens))
        session_history = short
    blocks = session_history.blocks
    return HistoryWindow(
        messages=tuple(session_history.messages),
        first_seq=blocks[0].stored[0].tape_seq if blocks else None,
        last_seq=blocks[-1].stored[-1].tape_seq if blocks else None,
        count=session_history.count,
        dropped=in_scope - session_history.count,
        tokens=session_history.tokens,
        max_tokens=session_history.max_tokens,
        labels=labels.join(*session_history.labels),
        pictured=session_history.pictured > 0,
    )


def _shortened(block: _RunMessages, tokens: int) -> _RunMessages:
    """Return a run that is too long by itself without its oldest steps.

    The person's messages in the run are always kept, and so is the last step: a model that does not see the results of
    its calls makes them again. Of the attached history, the latest part that fits is kept.
    """
    requested_messages = [item for item in block.stored if _is_input(item)]
    # A caller may attach everything, with results of client tools at the end: then those are what is answered.
    chosen = requested_messages or [item for item in block.stored if item.message.role is Role.USER][-1:]
    room = tokens - sum(item.tokens for item in chosen)
    for number, step in enumerate(reversed(_steps(block.stored))):
        room -= sum(item.tokens for item in step)
        if room < 0 and (number > 0 or (requested_messages and step[0].message.attached)):
            break
        chosen = [*chosen, *step]
    ordered = [item for _, item in sorted({item.tape_seq: item for item in chosen}.items())]
    text = (index for index, item in enumerate(ordered) if item.message.role is Role.USER)
    displayed_messages = ordered[next(text, 0) :]
    return _block(block.run_id, displayed_messages, _max_tokens(displayed_messages))


def _is_input(item: StoredMessage) -> bool:
    return item.message.role is Role.USER and not item.message.attached


def _steps(stored_messages: Sequence[StoredMessage]) -> list[list[StoredMessage]]:
    """Return the steps of the model: each time its message, and the results of the calls in it.

    A message of the attached history is a step by itself.
    """
    steps: list[list[StoredMessage]] = []
    for item in stored_messages:
        if item.message.role is Role.ASSISTANT or (item.message.role is Role.USER and item.message.attached):
            steps.append([item])
        elif item.message.role is Role.TOOL and steps:
            steps[-1].append(item)
    return steps


def _from_an_input(
    conn: Connection, session_id: SessionId, stored_messages: list[StoredMessage]
) -> list[StoredMessage]:
    """Begin with a message of a person: a history that is cut within a turn does not make sense to the model.

    If the cut is within the last run, the person's message before it is fetched, and the message whose results come
    first.
    """
    if stored_messages and stored_messages[0].run_id == stored_messages[-1].run_id:
        earlier: list[StoredMessage] = []
        torn = stored_messages[0].message.role is Role.TOOL
        for item in _before(conn, session_id, stored_messages[0]):
            if item.run_id != stored_messages[0].run_id and not torn:
                break
            if torn or item.message.role is Role.USER:
                earlier.append(item)
                torn = torn and item.message.role is not Role.ASSISTANT
        return [*earlier[::-1], *stored_messages]
    inputs = (index for index, item in enumerate(stored_messages) if item.message.role is Role.USER)
    return stored_messages[next(inputs, 0) :]


def _before(conn: Connection, session_id: SessionId, first: StoredMessage) -> Iterator[StoredMessage]:
    """Yield the messages before one of them, latest first."""
    before = first.tape_seq
    while page := messages.transcript(conn, session_id, before=before, limit=messages.SLICE):
        yield from page
        before = page[-1].tape_seq


def _paired(stored_messages: list[StoredMessage]) -> tuple[Message, ...]:
    """Put results after the calls they answer, in the order of the calls; a call without one gets a placeholder."""
    results = {item.message.call_id: item.message for item in stored_messages if item.message.role is Role.TOOL}
    paired: list[Message] = []
    for item in stored_messages:
        message = item.message
        if message.role is Role.TOOL:
            continue
        paired.append(message)
        for call in message.calls:
            missing = Message(role=Role.TOOL, text=NOT_RUN, call_id=call.call_id)
            paired.append(results.get(call.call_id, missing))
    return tuple(paired)
