"""`/v1/chat/completions`: a conversation comes in whole, and its next message goes out."""

import asyncio
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.types import ASGIApp

from palyra.core.brief import NO_BRIEF, Brief, ClientTool
from palyra.core.clock import Clock
from palyra.core.ids import PrincipalId
from palyra.core.message import Accepted, Inbound
from palyra.core.prompt import StopReason
from palyra.core.tool import ToolCall
from palyra.core.usage import Usage
from palyra.gateway.http.openai import tools
from palyra.gateway.http.openai.conversation import Conversation
from palyra.gateway.http.openai.door import Door, Manner, inbound_of, manner_of
from palyra.gateway.http.openai.errors import ErrorAnswer, Fault, ParameterRefused
from palyra.gateway.http.openai.models import Models, Target
from palyra.gateway.http.openai.options import ANY_OBJECT, Schema, Temperature, Tokens, TopP, options_of
from palyra.gateway.http.openai.pictures import Pictures
from palyra.gateway.http.openai.request import ANYTHING, Only, Rules, parse, read_json
from palyra.gateway.http.openai.telling import Said, Telling, Thought
from palyra.gateway.http.operation import Operation
from palyra.tools.toolbox import Toolbox

LARGE_BYTES = 256 * 1024

RULES: Rules = {
    "audio": Only(),
    "frequency_penalty": Only(0),
    "function_call": Only(),
    "functions": Only(),
    "logit_bias": Only({}),
    "logprobs": Only(False),
    "metadata": ANYTHING,
    "modalities": Only(["text"]),
    "n": Only(1),
    "prediction": ANYTHING,
    "presence_penalty": Only(0),
    "prompt_cache_key": ANYTHING,
    "prompt_cache_retention": ANYTHING,
    "reasoning_effort": Only(),
    "safety_identifier": ANYTHING,
    "seed": Only(),
    "service_tier": ANYTHING,
    "store": ANYTHING,
    "top_logprobs": Only(0),
    "verbosity": Only(),
    "web_search_options": Only(),
}
"""Parameters that are not looked at, and with which values they may come."""


# -- what comes in


