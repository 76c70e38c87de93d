"""A request for a response: its parameters, and what they mean."""

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
    "background": AcceptedValues(False),
    "context_management": AcceptedValues(),
    "conversation": AcceptedValues(),
    "include": ANYTHING,
    "max_tool_calls": AcceptedValues(),
    "metadata": ANYTHING,
    "moderation": AcceptedValues(),
    "prompt": AcceptedValues(),
    "prompt_cache_key": ANYTHING,
    "prompt_cache_retention": ANYTHING,
    "reasoning": AcceptedValues({}),
    "safety_identifier": ANYTHING,
    "service_tier": ANYTHING,
    "store": ANYTHING,
    "stream_options": ANYTHING,
    "top_logprobs": AcceptedValues(0),
    "truncation": ANYTHING,
}
"""Parameters that are ignored, and the values that they may have."""


class InputText(Struct, frozen=True, tag_field="type", tag="input_text"):
    """A piece of text."""

    text: str


class PriorOutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    """A piece of text that the model said before."""

    text: str


class PriorRefusal(Struct, frozen=True, tag_field="type", tag="refusal"):
    """What the model said instead of an answer."""

    refusal: str


class InputImage(Struct, frozen=True, tag_field="type", tag="input_image"):
    """An image, as a `data:` URL, or the URL that it is fetched from."""

    image_url: str | None = None
    detail: str | None = None


class MessageItem(Struct, frozen=True, tag_field="type", tag="message"):
    """A message."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputText | PriorOutputText | PriorRefusal | InputImage]


class CallItem(Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call that the model made before."""

    call_id: str
    name: str
    arguments: str


class CallOutputItem(Struct, frozen=True, tag_field="type", tag="function_call_output"):
    """The result of a call."""

    call_id: str
    output: str | list[InputText]


class ReasoningItem(Struct, frozen=True, tag_field="type", tag="reasoning"):
    """Earlier reasoning of the model; it is not shown to another one."""


Item = MessageItem | CallItem | CallOutputItem | ReasoningItem


class ResponseFunctionTool(Struct, frozen=True, tag_field="type", tag="function"):
    """A tool of the caller's."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseNamedFunction(Struct, frozen=True, tag_field="type", tag="function"):
    """The one tool that must be called."""

    name: str


class PlainText(Struct, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectText(Struct, frozen=True, tag_field="type", tag="json_object"):
    """A JSON object."""


class JsonSchemaText(Struct, frozen=True, tag_field="type", tag="json_schema"):
    """JSON of a certain form."""

    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextConfig(Struct, frozen=True):
    """Which form the answer has."""

    format: PlainText | JsonObjectText | JsonSchemaText | None = None
    verbosity: Literal["medium"] | None = None


class ResponseRequest(Struct, frozen=True, kw_only=True):
    """A message, and the response that it continues."""

    model: str
    input: str | list[Item]
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    max_output_tokens: Tokens | None = None
    tools: list[ResponseFunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | ResponseNamedFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    user: str | None = None


def with_item_types(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with the type of each message set: a client may leave it out."""
    items = body.get("input")
    if not isinstance(items, list):
        return body
    named = [
        {**item, "type": "message"} if isinstance(item, dict) and "type" not in item and "role" in item else item
        for item in items
    ]
    return {**body, "input": named}


def conversation_of(request: ResponseRequest, pictures: RequestImages, *, named: bool) -> MessageBuilder:
    """Return the conversation of a request; if it continues another, calls may be known from before."""
    talk = MessageBuilder()
    if request.instructions:
        talk.system.append(request.instructions)
    if isinstance(request.input, str):
        talk.add_user(request.input)
        return talk
    for number, item in enumerate(request.input):
        param = f"input[{number}]"
        match item:
            case MessageItem(role="system" | "developer"):
                talk.system.append(_text(item))
            case MessageItem(role="assistant"):
                talk.answer(_text(item))
            case MessageItem():
                talk.add_user(_text(item), tuple(_images(item, pictures, param)))
            case CallItem(call_id=call_id, name=name, arguments=arguments):
                talk.add_call(talk.call(call_id, name, arguments, param=param))
            case CallOutputItem(call_id=call_id, output=output):
                text = output if isinstance(output, str) else "\n".join(part.text for part in output)
                talk.result(call_id, text, param=param, is_known=not named)
            case ReasoningItem():
                pass
    return talk


def parameters_of(request: ResponseRequest, *, system: str) -> RequestParameters:
    """Return the request's parameters other than its messages."""
    return RequestParameters(
        system=system,
        tools=tuple(
            ClientTool(name=tool.name, description=tool.description or "", parameters=tool.parameters or {})
            for tool in request.tools or ()
        ),
        choice=request.tool_choice if isinstance(request.tool_choice, str) else "auto",
        named=request.tool_choice.name if isinstance(request.tool_choice, ResponseNamedFunction) else None,
        parallel=request.parallel_tool_calls is not False,
        temperature=request.temperature,
        top_p=request.top_p,
        tokens=request.max_output_tokens,
        schema=_schema(request),
    )


def _schema(request: ResponseRequest) -> Schema | None:
    match request.text.format if request.text is not None else None:
        case JsonObjectText():
            return ANY_OBJECT
        case JsonSchemaText(schema=schema):
            return schema
        case _:
            return None


def _text(item: MessageItem) -> str:
    if isinstance(item.content, str):
        return item.content
    sent_text = []
    for part in item.content:
        match part:
            case InputText(text=text) | PriorOutputText(text=text):
                sent_text.append(text)
            case PriorRefusal(refusal=text):
                sent_text.append(text)
            case InputImage():
                pass
    return "\n".join(sent_text)


def _images(item: MessageItem, pictures: RequestImages, param: str) -> list[Any]:
    result = []
    for part in item.content if isinstance(item.content, list) else ():
        if isinstance(part, InputImage):
            if part.image_url is None:
                raise ParameterUnsupported(param, "An image must be in image_url: files are not supported.")
            result.append(pictures.read(part.image_url, param=param))
    return result
