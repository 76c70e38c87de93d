"""Google Gemini: parses its answers. `gemini_request` builds the requests."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct

from palyra.core.model.catalog import ModelCard
from palyra.core.model.prompt import CallProposed, ModelEvent, Prompt, ReasoningDelta, StopReason, TextDelta, TurnDone
from palyra.core.spending.usage import Usage
from palyra.core.tool import JsonObject
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.dialect import ModelTarget, ProviderRequest
from palyra.providers.dialects.gemini_request import NAME, body_of, version_of
from palyra.providers.dialects.partial_calls import MAX_CALLS, names_of
from palyra.providers.dialects.usage_counts import count
from palyra.providers.failures import (
    BROKE_OFF,
    MAX_WAIT,
    failure,
    kind_of,
    refusal,
    refusal_text,
    retry_after,
)
from palyra.providers.tool_calls import read_arguments

_NO_CALL = "{model} of {provider} made a tool call that cannot be executed: try again"
_NO_ANSWER = "{model} of {provider} stopped without an answer: try again, or choose another model"

_TOO_LONG = re.compile(r"token count.{0,40}exceeds|exceeds the maximum number of tokens", re.IGNORECASE)
_SECONDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")

_FORBIDDEN = frozenset(
    "SAFETY RECITATION LANGUAGE BLOCKLIST PROHIBITED_CONTENT SPII MODEL_ARMOR IMAGE_SAFETY"
    " IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION".split()
)
_NO_CALLS = frozenset(
    "MALFORMED_FUNCTION_CALL UNEXPECTED_TOOL_CALL TOO_MANY_TOOL_CALLS MISSING_THOUGHT_SIGNATURE"
    " MALFORMED_RESPONSE".split()
)
_KINDS = {
    "UNAUTHENTICATED": FailureKind.AUTH,
    "PERMISSION_DENIED": FailureKind.PERMISSION,
    "NOT_FOUND": FailureKind.PERMISSION,
    # A country where it is not offered, or an account that cannot be charged: a retry does not help.
    "FAILED_PRECONDITION": FailureKind.PERMISSION,
    "DEADLINE_EXCEEDED": FailureKind.TIMEOUT,
    "INTERNAL": FailureKind.UNAVAILABLE,
    "UNAVAILABLE": FailureKind.UNAVAILABLE,
}


class _Call(Struct, gc=False):
    name: str = ""
    args: Any = None
    id: str | None = None


class _Part(Struct, gc=False, rename="camel"):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _Call | None = None


class _Content(Struct, gc=False):
    parts: list[_Part] | None = None


class _Candidate(Struct, gc=False, rename="camel"):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    index: int | None = None


class _Feedback(Struct, gc=False, rename="camel"):
    block_reason: str | None = None
    block_reason_message: str | None = None


class _Detail(Struct, rename={"kind": "@type", "retry_delay": "retryDelay", "quota": "violations"}):
    kind: Any = None
    reason: Any = None
    retry_delay: Any = None
    quota: Any = None


class _Error(Struct):
    message: str = ""
    status: str = ""
    code: int = 0
    details: list[_Detail] | None = None


class _Piece(Struct, gc=False, rename="camel"):
    candidates: list[_Candidate] | None = None
    usage_metadata: Any = None
    prompt_feedback: _Feedback | None = None
    error: _Error | None = None


class _Refusal(Struct):
    error: _Error


class _Model(Struct, rename="camel"):
    name: str
    supported_generation_methods: list[str] = []


class _Models(Struct):
    models: list[_Model] = []


_piece = msgspec.json.Decoder(_Piece)
_refusal = msgspec.json.Decoder(_Refusal | Annotated[list[_Refusal], Meta(min_length=1)])
_models = msgspec.json.Decoder(_Models)
_encode = msgspec.json.Encoder().encode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class GeminiDialect:
    """The Google Gemini dialect."""

    base_url = "https://generativelanguage.googleapis.com/v1beta"

    def authorised(self, key: str) -> Mapping[str, str]:
        """Return the header with the key."""
        return {"x-goog-api-key": key}

    def request(self, prompt: Prompt, target: ModelTarget) -> ProviderRequest:
        """Return the request for the model's next turn."""
        path = f"/{_path(target.model)}:streamGenerateContent?alt=sse"
        return ProviderRequest(path=path, headers={}, body=_encode(body_of(prompt, target)))

    def reader(self, prompt: Prompt, target: ModelTarget) -> "GeminiReader":
        """Return the parser of the answer."""
        return GeminiReader(prompt, target)

    def refused(self, status: int, headers: Mapping[str, str], body: bytes, target: ModelTarget) -> ProviderFailed:
        """Return the failure for an answer that is not a stream."""
        try:
            result = _refusal.decode(body)
        except _UNREADABLE:
            return refusal(status, headers, body, target)
        error = result.error if isinstance(result, _Refusal) else result[0].error
        return _failed(error, target, status=status, wait=retry_after(headers), refused=status >= 400)

    def model_card(self, model: str) -> ModelCard:
        """Return what is known about a model by its name."""
        version = version_of(model)
        if "gemini" not in model or "-image" in model or "-tts" in model:
            return ModelCard(window_tokens=32_768, max_output_tokens=8_192, tools="none", vision=False, reasoning=False)
        return ModelCard(
            window_tokens=1_048_576,
            max_output_tokens=65_536 if version >= (2, 5) else 8_192,
            tools="native",
            vision=True,
            reasoning=version >= (2, 5),
        )

    def list_path(self) -> str:
        """Return the path of the list of models."""
        return "/models?pageSize=1000"

    def listed(self, body: bytes) -> list[str]:
        """Return the chat models of such a list, or raise `DecodeError`."""
        try:
            models = _models.decode(body).models
        except _UNREADABLE as error:
            raise msgspec.DecodeError("the response is not a list of models") from error
        talking = (model for model in models if "generateContent" in model.supported_generation_methods)
        return sorted(model.name.removeprefix("models/") for model in talking)


