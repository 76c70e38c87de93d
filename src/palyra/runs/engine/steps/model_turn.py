"""One model turn in progress: a separate task reads the answer, which is recorded in small groups.

The first text is recorded at once; after that, all new text is recorded every 50 ms, or as soon as it reaches 1 KiB.
What arrives in one burst is one commit.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from msgspec.structs import replace

from palyra.core.clock import Clock
from palyra.core.events import ModelReasoning, ModelText, ModelTurnEnded, RunEvent, ToolProposed
from palyra.core.ids import CallId, IdSource
from palyra.core.message import repair_text
from palyra.core.model.prompt import CallProposed, ModelEvent, Prompt, ReasoningDelta, StopReason, TextDelta, TurnDone
from palyra.core.projection.ledger import turn_abandoned
from palyra.core.run.state import RunState
from palyra.core.spending.budget import Reservation
from palyra.core.spending.usage import Usage
from palyra.core.text.token_bounds import max_tokens
from palyra.providers.base import FailureKind, Provider, ProviderFailed
from palyra.runs.recording.emit import Emit, Guard
from palyra.runs.services.sealing import SealingUnit

FLUSH_SECONDS = 0.05
FLUSH_BYTES = 1024
QUEUE_EVENTS = 256
MAX_TEXT_BYTES = 1024 * 1024
MAX_CALLS = 64
NO_ANSWER = "{model} of {provider} stopped without an answer. Try again, or choose another model."

_Queue = asyncio.Queue[ModelEvent | ProviderFailed]


class ModelOutputTooLarge(ProviderFailed):
    """The model did not stop: its turn has more than 1 MiB of text or 64 calls."""


@dataclass(frozen=True, slots=True)
class TurnFailure:
    """A turn that failed."""

    error: ProviderFailed
    usage: Usage
    """The usage it is charged with."""
    micros: int | None
    """The cost of that usage; None if the model has no price."""
    detail: tuple[RunEvent, ...]
    """What arrived with the failure, and is not recorded yet,"""
    also: Guard | None
    """and the guard that writes the secrets sealed in it."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What one turn asks of which model, and at what cost."""

    provider: Provider
    prompt: Prompt
    labels: tuple[str, ...]
    """Where the texts of the prompt come from."""
    reserved: Reservation
    cost: Callable[[Usage], int | None]
    must_speak: bool
    """Whether a turn that ends normally without text and without a call has failed."""


