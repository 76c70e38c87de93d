"""A chat completion request: its parameters, and what they mean."""

from typing import Any, Literal

from msgspec import Struct

from palyra.core.model.request_options import ClientTool
from palyra.gateway.http.openai.errors import ParameterUnsupported
from palyra.gateway.http.openai.images import RequestImages
from palyra.gateway.http.openai.request_body import ANYTHING, AcceptedValues, Rules
from palyra.gateway.http.openai.request_messages import MessageBuilder
from palyra.gateway.http.openai.request_options import RequestParameters
from palyra.gateway.http.openai.sampling_options import ANY_OBJECT, Schema, Temperature, Tokens, TopP

RULES: Rules = {
    "audio": AcceptedValues(),
    "frequency_penalty": AcceptedValues(0),
    "function_call": AcceptedValues(),
    "functions": AcceptedValues(),
    "logit_bias": AcceptedValues({}),
    "logprobs": AcceptedValues(False),
    "metadata": ANYTHING,
    "modalities": AcceptedValues(["text"]),
    "n": AcceptedValues(1),
    "prediction": ANYTHING,
    "presence_penalty": AcceptedValues(0),
    "prompt_cache_key": ANYTHING,
    "prompt_cache_retention": ANYTHING,
    "reasoning_effort": AcceptedValues(),
    "safety_identifier": ANYTHING,
    "seed": AcceptedValues(),
    "service_tier": ANYTHING,
    "store": ANYTHING,
    "top_logprobs": AcceptedValues(0),
    "verbosity": AcceptedValues(),
    "web_search_options": AcceptedValues(),
}
"""Parameters that are ignored, and the values that they may have."""


class TextPart(Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of text."""

    text: str


class RefusalPart(Struct, frozen=True, tag_field="type", tag="refusal"):
    """What the model said instead of an answer."""

    refusal: str


class ImageUrl(Struct, frozen=True):
    """An image, as a `data:` URL, or the URL that it is fetched from."""

    url: str
    detail: str | None = None


class ImagePart(Struct, frozen=True, tag_field="type", tag="image_url"):
    """An image."""

    image_url: ImageUrl


class ChatFunction(Struct, frozen=True):
    """A tool of the caller's."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatFunctionTool(Struct, frozen=True, tag_field="type", tag="function"):
    """A tool of the caller's."""

    function: ChatFunction


class CalledFunction(Struct, frozen=True):
    """Which tool was called with what."""

    name: str
    arguments: str


class PriorCall(Struct, frozen=True, tag_field="type", tag="function"):
    """A call that the model made before."""

    id: str
    function: CalledFunction


Texts = str | list[TextPart]


class SystemMessage(Struct, frozen=True, tag_field="role", tag="system"):
    """The caller's instructions for the model."""

    content: Texts


class DeveloperMessage(Struct, frozen=True, tag_field="role", tag="developer"):
    """The same, as newer models call it."""

    content: Texts


class UserMessage(Struct, frozen=True, tag_field="role", tag="user"):
    """What the person said."""

    content: str | list[TextPart | ImagePart]


class AssistantMessage(Struct, frozen=True, tag_field="role", tag="assistant"):
    """What the model said, and which tools it called."""

    content: str | list[TextPart | RefusalPart] | None = None
    tool_calls: list[PriorCall] | None = None
    function_call: None = None
    audio: None = None


class ToolMessage(Struct, frozen=True, tag_field="role", tag="tool"):
    """The result of a call."""

    content: Texts
    tool_call_id: str


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class ChatNamedFunction(Struct, frozen=True):
    """A tool by its name."""

    name: str


class NamedChoice(Struct, frozen=True, tag_field="type", tag="function"):
    """The one tool that must be called."""

    function: ChatNamedFunction


class StreamOptions(Struct, frozen=True):
    """What a stream contains in addition to the answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class TextFormat(Struct, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class ObjectFormat(Struct, frozen=True, tag_field="type", tag="json_object"):
    """A JSON object."""


class JsonSchema(Struct, frozen=True):
    """A schema and its name."""

    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class SchemaFormat(Struct, frozen=True, tag_field="type", tag="json_schema"):
    """JSON of a certain form."""

    json_schema: JsonSchema


class ChatRequest(Struct, frozen=True, kw_only=True):
    """A conversation whose next message is asked for."""

    model: str
    messages: list[ChatMessage]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    stop: str | list[str] | None = None
    tools: list[ChatFunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: TextFormat | ObjectFormat | SchemaFormat | None = None
    user: str | None = None


def conversation_of(messages: list[ChatMessage], pictures: RequestImages, *, named: bool) -> MessageBuilder:
    """Return the conversation of a request; in a named session, calls may be known from before."""
    talk = MessageBuilder()
    for number, message in enumerate(messages):
        param = f"messages[{number}]"
        match message:
            case SystemMessage(content=content) | DeveloperMessage(content=content):
                talk.system.append(_text(content))
            case UserMessage(content=content):
                parts = [TextPart(content)] if isinstance(content, str) else content
                images = tuple(
                    pictures.read(part.image_url.url, param=param) for part in parts if isinstance(part, ImagePart)
                )
                talk.add_user(_text([part for part in parts if isinstance(part, TextPart)]), images)
            case AssistantMessage(content=said, tool_calls=calls):
                text = said if isinstance(said, str) else "\n".join(map(_part_text, said or ()))
                made = tuple(
                    talk.call(call.id, call.function.name, call.function.arguments, param=param) for call in calls or ()
                )
                talk.answer(text, made)
            case ToolMessage(content=content, tool_call_id=call_id):
                talk.result(call_id, _text(content), param=param, is_known=not named)
    return talk


def parameters_of(request: ChatRequest, *, system: str) -> RequestParameters:
    """Return the request's parameters other than its messages."""
    return RequestParameters(
        system=system,
        tools=tuple(
            ClientTool(
                name=tool.function.name,
                description=tool.function.description or "",
                parameters=tool.function.parameters or {},
            )
            for tool in request.tools or ()
        ),
        choice=request.tool_choice if isinstance(request.tool_choice, str) else "auto",
        named=request.tool_choice.function.name if isinstance(request.tool_choice, NamedChoice) else None,
        parallel=request.parallel_tool_calls is not False,
        temperature=request.temperature,
        top_p=request.top_p,
        tokens=request.max_completion_tokens or request.max_tokens,
        stop=request.stop,
        schema=_schema(request),
    )


def _schema(request: ChatRequest) -> Schema | None:
    match request.response_format:
        case ObjectFormat():
            return ANY_OBJECT
        case SchemaFormat(json_schema=wanted):
            if wanted.schema is None:
                raise ParameterUnsupported("response_format.json_schema.schema", "A schema is missing.")
            return wanted.schema
        case _:
            return None


def _text(content: Texts) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _part_text(part: TextPart | RefusalPart) -> str:
    return part.text if isinstance(part, TextPart) else part.refusal
