"""The answer of a provider while it comes in: from bytes to events that hold what must hold for every provider."""

from collections.abc import Iterator

import msgspec

from palyra.core.model.prompt import CallProposed, ModelEvent, Prompt, ReasoningDelta, TextDelta, TurnDone
from palyra.core.spending.usage import Usage
from palyra.providers.base import FailureKind
from palyra.providers.dialect import AnswerReader, ModelTarget
from palyra.providers.failures import failure
from palyra.providers.tool_calls import call_id
from palyra.providers.transport.sse import Event, SseParser
from palyra.providers.usage_estimate import estimate

MAX_REASONING_CHARS = 4 * 1024 * 1024
MAX_CALL_CHARS = 8 * 1024 * 1024
"""The maximum size of all calls of a turn, once parsed: a dialect that gets them in pieces has its own limits."""
MAX_TOKENS = 1_000_000_000
"""A higher count is not plausible."""


class AnswerInProgress:
    """One answer in progress: checks what must hold for every provider."""

    def __init__(self, prompt: Prompt, target: ModelTarget, reader: AnswerReader) -> None:
        self._prompt = prompt
        self._target = target
        self._reader = reader
        self._events = SseParser()
        self._spoken: list[str] = []
        self._reasoning_chars = self._sealed_bytes = self._call_chars = 0
        self._ids: set[str] = set()

    def take(self, piece: bytes) -> Iterator[ModelEvent]:
        """Yield what some bytes add."""
        return self._read(self._events.feed(piece))

    def end(self) -> Iterator[ModelEvent]:
        """Yield what is left when the stream has ended."""
        yield from self._read(self._events.end())
        for event in self._reader.end():
            yield event if type(event) is TextDelta else self._checked(event)

    def _read(self, events: list[Event]) -> Iterator[ModelEvent]:
        spoken = self._spoken
        for name, data in events:
            for event in self._reader.feed(name, data):
                # Most events are text, and need no processing.
                if type(event) is TextDelta:
                    spoken.append(event.text)
                    yield event
                else:
                    yield self._checked(event)

    def _checked(self, event: ModelEvent) -> ModelEvent:
        match event:
            case ReasoningDelta():
                self._reasoning_chars += len(event.text)
                # Encrypted data is not read here, but it is stored.
                self._sealed_bytes += len(msgspec.json.encode(event.data)) if event.data else 0
                if max(self._reasoning_chars, self._sealed_bytes) > MAX_REASONING_CHARS:
                    raise failure(self._target, FailureKind.MALFORMED, why="the reasoning is too long")
                return event
            case CallProposed():
                arguments = str(event.arguments)
                self._call_chars += len(arguments) + len(event.tool)
                if self._call_chars > MAX_CALL_CHARS:
                    raise failure(self._target, FailureKind.MALFORMED, why="the arguments are too long")
                self._spoken.append(arguments)
                return msgspec.structs.replace(event, call_id=self._unique(event.call_id))
            case TurnDone():
                return TurnDone(stop=event.stop, usage=self._counted(event.usage))
            case _:
                return event

    def _unique(self, value: str) -> str:
        requested = value or call_id(self._prompt, len(self._ids))
        number = 2
        while requested in self._ids:
            requested, number = f"{value or 'call'}_{number}", number + 1
        self._ids.add(requested)
        return requested

    def _counted(self, usage: Usage) -> Usage:
        """Return the usage if it is plausible, otherwise our estimate."""
        counts = (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cache_write_tokens)
        if usage.tokens > 0 and all(0 <= count <= MAX_TOKENS for count in (*counts, usage.reasoning_tokens)):
            cached = min(usage.cached_tokens, usage.input_tokens)
            written = min(usage.cache_write_tokens, usage.input_tokens - cached)
            return msgspec.structs.replace(usage, cached_tokens=cached, cache_write_tokens=written)
        guess = estimate(self._prompt, "".join(self._spoken))
        thought = (self._reasoning_chars + 3) // 4
        return Usage(
            input_tokens=guess.input_tokens,
            output_tokens=guess.output_tokens + thought,
            reasoning_tokens=thought,
            estimated=True,
        )