class ModelTurn:
    """One turn in progress."""

    def __init__(
        self, state: RunState, request: TurnRequest, sealing: SealingUnit, *, clock: Clock, ids: IdSource
    ) -> None:
        """`sealing` takes the secrets out of calls."""
        self._request = request
        self._sealing = sealing
        self._number = state.turns + 1
        self._session_id = state.session_id
        # The caller executes those, and would get a marker.
        self._unsealed = frozenset(tool.name for tool in state.options.tools)
        self._clock = clock
        self._ids = ids
        self._queue: _Queue = asyncio.Queue(QUEUE_EVENTS)
        self._text_bytes = self._calls = self._made_tokens = 0
        self._spoke = False
        self._told: tuple[Usage, int | None] | None = None
        """The usage that the provider reports for a turn without an answer."""

    async def take(self, emit: Emit) -> TurnFailure | None:
        """Call the model and record its answer to the end; return the failure, if it failed."""
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(self._read())
            failed = await self._record(emit)
            reader.cancel()
        if failed is None:
            return None
        error, run_events = failed
        also = self._sealing.guard(self._session_id)
        return TurnFailure(error, *self._usage_when_broken(refused=error.refused), tuple(run_events), also)

    def _usage_when_broken(self, *, refused: bool) -> tuple[Usage, int | None]:
        """Return the usage charged for a failed turn: the full reservation, unless the provider refused the request.

        The provider may charge for far more than what arrived here: thoughts that it does not show, and everything it
        writes before it notices that the connection is closed.
        """
        if self._told is not None:
            return self._told
        if refused:
            return Usage(), self._request.cost(Usage())
        usage, micros = turn_abandoned(self._request.reserved)
        if self._made_tokens <= usage.output_tokens:
            return usage, micros
        beyond = replace(usage, output_tokens=self._made_tokens)
        return beyond, self._request.cost(beyond)

    async def _read(self) -> None:
        try:
            stream = cast(AsyncGenerator[ModelEvent, None], self._request.provider.stream(self._request.prompt))
            async with aclosing(stream):
                async for event in stream:
                    await self._queue.put(event)
            await self._queue.put(_malformed("the model's stream ended before its turn was complete"))
        except ProviderFailed as error:
            await self._queue.put(error)

    async def _record(self, emit: Emit) -> tuple[ProviderFailed, list[RunEvent]] | None:
        first = True
        while True:
            group = await self._gather(wait=not first)
            events: list[RunEvent] = []
            for item in _joined(group):
                if isinstance(item, ProviderFailed):
                    return item, events
                self._count(item)
                if self._text_bytes > MAX_TEXT_BYTES or self._calls > MAX_CALLS:
                    return ModelOutputTooLarge(kind=FailureKind.MALFORMED), []
                events.append(self._event(await self._sealed(item)))
            if not events:
                continue  # only empty pieces
            ended = events[-1]
            if isinstance(ended, ModelTurnEnded) and self._is_silent(ended):
                self._told = (ended.usage, ended.cost_micros)
                return self._no_answer(), events[:-1]
            await emit(events, also=self._sealing.guard(self._session_id))
            first = False
            if isinstance(ended, ModelTurnEnded):
                return None

    async def _sealed(self, item: ModelEvent) -> ModelEvent:
        """Return the model's event without the secrets that it put into a call."""
        if not isinstance(item, CallProposed) or item.tool in self._unsealed:
            return item
        return replace(
            item,
            arguments=await self._sealing.seal_arguments(item.tool, item.arguments, only_inert=True),
            malformed=await self._sealing.seal(item.malformed, f"tool:{item.tool}"),
        )

    def _is_silent(self, ended: ModelTurnEnded) -> bool:
        return self._request.must_speak and not self._spoke and ended.stop is StopReason.END

    def _no_answer(self) -> ProviderFailed:
        return ProviderFailed(
            NO_ANSWER.format(model=self._request.provider.model, provider=self._request.provider.name), is_well=True
        )

    def _count(self, item: ModelEvent) -> None:
        match item:
            case TextDelta(text=text) | ReasoningDelta(text=text):
                self._text_bytes += len(text.encode())
                self._made_tokens += max_tokens(text)
                self._spoke = self._spoke or (isinstance(item, TextDelta) and not text.isspace())
            case CallProposed(arguments=arguments):
                self._spoke = True
                self._calls += 1
                self._made_tokens += max_tokens(str(arguments))
            case TurnDone():
                pass

    def _event(self, item: ModelEvent) -> RunEvent:
        """Return the event that the tape stores for an event of the model."""
        at, actor, labels, turn = (
            self._clock.now(),
            f"model:{self._request.provider.name}",
            self._request.labels,
            self._number,
        )
        match item:
            case TextDelta(text=text):
                return ModelText(at=at, actor=actor, labels=labels, turn=turn, text=text)
            case ReasoningDelta(text=text, dialect=dialect, data=data):
                return ModelReasoning(
                    at=at, actor=actor, labels=labels, turn=turn, text=text, dialect=dialect, data=data
                )
            case CallProposed():
                # Our own id: a provider may repeat ids within a session.
                return ToolProposed(
                    at=at,
                    actor=actor,
                    labels=labels,
                    turn=turn,
                    call_id=CallId(self._ids.new()),
                    tool=repair_text(item.tool),
                    arguments=item.arguments,
                    malformed=repair_text(item.malformed),
                )
            case TurnDone(stop=stop, usage=usage):
                if usage.estimated:
                    # The provider's estimate knows less of the prompt than ours: neither its tools nor its pictures.
                    requested = max(usage.input_tokens, self._request.reserved.input_tokens)
                    made = max(usage.output_tokens, min(self._made_tokens, self._request.reserved.output_tokens))
                    usage = replace(usage, input_tokens=requested, output_tokens=made)
                return ModelTurnEnded(
                    at=at,
                    actor=actor,
                    labels=labels,
                    turn=turn,
                    stop=stop,
                    usage=usage,
                    cost_micros=self._request.cost(usage),
                )

    async def _gather(self, *, wait: bool) -> list[ModelEvent | ProviderFailed]:
        """Return what has arrived; when waiting, until 50 ms after the first piece, or earlier if it is enough."""
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
    return sum(len(item.text) for item in group if isinstance(item, TextDelta | ReasoningDelta))


def _over(item: ModelEvent | ProviderFailed) -> bool:
    return isinstance(item, TurnDone | ProviderFailed)


def _joined(group: list[ModelEvent | ProviderFailed]) -> list[ModelEvent | ProviderFailed]:
    """Join pieces that follow one another, and drop everything after the end of the turn."""
    joined: list[ModelEvent | ProviderFailed] = []
    for item in group:
        last = joined[-1] if joined else None
        match item:
            case TextDelta(text=""):
                continue
            case TextDelta(text=text):
                item = TextDelta(repair_text(text))
                if isinstance(last, TextDelta):
                    joined[-1] = TextDelta(last.text + item.text)
                    continue
            case ReasoningDelta(text=text):
                item = ReasoningDelta(repair_text(text), item.dialect, item.data)
                if isinstance(last, ReasoningDelta) and not last.dialect:
                    joined[-1] = ReasoningDelta(last.text + item.text, item.dialect, item.data)
                    continue
            case _:
                pass
        joined.append(item)
        if _over(item):
            break
    return joined


def _malformed(detail: str) -> ProviderFailed:
    return ProviderFailed(detail, kind=FailureKind.MALFORMED)