DIALECT = GeminiDialect()


def _path(model: str) -> str:
    """Return the path of a model; its name may come from a client, and must not lead anywhere else."""
    kind, slash, name = model.partition("/")
    if not slash or kind not in ("models", "tunedModels"):
        kind, name = "models", model
    return f"{kind}/{quote(name, safe='')}"


def _failed(
    error: _Error, target: ModelTarget, *, status: int, wait: timedelta = timedelta(0), refused: bool
) -> ProviderFailed:
    kind = _kind(error, status)
    instead = refusal_text(status, kind)
    return failure(
        target, kind, error.message, instead=instead, retry_after=max(wait, _retry_delay(error)), refused=refused
    )


def _kind(error: _Error, status: int) -> FailureKind:
    if any(detail.reason == "API_KEY_INVALID" for detail in error.details or ()):
        return FailureKind.AUTH
    if error.status == "RESOURCE_EXHAUSTED":
        return FailureKind.QUOTA if _used_up(error) else FailureKind.RATE_LIMIT
    if error.status == "INVALID_ARGUMENT" and _TOO_LONG.search(error.message):
        return FailureKind.CONTEXT_TOO_LONG
    # Within an answer that had begun, the status is that of the error; without one it counts as a server error.
    status = status if status >= 400 else error.code
    return _KINDS.get(error.status) or kind_of(status if status >= 400 else 500, error.status, error.message)


def _used_up(error: _Error) -> bool:
    """Return whether a quota is exhausted for long rather than for a moment: both have the same error."""
    details = error.details or ()
    quotas = [str(quota) for detail in details if isinstance(detail.quota, list) for quota in detail.quota]
    if quotas:
        return any("PerDay" in quota for quota in quotas) or "limit: 0" in error.message
    # Without details the message decides; a retry delay means that waiting helps.
    return "billing" in error.message and not _retry_delay(error)


def _retry_delay(error: _Error) -> timedelta:
    for detail in error.details or ():
        if isinstance(detail.retry_delay, str) and (match := _SECONDS.fullmatch(detail.retry_delay)):
            return min(timedelta(seconds=float(match[1])), MAX_WAIT)
    return timedelta(0)


