"""A response: an answer as a list of items, whole or event by event.

The model's reasoning is left out: OpenAI returns it only to clients that request a summary.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from palyra.core.events import RunCancelled, RunFailed
from palyra.core.ids import RunId
from palyra.core.model.prompt import StopReason
from palyra.core.spending.usage import Usage
from palyra.core.tool import JsonObject
from palyra.gateway.http.openai.chat_response import arguments_of
from palyra.gateway.http.openai.errors import V1Error, run_error
from palyra.gateway.http.openai.run_answer import AnswerDelta, ReasoningPiece, RunAnswer

PREFIX = "resp_"

_encode = msgspec.json.Encoder()


class OutputText(Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """What was said."""

    text: str
    annotations: list[JsonObject] = []


class OutputMessage(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """What the model said."""

    id: str
    content: list[OutputText]
    status: str = "completed"
    role: str = "assistant"


class OutputCall(Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call that the caller must execute."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str = "completed"


class InputDetails(Struct, frozen=True, kw_only=True):
    """What the prompt took."""

    cached_tokens: int


class OutputDetails(Struct, frozen=True, kw_only=True):
    """What the answer took."""

    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True, kw_only=True):
    """What the whole run took."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(Struct, frozen=True, kw_only=True):
    """Why there is no answer."""

    code: str
    message: str


class IncompleteDetails(Struct, frozen=True, kw_only=True):
    """Why the answer ends too early."""

    reason: str


class ResponseBody(Struct, frozen=True, kw_only=True):
    """An answer."""

    id: str
    created_at: int
    status: str
    model: str
    output: list[OutputMessage | OutputCall]
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = {}
    object: str = "response"
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    store: bool = True
    temperature: float | None = None
    text: dict[str, Any] = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    tool_choice: Any = "auto"
    tools: list[JsonObject] = []
    top_p: float | None = None
    truncation: str = "auto"
    usage: ResponseUsage | None = None


class ResponseEvent(Struct, frozen=True, kw_only=True):
    """One step of an answer. Which fields it has depends on its type."""

    type: str
    """`response.created`, `response.output_text.delta`, `response.completed` and so on."""
    sequence_number: int
    response: ResponseBody | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item: OutputMessage | OutputCall | UnsetType = UNSET
    part: OutputText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: list[JsonObject] | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    name: str | UnsetType = UNSET


def id_of(run_id: RunId) -> str:
    """Return the response id of a run."""
    return f"{PREFIX}{run_id}"


class ResponseFormat:
    """Writes an answer as a response. `frame` has the request parameters that the response repeats."""

    def __init__(self, frame: ResponseBody) -> None:
        self._frame = frame
        self._message_id = f"msg_{frame.id.removeprefix(PREFIX)}"
        self._number = 0
        self._spoke = False

    def complete(self, answer: RunAnswer) -> ResponseBody:
        end = answer.end
        if isinstance(end, RunFailed | RunCancelled):
            return self._failed(
                answer, run_error(end), status="cancelled" if isinstance(end, RunCancelled) else "failed"
            )
        status, details = _status(answer)
        return msgspec.structs.replace(
            self._frame,
            status=status,
            incomplete_details=details,
            output=self._output(answer),
            usage=usage_of(answer.usage),
        )

    def begin(self) -> bytes:
        return self._event("response.created", response=self._frame) + self._event(
            "response.in_progress", response=self._frame
        )

    def piece(self, piece: AnswerDelta | ReasoningPiece) -> bytes:
        if isinstance(piece, ReasoningPiece):
            return b""
        written = b""
        if not self._spoke:
            self._spoke = True
            item = OutputMessage(id=self._message_id, content=[], status="in_progress")
            written += self._event("response.output_item.added", output_index=0, item=item)
            written += self._of_text("response.content_part.added", part=OutputText(text=""))
        return written + self._of_text("response.output_text.delta", delta=piece.text, logprobs=[])

    def end(self, answer: RunAnswer) -> bytes:
        written = b""
        for index, item in enumerate(self._output(answer)):
            written += self._text_done(index, item) if isinstance(item, OutputMessage) else self._called(index, item)
        done = self.complete(answer)
        return written + self._event(f"response.{done.status}", response=done)

    def fail(self, fault: V1Error) -> bytes:
        error = ResponseError(code=fault.body.code or "", message=fault.body.message)
        return self._event(
            "response.failed", response=msgspec.structs.replace(self._frame, status="failed", error=error)
        )

    def _output(self, answer: RunAnswer) -> list[OutputMessage | OutputCall]:
        output_messages = (
            [OutputMessage(id=self._message_id, content=[OutputText(text=answer.text)])] if answer.text else []
        )
        return [
            *output_messages,
            *(
                OutputCall(id=f"fc_{call.call_id}", call_id=call.call_id, name=call.tool, arguments=arguments_of(call))
                for call in answer.calls
            ),
        ]

    def _text_done(self, index: int, item: OutputMessage) -> bytes:
        (part,) = item.content
        return (
            self._of_text("response.output_text.done", text=part.text, logprobs=[])
            + self._of_text("response.content_part.done", part=part)
            + self._event("response.output_item.done", output_index=index, item=item)
        )

    def _called(self, index: int, item: OutputCall) -> bytes:
        begun = msgspec.structs.replace(item, arguments="", status="in_progress")
        arguments = {"item_id": item.id, "output_index": index}
        return (
            self._event("response.output_item.added", output_index=index, item=begun)
            + self._event("response.function_call_arguments.delta", **arguments, delta=item.arguments)
            + self._event(
                "response.function_call_arguments.done", **arguments, arguments=item.arguments, name=item.name
            )
            + self._event("response.output_item.done", output_index=index, item=item)
        )

    def _failed(self, answer: RunAnswer, fault: V1Error, *, status: str) -> ResponseBody:
        return msgspec.structs.replace(
            self._frame,
            status=status,
            error=ResponseError(code=fault.body.code or "", message=fault.body.message),
            output=self._output(answer),
            usage=usage_of(answer.usage),
        )

    def _of_text(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._message_id, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = ResponseEvent(type=kind, sequence_number=self._number, **fields)
        self._number += 1
        return f"event: {kind}\ndata: ".encode() + _encode.encode(event) + b"\n\n"


def usage_of(usage: Usage) -> ResponseUsage:
    """Return the usage of the run."""
    return ResponseUsage(
        input_tokens=usage.input_tokens,
        input_tokens_details=InputDetails(cached_tokens=usage.cached_tokens),
        output_tokens=usage.output_tokens,
        output_tokens_details=OutputDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.tokens,
    )


def _status(answer: RunAnswer) -> tuple[str, IncompleteDetails | None]:
    if answer.added:
        return "completed", None
    if answer.end is None:
        return "in_progress", None
    early = {StopReason.LENGTH: "max_output_tokens", StopReason.REFUSED: "content_filter"}.get(answer.stop)
    if early is None or answer.calls:
        return "completed", None
    return "incomplete", IncompleteDetails(reason=early)
