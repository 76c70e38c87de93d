"""What a language model is asked, and what it answers, whoever makes it."""

from enum import StrEnum

from msgspec import Struct

from palyra.core.ids import CallId
from palyra.core.tool import JsonObject, ToolCall, ToolSpec
from palyra.core.usage import Usage


class Role(StrEnum):
    """Who says a message."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finished message of the conversation. A tool's message answers the call of its `call_id`."""

    role: Role
    text: str
    calls: tuple[ToolCall, ...] = ()
    call_id: CallId | None = None


class Prompt(Struct, frozen=True, kw_only=True):
    """All that a provider is given for one turn. Stable parts come first, so that prompt caches hit."""

    system: str
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]


class StopReason(StrEnum):
    """Why the model stopped."""

    END = "end"
    CALLS = "calls"
    LENGTH = "length"
    REFUSED = "refused"


class TextDelta(Struct, frozen=True):
    """A piece of the answer."""

    text: str


class CallProposed(Struct, frozen=True, kw_only=True):
    """A tool call, whole. `malformed` says why its arguments could not be read, if so."""

    call_id: str
    tool: str
    arguments: JsonObject
    malformed: str = ""


class TurnDone(Struct, frozen=True, kw_only=True):
    """The last thing a provider says in a turn."""

    stop: StopReason
    usage: Usage


ModelEvent = TextDelta | CallProposed | TurnDone


def estimate_tokens(text: str) -> int:
    """Guess the tokens of a text: four bytes each, as most tokenizers come to."""
    return (len(text.encode()) + 3) // 4
