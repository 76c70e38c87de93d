"""A model that writes what it is told to, piece by piece, and remembers what it was asked."""

from collections.abc import AsyncIterator, Iterable

from palyra.core.model.catalog import Capabilities
from palyra.core.model.prompt import ModelEvent, Prompt, StopReason, TextDelta, TurnDone
from palyra.core.spending.usage import Usage

USAGE = Usage(input_tokens=7, output_tokens=3)


class Writes:
    """Writes these pieces, whatever it is asked."""

    name = "here"
    model = "small"

    def __init__(self, *pieces: str, stop: StopReason = StopReason.END, window_tokens: int = 8192) -> None:
        self.capabilities = Capabilities(window_tokens=window_tokens, max_output_tokens=512, tools=False)
        self.asked: list[Prompt] = []
        self.closed = 0
        self._events: Iterable[ModelEvent] = [*map(TextDelta, pieces), TurnDone(stop=stop, usage=USAGE)]

    async def stream(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        self.asked.append(prompt)
        try:
            for event in self._events:
                yield event
        finally:
            self.closed += 1
