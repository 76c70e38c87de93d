"""A chat completion: the next message of a conversation, whole or in chunks."""

import msgspec
from msgspec import UNSET, Struct, UnsetType

from palyra.core.message import AcceptedMessage
from palyra.core.model.prompt import StopReason
from palyra.core.spending.usage import Usage
from palyra.core.tool import ToolCall
from palyra.gateway.http.openai.errors import ErrorResponse, V1Error
from palyra.gateway.http.openai.run_answer import AnswerDelta, ReasoningPiece, RunAnswer

_encode = msgspec.json.Encoder()


class FunctionCall(Struct, frozen=True, kw_only=True):
    """Which tool is called with what; the arguments are JSON as text."""

    name: str
    arguments: str


class ChatToolCall(Struct, frozen=True, kw_only=True):
    """A call that the caller must execute."""

    id: str
    function: FunctionCall
    type: str = "function"


class ChunkToolCall(ChatToolCall, frozen=True, kw_only=True):
    """The same in a stream."""

    index: int


class ChatAnswerMessage(Struct, frozen=True, kw_only=True):
    """The next message of the conversation."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ChatToolCall] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True, kw_only=True):
    """The only choice that there is."""

    message: ChatAnswerMessage
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


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """The answer."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    object: str = "chat.completion"


class ChunkDelta(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is new in a piece."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ChunkToolCall] | None = None


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """A piece of the only choice that there is."""

    delta: ChunkDelta
    finish_reason: str | None = None
    index: int = 0
    logprobs: None = None


class ChatChunk(Struct, frozen=True, kw_only=True):
    """A piece of the answer."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChatUsage | UnsetType | None = UNSET
    object: str = "chat.completion.chunk"


class ChatFormat:
    """Writes an answer as a chat completion."""

    def __init__(self, accepted: AcceptedMessage, model: str, *, created: int, with_usage: bool) -> None:
        self._id = f"chatcmpl-{accepted.run_id}"
        self._model = model
        self._created = created
        self._with_usage = with_usage

    def complete(self, answer: RunAnswer) -> ChatCompletion:
        calls = [
            ChatToolCall(id=call.call_id, function=FunctionCall(name=call.tool, arguments=arguments_of(call)))
            for call in answer.calls
        ]
        message = ChatAnswerMessage(
            content=answer.text if answer.text or not calls else None,
            reasoning_content=answer.thoughts or UNSET,
            tool_calls=calls or UNSET,
        )
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[ChatChoice(message=message, finish_reason=finish_reason(answer))],
            usage=usage_of(answer.usage),
        )

    def begin(self) -> bytes:
        return self._chunk(ChunkDelta(role="assistant", content=""))

    def piece(self, piece: AnswerDelta | ReasoningPiece) -> bytes:
        if isinstance(piece, AnswerDelta):
            return self._chunk(ChunkDelta(content=piece.text))
        return self._chunk(ChunkDelta(reasoning_content=piece.text))

    def end(self, answer: RunAnswer) -> bytes:
        written = b""
        for index, call in enumerate(answer.calls):
            function = FunctionCall(name=call.tool, arguments=arguments_of(call))
            written += self._chunk(
                ChunkDelta(tool_calls=[ChunkToolCall(id=call.call_id, function=function, index=index)])
            )
        written += self._chunk(ChunkDelta(), finish_reason(answer))
        if self._with_usage:
            written += _event(
                ChatChunk(
                    id=self._id,
                    created=self._created,
                    model=self._model,
                    choices=[],
                    usage=usage_of(answer.usage),
                )
            )
        return written + b"data: [DONE]\n\n"

    def fail(self, fault: V1Error) -> bytes:
        return _event(ErrorResponse(error=fault.body))

    def _chunk(self, delta: ChunkDelta, finish: str | None = None) -> bytes:
        return _event(
            ChatChunk(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=[ChunkChoice(delta=delta, finish_reason=finish)],
                usage=None if self._with_usage else UNSET,
            )
        )


def finish_reason(answer: RunAnswer) -> str:
    """Return the `finish_reason` of the answer."""
    if answer.calls:
        return "tool_calls"
    if answer.added:
        return "stop"
    return {StopReason.LENGTH: "length", StopReason.REFUSED: "content_filter"}.get(answer.stop, "stop")


def usage_of(usage: Usage) -> ChatUsage:
    """Return the usage of the run."""
    return ChatUsage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.tokens,
        prompt_tokens_details=PromptDetails(cached_tokens=usage.cached_tokens),
        completion_tokens_details=CompletionDetails(reasoning_tokens=usage.reasoning_tokens),
    )


def arguments_of(call: ToolCall) -> str:
    """Return a call's arguments as clients expect them: JSON as text."""
    return _encode.encode(call.arguments).decode()


def _event(value: object) -> bytes:
    return b"data: " + _encode.encode(value) + b"\n\n"