class TextPart(Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of text."""

    text: str


class RefusalPart(Struct, frozen=True, tag_field="type", tag="refusal"):
    """What the model said instead of an answer."""

    refusal: str


class ImageUrl(Struct, frozen=True):
    """A picture, as a `data:` URL."""

    url: str
    detail: str | None = None


class ImagePart(Struct, frozen=True, tag_field="type", tag="image_url"):
    """A picture."""

    image_url: ImageUrl


class Function(Struct, frozen=True):
    """A tool of the caller's."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Struct, frozen=True, tag_field="type", tag="function"):
    """A tool of the caller's."""

    function: Function


class Called(Struct, frozen=True):
    """Which tool was called with what."""

    name: str
    arguments: str


class GivenCall(Struct, frozen=True, tag_field="type", tag="function"):
    """A call that the model made before."""

    id: str
    function: Called


Texts = str | list[TextPart]


class SystemMessage(Struct, frozen=True, tag_field="role", tag="system"):
    """What the caller tells the model about its work."""

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
    tool_calls: list[GivenCall] | None = None
    function_call: None = None
    audio: None = None


class ToolMessage(Struct, frozen=True, tag_field="role", tag="tool"):
    """What a call gave back."""

    content: Texts
    tool_call_id: str


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class NamedFunction(Struct, frozen=True):
    """A tool by its name."""

    name: str


class NamedChoice(Struct, frozen=True, tag_field="type", tag="function"):
    """The one tool that must be called."""

    function: NamedFunction


class StreamOptions(Struct, frozen=True):
    """What a stream holds beside the answer."""

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
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: TextFormat | ObjectFormat | SchemaFormat | None = None
    user: str | None = None


# -- what goes out


class FunctionCall(Struct, frozen=True, kw_only=True):
    """Which tool is called with what; the arguments are JSON as text."""

    name: str
    arguments: str


class AnswerCall(Struct, frozen=True, kw_only=True):
    """A call that is the caller's to carry out."""

    id: str
    function: FunctionCall
    type: str = "function"


class ChunkCall(AnswerCall, frozen=True, kw_only=True):
    """The same in a stream."""

    index: int


class AnswerMessage(Struct, frozen=True, kw_only=True):
    """The next message of the conversation."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[AnswerCall] | UnsetType = UNSET


class AnswerChoice(Struct, frozen=True, kw_only=True):
    """The only choice that there is."""

    message: AnswerMessage
    finish_reason: str
    index: int = 0
    logprobs: None = None


class PromptDetails(Struct, frozen=True, kw_only=True):
    """What the prompt took."""

    cached_tokens: int


class CompletionDetails(Struct, frozen=True, kw_only=True):
    """What the answer took."""

    reasoning_tokens: int


class ChatUsage(Struct, frozen=True, kw_only=True):
    """What the whole run took."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class ChatAnswer(Struct, frozen=True, kw_only=True):
    """The answer."""

    id: str
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: ChatUsage
    object: str = "chat.completion"


class Delta(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is new in a piece."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ChunkCall] | None = None


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """A piece of the only choice that there is."""

    delta: Delta
    finish_reason: str | None = None
    index: int = 0
    logprobs: None = None


class Chunk(Struct, frozen=True, kw_only=True):
    """A piece of the answer."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChatUsage | UnsetType | None = UNSET
    object: str = "chat.completion.chunk"


_encode = msgspec.json.Encoder()


class ChatRoutes:
    """The operation that answers conversations."""

    def __init__(self, door: Door, models: Models, *, toolbox: Toolbox, clock: Clock) -> None:
        self._door = door
        self._models = models
        self._toolbox = toolbox
        self._clock = clock

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "POST",
                "/v1/chat/completions",
                self.complete,
                "Answer a conversation, as OpenAI's API does.",
                need="write",
                body=ChatRequest,
                answer=ChatAnswer,
                failure=ErrorAnswer,
                streams=True,
            )
        ]

    async def complete(self, request: Request, principal: PrincipalId) -> ASGIApp:
        body = await read_json(request)
        asked = parse(body, ChatRequest, RULES)
        manner = manner_of(request, user=asked.user)
        target = await self._models.target(principal, asked.model)
        inbound = await asyncio.to_thread(self._inbound, principal, asked, manner, target)
        created = int(self._clock.now().timestamp())
        usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)

        def shape(accepted: Accepted) -> ChatShape:
            return ChatShape(accepted, asked.model, created=created, with_usage=usage)

        return await self._door.answer(inbound, manner, shape, stream=bool(asked.stream))

    def _inbound(self, principal: PrincipalId, asked: ChatRequest, manner: Manner, target: Target) -> Inbound:
        """Return the message that the request brings. Takes a while if there are pictures in it."""
        named, pictures = manner.session.key is not None, Pictures()
        talk = conversation_of(asked.messages, pictures, named=named)
        said = talk.end(param="messages") if named else talk.whole(param="messages")
        return inbound_of(
            principal,
            said,
            manner,
            agent=target.agent,
            brief=brief_of(asked, target, system=talk.instructions(), toolbox=self._toolbox),
            pictures=pictures.found,
        )


def conversation_of(messages: list[ChatMessage], pictures: Pictures, *, named: bool) -> Conversation:
    """Return the conversation of a request; in a session that is named, calls may be known from before."""
    talk = Conversation()
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
                talk.say(_text([part for part in parts if isinstance(part, TextPart)]), images)
            case AssistantMessage(content=said, tool_calls=calls):
                text = said if isinstance(said, str) else "\n".join(map(_words, said or ()))
                made = tuple(
                    talk.call(call.id, call.function.name, call.function.arguments, param=param) for call in calls or ()
                )
                talk.answer(text, made)
            case ToolMessage(content=content, tool_call_id=call_id):
                talk.result(call_id, _text(content), param=param, known=not named)
    return talk


def brief_of(asked: ChatRequest, target: Target, *, system: str, toolbox: Toolbox) -> Brief:
    """Return how the caller wants to be answered."""
    own = tuple(
        ClientTool(
            name=tool.function.name,
            description=tool.function.description or "",
            parameters=tool.function.parameters or {},
        )
        for tool in asked.tools or ()
    )
    tools.check(own, taken=lambda: () if target.plain else toolbox.catalog(None).names())
    named = asked.tool_choice.function.name if isinstance(asked.tool_choice, NamedChoice) else None
    choice = asked.tool_choice if isinstance(asked.tool_choice, str) else "auto"
    offered = tools.offer(own, choice=choice, named=named, plain=target.plain)
    brief = Brief(
        model=target.model,
        plain=target.plain,
        system=system,
        options=options_of(
            temperature=asked.temperature,
            top_p=asked.top_p,
            tokens=asked.max_completion_tokens or asked.max_tokens,
            stop=asked.stop,
            choice=offered.choice,
            schema=_schema(asked),
        ),
        tools=offered.tools,
        one_by_one=bool(offered.tools) and asked.parallel_tool_calls is False,
    )
    return NO_BRIEF if brief == NO_BRIEF else brief


def _schema(asked: ChatRequest) -> Schema | None:
    match asked.response_format:
        case ObjectFormat():
            return ANY_OBJECT
        case SchemaFormat(json_schema=wanted):
            if wanted.schema is None:
                raise ParameterRefused("response_format.json_schema.schema", "A schema is missing.")
            return wanted.schema
        case _:
            return None


def _text(content: Texts) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _words(part: TextPart | RefusalPart) -> str:
    return part.text if isinstance(part, TextPart) else part.refusal


class ChatShape:
    """Writes an answer as a chat completion."""

    def __init__(self, accepted: Accepted, model: str, *, created: int, with_usage: bool) -> None:
        self._id = f"chatcmpl-{accepted.run_id}"
        self._model = model
        self._created = created
        self._with_usage = with_usage

    def whole(self, telling: Telling) -> ChatAnswer:
        calls = [
            AnswerCall(id=call.call_id, function=FunctionCall(name=call.tool, arguments=arguments_of(call)))
            for call in telling.calls
        ]
        message = AnswerMessage(
            content=telling.text if telling.text or not calls else None,
            reasoning_content=telling.thoughts or UNSET,
            tool_calls=calls or UNSET,
        )
        return ChatAnswer(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[AnswerChoice(message=message, finish_reason=finish_reason(telling))],
            usage=usage_of(telling.usage),
        )

    def begin(self) -> bytes:
        return self._chunk(Delta(role="assistant", content=""))

    def piece(self, piece: Said | Thought) -> bytes:
        if isinstance(piece, Said):
            return self._chunk(Delta(content=piece.text))
        return self._chunk(Delta(reasoning_content=piece.text))

    def end(self, telling: Telling) -> bytes:
        written = b""
        for index, call in enumerate(telling.calls):
            function = FunctionCall(name=call.tool, arguments=arguments_of(call))
            written += self._chunk(Delta(tool_calls=[ChunkCall(id=call.call_id, function=function, index=index)]))
        written += self._chunk(Delta(), finish_reason(telling))
        if self._with_usage:
            written += _event(
                Chunk(
                    id=self._id,
                    created=self._created,
                    model=self._model,
                    choices=[],
                    usage=usage_of(telling.usage),
                )
            )
        return written + b"data: [DONE]\n\n"

    def fail(self, fault: Fault) -> bytes:
        return _event(ErrorAnswer(error=fault.body))

    def _chunk(self, delta: Delta, finish: str | None = None) -> bytes:
        return _event(
            Chunk(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=[ChunkChoice(delta=delta, finish_reason=finish)],
                usage=None if self._with_usage else UNSET,
            )
        )


def finish_reason(telling: Telling) -> str:
    """Say why the answer ends here."""
    if telling.calls:
        return "tool_calls"
    if telling.asked:
        return "stop"
    return {StopReason.LENGTH: "length", StopReason.REFUSED: "content_filter"}.get(telling.stop, "stop")


def usage_of(usage: Usage) -> ChatUsage:
    """Return what the run took."""
    return ChatUsage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.tokens,
        prompt_tokens_details=PromptDetails(cached_tokens=usage.cached_tokens),
        completion_tokens_details=CompletionDetails(reasoning_tokens=usage.reasoning_tokens),
    )


def arguments_of(call: ToolCall) -> str:
    """Return a call's arguments as programs expect them: JSON as text."""
    return _encode.encode(call.arguments).decode()


def _event(value: object) -> bytes:
    return b"data: " + _encode.encode(value) + b"\n\n"
