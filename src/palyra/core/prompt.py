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


class Image(Struct, frozen=True, kw_only=True):
    """A picture that belongs to a message. The picture itself is kept beside the tape, by its digest."""

    digest: str
    media_type: str
    size: int
    """Its bytes."""


class Reasoning(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model thought before it spoke. It is kept apart from the answer, and is nobody's instruction."""

    text: str = ""
    dialect: str = ""
    """Whose `data` it is: nobody else can read it."""
    data: JsonObject = {}
    """What the provider wants to be shown again with the turn that it led to."""


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finished message of the conversation. A tool's message answers the call of its `call_id`."""

    role: Role
    text: str
    calls: tuple[ToolCall, ...] = ()
    call_id: CallId | None = None
    images: tuple[Image, ...] = ()
    reasoning: tuple[Reasoning, ...] = ()
    given: bool = False
    """The caller brought it along: it was said elsewhere."""


class Choice(StrEnum):
    """Whether the model is free to call tools."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


class Options(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a caller may ask of the model's way to answer; None leaves it to the provider."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    choice: Choice = Choice.AUTO
    schema: JsonObject | None = None
    """The JSON Schema that the answer must keep to."""


NO_OPTIONS = Options()


class Prompt(Struct, frozen=True, kw_only=True):
    """All that a provider is given for one turn. Stable parts come first, so that prompt caches hit."""

    system: str
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]
    images: dict[str, bytes] = {}
    """The pictures of the messages, by their digests."""
    options: Options = NO_OPTIONS


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
    """A piece of what the model thinks. One with a dialect ends a thought, and has what its provider must see again."""

    text: str = ""
    dialect: str = ""
    data: JsonObject = {}


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


ModelEvent = TextDelta | ReasoningDelta | CallProposed | TurnDone


def estimate_tokens(text: str) -> int:
    """Guess the tokens of a text: four bytes each, as most tokenizers come to."""
    return (len(text.encode()) + 3) // 4
