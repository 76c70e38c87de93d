"""Ask the model: assemble the context, stream the answer, record it in small groups.

The provider is read by a task of its own into a bounded queue. The first text is recorded at once; after that whatever
has come in is recorded every 50 ms, or as soon as it is 1 KiB. What comes in one burst is one commit.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

from palyra.core import found
from palyra.core.clock import Clock
from palyra.core.events import (
    ContextAssembled,
    Entry,
    ModelReasoning,
    ModelText,
    ModelTurnEnded,
    ModelTurnStarted,
    ModelTurnVoided,
    RunEvent,
    RunFailed,
    ToolProposed,
)
from palyra.core.ids import CallId, IdSource
from palyra.core.message import mend_text
from palyra.core.prompt import CallProposed, ModelEvent, Prompt, ReasoningDelta, TextDelta, TurnDone
from palyra.core.run import RunState
from palyra.core.step import CallModel
from palyra.journal import sessions, tape
from palyra.journal.engine import Connection, Engine
from palyra.memory.context import Context
from palyra.providers.base import FailureKind, Provider, ProviderFailed
from palyra.runs.agents import NoAgent
from palyra.runs.steps.port import Emit
from palyra.tools.toolbox import BUILTIN_ONLY, Toolbox

FLUSH_SECONDS = 0.05
FLUSH_BYTES = 1024
QUEUE_EVENTS = 256
MOST_TEXT_BYTES = 1024 * 1024
MOST_CALLS = 64
SEARCHED = ("model_turn_started", "tool_finished")
LOOKED_BACK = 200
"""How many turns and results of a session are looked through for what was found in it."""

_Queue = asyncio.Queue[ModelEvent | ProviderFailed]


class ModelStep:
    """Carries out `CallModel`."""

    def __init__(
        self,
        engine: Engine,
        *,
        provider: Provider,
        clock: Clock,
        ids: IdSource,
        settings_hash: Callable[[], str] = lambda: "",
        toolbox: Toolbox = BUILTIN_ONLY,
    ) -> None:
        self._toolbox = toolbox
        self._settings_hash = settings_hash
        self._engine = engine
        self._context = Context(engine, window_tokens=provider.capabilities.window_tokens)
        self._provider = provider
        self._clock = clock
        self._ids = ids

    async def perform(self, state: RunState, step: CallModel, emit: Emit) -> None:
        """Take one model turn."""
        provider = self._provider
        seen = await self._context.look(state)
        if seen is None:
            raise NoAgent
        brought = await self._found(state, seen.agent.tools)
        tools = () if step.last else self._toolbox.offer(seen.agent.tools, brought).specs()
        context = self._context.assemble(state, seen, tools)
        window, turn = context.window, state.turns + 1
        at = self._clock.now()
        await emit(
            [
                ContextAssembled(
                    at=at,
                    labels=window.labels,
                    inputs=state.inputs,
                    first_seq=window.first_seq,
                    last_seq=window.last_seq,
                    messages=window.count,
                    dropped=window.dropped,
                    estimated_tokens=context.estimated_tokens,
                    window_tokens=provider.capabilities.window_tokens,
                    digest=context.digest,
                ),
                ModelTurnStarted(
                    at=at,
                    labels=window.labels,
                    turn=turn,
                    provider=provider.name,
                    model=provider.model,
                    reason="the only provider configured",
                    last=step.last,
                    settings_hash=self._settings_hash(),
                    found=brought,
                ),
            ]
        )
        await _Turn(self, turn, emit=emit, labels=window.labels).take(context.prompt)

    async def _found(self, state: RunState, allowed: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the tools that searches have brought: in the run, and before its first turn those of the session."""
        if state.turns > 0 or not self._toolbox.is_searched(allowed):
            return state.found

        def query(conn: Connection) -> list[Entry]:
            reset_seq, _ = sessions.scope(conn, state.session_id)
            return tape.latest(conn, state.session_id, SEARCHED, after_seq=reset_seq, limit=LOOKED_BACK)

        entries = await self._engine.read(query)
        return found.join(found.carried(entry.event for entry in entries), state.found)

    def events_of(self, event: ModelEvent, *, turn: int, labels: tuple[str, ...]) -> RunEvent:
        """Return what the tape keeps of something that the model said."""
        at, actor = self._clock.now(), f"model:{self._provider.name}"
        match event:
            case TextDelta(text=text):
                return ModelText(at=at, actor=actor, labels=labels, turn=turn, text=text)
            case ReasoningDelta(text=text, dialect=dialect, data=data):
                return ModelReasoning(
                    at=at, actor=actor, labels=labels, turn=turn, text=mend_text(text), dialect=dialect, data=data
                )
            case CallProposed():
                # Our own id: a provider's may repeat itself within a session.
                return ToolProposed(
                    at=at,
                    actor=actor,
                    labels=labels,
                    turn=turn,
                    call_id=CallId(self._ids.new()),
                    tool=mend_text(event.tool),
                    arguments=event.arguments,
                    malformed=mend_text(event.malformed),
                )
            case TurnDone(stop=stop, usage=usage):
                return ModelTurnEnded(at=at, actor=actor, labels=labels, turn=turn, stop=stop, usage=usage)

    def failed(self, error: ProviderFailed, *, turn: int) -> list[RunEvent]:
        """Return how the run ends when the model gives no answer."""
        at, actor = self._clock.now(), f"model:{self._provider.name}"
        return [
            ModelTurnVoided(at=at, actor=actor, turn=turn, reason=error.detail),
            RunFailed(at=at, actor=actor, code=f"model_{error.kind.value}", reason=error.detail),
        ]

    def stream(self, prompt: Prompt) -> AsyncGenerator[ModelEvent, None]:
        """Start to ask the provider."""
        return cast(AsyncGenerator[ModelEvent, None], self._provider.stream(prompt))