class GeminiReader:
    """Parses one answer. Only the end of the stream marks its end."""

    def __init__(self, prompt: Prompt, target: ModelTarget) -> None:
        self._target = target
        self._names = names_of(prompt)
        self._finish: str | None = None
        self._finish_words = ""
        self._counts: Any = None
        self._chars = self._calls = 0

    def feed(self, name: str, data: bytes) -> Iterable[ModelEvent]:
        """Parse one event."""
        try:
            piece = _piece.decode(data)
        except _UNREADABLE as error:
            if data.startswith(b"[DONE]"):
                return ()  # a proxy may end the answer as other APIs do
            raise failure(
                self._target, FailureKind.MALFORMED, why="it sent something that is not a part of an answer"
            ) from error
        if piece.error is not None:
            raise _failed(piece.error, self._target, status=0, refused=False)
        if piece.usage_metadata is not None:
            self._counts = piece.usage_metadata
        if piece.candidates:
            candidate = piece.candidates[0]
            if candidate.finish_reason is not None:
                self._finish, self._finish_words = candidate.finish_reason, candidate.finish_message or ""
            parts = candidate.content.parts if candidate.content is not None else None
            # Most have one part, a text.
            if parts and len(parts) == 1 and (part := parts[0]).text and part.thought is None:
                if part.function_call is None and part.thought_signature is None:
                    self._chars += len(part.text)
                    return (TextDelta(part.text),)
            return [event for part in parts or () for event in self._part(part)]
        if piece.prompt_feedback is not None and piece.prompt_feedback.block_reason is not None:
            text = piece.prompt_feedback.block_reason_message or piece.prompt_feedback.block_reason
            raise failure(self._target, FailureKind.CONTENT_POLICY, text)
        return ()

    def end(self) -> Iterable[ModelEvent]:
        """Return how the turn ended."""
        finish = self._finish
        if finish is None:
            raise failure(self._target, FailureKind.NETWORK, instead=BROKE_OFF)
        if finish in _NO_CALLS:
            text = self._finish_words or finish
            raise failure(self._target, FailureKind.MALFORMED, text, instead=_NO_CALL, is_well=True)
        if finish == "MAX_TOKENS":
            stop = StopReason.LENGTH
        elif finish in _FORBIDDEN:
            stop = StopReason.REFUSED
        elif finish != "STOP" and not self._chars and not self._calls:
            raise failure(self._target, FailureKind.UNAVAILABLE, self._finish_words or finish, instead=_NO_ANSWER)
        else:
            stop = StopReason.CALLS if self._calls else StopReason.END
        return (TurnDone(stop=stop, usage=self._used()),)

    def _part(self, part: _Part) -> Iterator[ModelEvent]:
        signature = part.thought_signature
        if part.function_call is not None:
            if signature:
                yield self._signed(signature, call=self._calls)
            yield self._call(part.function_call)
        elif part.thought:
            if part.text:
                yield ReasoningDelta(part.text)
            if signature:
                yield self._signed(signature, thought=True)
        else:
            if part.text:
                self._chars += len(part.text)
                yield TextDelta(part.text)
            if signature:
                yield self._signed(signature, text=self._chars)

    def _signed(self, signature: str, **where: int) -> ReasoningDelta:
        data: JsonObject = {"model": self._target.model, "signature": signature, **where}
        return ReasoningDelta("", NAME, data)

    def _call(self, call: _Call) -> CallProposed:
        if self._calls >= MAX_CALLS:
            raise failure(self._target, FailureKind.MALFORMED, why=f"more than {MAX_CALLS} calls in one turn")
        self._calls += 1
        arguments, malformed = call.args, ""
        if not isinstance(arguments, dict):
            # There are none, or they are malformed: then the message is reported as for other providers.
            text = arguments if isinstance(arguments, str) else _encode(arguments).decode()
            arguments, malformed = read_arguments("" if arguments is None else text)
        return CallProposed(
            call_id=call.id or "", tool=self._names.back(call.name), arguments=arguments, malformed=malformed
        )

    def _used(self) -> Usage:
        thoughts = max(0, count(self._counts, "thoughtsTokenCount"))
        results = max(0, count(self._counts, "toolUsePromptTokenCount"))
        return Usage(
            input_tokens=count(self._counts, "promptTokenCount") + results,
            output_tokens=count(self._counts, "candidatesTokenCount") + thoughts,
            cached_tokens=max(0, count(self._counts, "cachedContentTokenCount")),
            reasoning_tokens=thoughts,
        )
