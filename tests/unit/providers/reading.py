"""Readers of answers, fed with events as they come over the wire, and what a request says."""

import json
from collections.abc import Iterable
from typing import Any

from palyra.core.model.catalog import ModelCard
from palyra.core.model.prompt import CallProposed, ModelEvent, Prompt, Reasoning, ReasoningDelta, TextDelta, TurnDone
from palyra.core.tool import JsonObject
from palyra.providers.dialect import Dialect, ModelTarget


def target_of(
    speaks: Dialect, model: str, *, reasoning: bool | None = None, max_output_tokens: int = 8192
) -> ModelTarget:
    known = speaks.model_card(model)
    card = ModelCard(
        window_tokens=known.window_tokens,
        max_output_tokens=known.max_output_tokens,
        tools=known.tools,
        vision=known.vision,
        reasoning=known.reasoning if reasoning is None else reasoning,
    )
    return ModelTarget(provider="maker", model=model, card=card, max_output_tokens=max_output_tokens)


def read(speaks: Dialect, prompt: Prompt, target: ModelTarget, events: Iterable[JsonObject]) -> list[ModelEvent]:
    """Read a whole answer."""
    reader = speaks.reader(prompt, target)
    said = [event for data in events for event in reader.feed("", json.dumps(data).encode())]
    return [*said, *reader.end()]


def sent(speaks: Dialect, prompt: Prompt, target: ModelTarget) -> Any:
    """Return the body of the request for a prompt."""
    return json.loads(speaks.request(prompt, target).body)


def text_of(events: list[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def thought_of(events: list[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ReasoningDelta))


def calls_of(events: list[ModelEvent]) -> list[CallProposed]:
    return [event for event in events if isinstance(event, CallProposed)]


def end_of(events: list[ModelEvent]) -> TurnDone:
    """Return the end of the turn, which must come once and last."""
    ends = [event for event in events if isinstance(event, TurnDone)]
    assert ends == [events[-1]]
    return ends[0]


def kept(events: list[ModelEvent]) -> tuple[Reasoning, ...]:
    """Return the thoughts as the tape keeps them: pieces are joined, and one with a dialect ends a thought."""
    thoughts: list[Reasoning] = []
    text = ""
    for event in events:
        if isinstance(event, ReasoningDelta):
            text += event.text
            if event.dialect:
                thoughts.append(Reasoning(text=text, dialect=event.dialect, data=event.data))
                text = ""
    return (*thoughts, Reasoning(text=text)) if text else tuple(thoughts)