class _Turn:
    """One turn under way."""

    def __init__(self, step: ModelStep, turn: int, *, emit: Emit, labels: tuple[str, ...]) -> None:
        self._step = step
        self._turn = turn
        self._emit = emit
        self._labels = labels
        self._queue: _Queue = asyncio.Queue(QUEUE_EVENTS)

    async def take(self, prompt: Prompt) -> None:
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(self._read(prompt))
            await self._record()
            reader.cancel()

    async def _read(self, prompt: Prompt) -> None:
        try:
            async with aclosing(self._step.stream(prompt)) as stream:
                async for event in stream:
                    await self._queue.put(event)
            await self._queue.put(_malformed("the model's stream ended before its turn did"))
        except ProviderFailed as error:
            await self._queue.put(error)

    async def _record(self) -> None:
        first = True
        text_bytes = calls = 0
        while True:
            group = await self._gather(wait=not first)
            events: list[RunEvent] = []
            for item in _joined(group):
                if isinstance(item, ProviderFailed):
                    await self._emit([*events, *self._step.failed(item, turn=self._turn)])
                    return
                text_bytes += len(item.text.encode()) if isinstance(item, TextDelta) else 0
                calls += isinstance(item, CallProposed)
                if text_bytes > MOST_TEXT_BYTES or calls > MOST_CALLS:
                    error = _malformed("the model would not stop: its turn has over 1 MiB of text or 64 calls")
                    await self._emit(self._step.failed(error, turn=self._turn))
                    return
                events.append(self._step.events_of(item, turn=self._turn, labels=self._labels))
            if not events:
                continue  # nothing but empty pieces
            await self._emit(events)
            first = False
            if isinstance(events[-1], ModelTurnEnded):
                return

    async def _gather(self, *, wait: bool) -> list[ModelEvent | ProviderFailed]:
        """Return what has come in; when waiting, for 50 ms from the first piece on unless it is enough earlier."""
        group = [await self._queue.get()]
        size = _drain(self._queue, group)
        if not wait or _over(group[-1]) or size >= FLUSH_BYTES:
            return group
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                while size < FLUSH_BYTES and not _over(group[-1]):
                    group.append(await self._queue.get())
                    size = _drain(self._queue, group)
        except TimeoutError:
            pass
        return group


def _drain(queue: _Queue, group: list[ModelEvent | ProviderFailed]) -> int:
    while not queue.empty():
        group.append(queue.get_nowait())
    return sum(len(item.text) for item in group if isinstance(item, TextDelta))


def _over(item: ModelEvent | ProviderFailed) -> bool:
    return isinstance(item, TurnDone | ProviderFailed)


def _joined(group: list[ModelEvent | ProviderFailed]) -> list[ModelEvent | ProviderFailed]:
    """Make one piece of the text pieces that follow one another, and let nothing follow the end of the turn."""
    joined: list[ModelEvent | ProviderFailed] = []
    for item in group:
        if isinstance(item, TextDelta):
            if not item.text:
                continue
            text = mend_text(item.text)
            if joined and isinstance(joined[-1], TextDelta):
                joined[-1] = TextDelta(joined[-1].text + text)
                continue
            item = TextDelta(text)
        joined.append(item)
        if _over(item):
            break
    return joined


def _malformed(detail: str) -> ProviderFailed:
    return ProviderFailed(detail, kind=FailureKind.MALFORMED)
