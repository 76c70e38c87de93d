"""Prompts and answers of language models, the same for every provider."""

from enum import StrEnum

from msgspec import Struct

from palyra.core.ids import CallId
from palyra.core.spending.usage import Usage
from palyra.core.tool import JsonObject, ToolCall, ToolSpec


class Role(StrEnum):
    """The author of a message."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Image(Struct, frozen=True, kw_only=True):
    """An image that belongs to a message. Its bytes are stored outside the tape, by their digest."""

    digest: str
    media_type: str
    size: int
    """Its size in bytes."""


class Reasoning(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's reasoning before its answer. It is stored apart from the answer, and is never treated as an
    instruction."""

    text: str = ""
    dialect: str = ""
    """The dialect of `data`: no other provider can read it."""
    data: JsonObject = {}
    """What the provider must get back with the turn that followed."""


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finished message of the conversation. A tool message answers the call of its `call_id`."""

    role: Role
    text: str
    calls: tuple[ToolCall, ...] = ()
    call_id: CallId | None = None
    images: tuple[Image, ...] = ()
    reasoning: tuple[Reasoning, ...] = ()
    attached: bool = False
    """It is part of the attached history."""


class ToolChoice(StrEnum):
    """Whether the model may, must or must not call tools."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


class GenerationOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the caller wants the model to generate; None leaves it to the provider."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    choice: ToolChoice = ToolChoice.AUTO
    schema: JsonObject | None = None
    """The JSON Schema that the answer must match."""


NO_GENERATION_OPTIONS = GenerationOptions()


class Prompt(Struct, frozen=True, kw_only=True):
    """Everything a provider gets for one turn. Stable parts come first, for prompt caches."""

    system: str
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]
    images: dict[str, bytes] = {}
    """The images of the messages, by their digests."""
    options: GenerationOptions = NO_GENERATION_OPTIONS


class StopReason(StrEnum):
    """Why the model stopped."""

    END = "end"
    CALLS = "calls"
    LENGTH = "length"
    REFUSED = "refused"


class TextDelta(Struct, frozen=True):
    """A piece of the answer."""

    text: str


class ReasoningDelta(Struct, frozen=True):
    """A piece of the model's reasoning. One with a dialect ends a block, with the data its provider must get back."""

    text: str = ""
    dialect: str = ""
    data: JsonObject = {}


class CallProposed(Struct, frozen=True, kw_only=True):
    """A complete tool call. `malformed` says why its arguments could not be parsed, if so."""

    call_id: str
    tool: str
    arguments: JsonObject
    malformed: str = ""


class TurnDone(Struct, frozen=True, kw_only=True):
    """The last item of a provider's answer."""

    stop: StopReason
    usage: Usage


ModelEvent = TextDelta | ReasoningDelta | CallProposed | TurnDone


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text: four bytes each, which is close for most tokenizers."""
    return (len(text.encode()) + 3) // 4
