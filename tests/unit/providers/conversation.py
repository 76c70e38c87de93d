"""Builders for prompts, and a reader for what a provider says."""

from palyra.core.ids import CallId
from palyra.core.model.prompt import CallProposed, Message, ModelEvent, Prompt, Role, TextDelta, TurnDone
from palyra.core.tool import JsonObject, ToolCall, ToolSpec
from palyra.providers.base import Provider
from palyra.tools.toolbox import BUILTIN_ONLY

ALL_TOOLS = BUILTIN_ONLY.catalog(None).specs()


def user(text: str) -> Message:
    return Message(role=Role.USER, text=text)


def assistant(text: str = "", *, calls: tuple[ToolCall, ...] = ()) -> Message:
    return Message(role=Role.ASSISTANT, text=text, calls=calls)


def result(text: str, *, call_id: str = "c1") -> Message:
    return Message(role=Role.TOOL, text=text, call_id=CallId(call_id))


def a_call(tool: str, arguments: JsonObject | None = None, *, call_id: str = "c1") -> ToolCall:
    return ToolCall(call_id=CallId(call_id), tool=tool, arguments=arguments or {})


def a_prompt(*messages: Message | str, tools: tuple[ToolSpec, ...] = ALL_TOOLS) -> Prompt:
    """Return a prompt; a plain string is something the user says."""
    spoken = tuple(user(message) if isinstance(message, str) else message for message in messages)
    return Prompt(system="", tools=tools, messages=spoken)


async def heard(provider: Provider, prompt: Prompt) -> list[ModelEvent]:
    return [event async for event in provider.stream(prompt)]


def text_of(events: list[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def calls_of(events: list[ModelEvent]) -> list[CallProposed]:
    return [event for event in events if isinstance(event, CallProposed)]


def end_of(events: list[ModelEvent]) -> TurnDone:
    """Return the end of the turn, which must come once and last."""
    ends = [event for event in events if isinstance(event, TurnDone)]
    assert ends == [events[-1]]
    return ends[0]
