"""Anthropic Messages: parses Claude's answers. `anthropic_request` builds the requests."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from palyra.core.model.catalog import ModelCard
from palyra.core.model.prompt import ModelEvent, Prompt, ReasoningDelta, StopReason, TextDelta, TurnDone
from palyra.core.spending.usage import Usage
from palyra.core.tool import JsonObject
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.dialect import ModelTarget, ProviderRequest
from palyra.providers.dialects.anthropic_request import NAME, adapts, answer_tool, body_of, version_of
from palyra.providers.dialects.partial_calls import PartialCall, PartialCalls, names_of
from palyra.providers.dialects.usage_counts import count
from palyra.providers.failures import BROKE_OFF, failure, kind_of, refusal, refusal_text, retry_after

VERSION = "2023-06-01"
MAX_PARTS = 1000
"""The maximum number of open parts of an answer."""

_STOPS = {
    "max_tokens": StopReason.LENGTH,
    "model_context_window_exceeded": StopReason.LENGTH,
    # Only the vendor's own tools pause a turn, and none is offered; if it happens, the answer is incomplete.
    "pause_turn": StopReason.LENGTH,
    "refusal": StopReason.REFUSED,
}
_KINDS = {
    "authentication_error": FailureKind.AUTH,
    "permission_error": FailureKind.PERMISSION,
    "not_found_error": FailureKind.PERMISSION,
    "billing_error": FailureKind.QUOTA,
    "rate_limit_error": FailureKind.RATE_LIMIT,
    "request_too_large": FailureKind.CONTEXT_TOO_LONG,
    "timeout_error": FailureKind.TIMEOUT,
    "overloaded_error": FailureKind.UNAVAILABLE,
    "api_error": FailureKind.UNAVAILABLE,
}
# The vendor has one type for every problem with a request; only the message tells them apart.
_WORDS = (
    ("prompt is too long", FailureKind.CONTEXT_TOO_LONG),
    ("exceed context limit", FailureKind.CONTEXT_TOO_LONG),
    ("credit balance", FailureKind.QUOTA),
    ("usage limit", FailureKind.QUOTA),
    ("spend limit", FailureKind.QUOTA),
    ("content filtering policy", FailureKind.CONTENT_POLICY),
)
_WORDED = frozenset({"invalid_request_error", "rate_limit_error", ""})

_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


# Compatible servers may write null where Anthropic omits the field.
class _Delta(Struct, gc=False):
    type: str = ""
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None


class _Block(Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    name: str | None = None
    id: str | None = None
    input: Any = None


class _Message(Struct, gc=False):
    usage: Any = None


class _Error(Struct, gc=False):
    type: str = ""
    message: str = ""


class _Event(Struct, gc=False):
    """All events in one: nothing of an unknown kind is used."""

    type: str = ""
    index: int = 0
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    usage: Any = None
    error: _Error | None = None


class _Refusal(Struct):
    error: _Error


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


_event = msgspec.json.Decoder(_Event)
_refusal = msgspec.json.Decoder(_Refusal)
_models = msgspec.json.Decoder(_Models)
_encode = msgspec.json.Encoder().encode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class AnthropicDialect:
    """The Anthropic Messages dialect."""

    base_url = "https://api.anthropic.com/v1"

    def authorised(self, key: str) -> Mapping[str, str]:
        """Return the headers with the key; a list of models requires the version as well."""
        return {"x-api-key": key, "anthropic-version": VERSION}

    def request(self, prompt: Prompt, target: ModelTarget) -> ProviderRequest:
        """Return the request for the model's next turn."""
        headers = {"anthropic-version": VERSION}
        return ProviderRequest(path="/messages", headers=headers, body=_encode(body_of(prompt, target)))

    def reader(self, prompt: Prompt, target: ModelTarget) -> "AnthropicReader":
        """Return the parser of the answer."""
        return AnthropicReader(prompt, target)

    def refused(self, status: int, headers: Mapping[str, str], body: bytes, target: ModelTarget) -> ProviderFailed:
        """Return the failure for an answer that is not a stream."""
        try:
            error = _refusal.decode(body).error
        except _UNREADABLE:
            return refusal(status, headers, body, target)
        # An error within an answer that had begun counts as a server error.
        kind = _kind(error, status if status >= 400 else 500)
        instead = refusal_text(status, kind)
        wait, refused = retry_after(headers), status >= 400
        return failure(target, kind, error.message, instead=instead, retry_after=wait, refused=refused)

    def model_card(self, model: str) -> ModelCard:
        """Return what is known about a model by its name."""
        if "claude" not in model:
            return ModelCard(
                window_tokens=32_000, max_output_tokens=4_096, tools="native", vision=False, reasoning=False
            )
        version = version_of(model)
        return ModelCard(
            window_tokens=1_000_000 if version >= (5, 0) else 200_000,
            max_output_tokens=_max_output_tokens(model, version),
            tools="native",
            vision=version >= (3, 0),
            reasoning=adapts(model),
        )

    def list_path(self) -> str:
        """Return the path of the list of models."""
        return "/models?limit=1000"

    def listed(self, body: bytes) -> list[str]:
        """Return the models of such a list, or raise `DecodeError`."""
        try:
            return sorted(model.id for model in _models.decode(body).data)
        except _UNREADABLE as error:
            raise msgspec.DecodeError("the response is not a list of models") from error


DIALECT = AnthropicDialect()


def _max_output_tokens(model: str, version: tuple[int, int]) -> int:
    if version < (3, 5):
        return 4_096
    if version < (3, 7):
        return 8_192
    if "opus" in model and version < (4, 5):
        return 32_000
    return 64_000 if version < (5, 0) or "haiku" in model else 128_000


def _kind(error: _Error, status: int) -> FailureKind:
    text = error.message.lower()
    for words, kind in _WORDS:
        if words in text and error.type in _WORDED:
            return kind
    return _KINDS.get(error.type) or kind_of(status, error.type, error.message)


class _Part:
    """A part of the answer that is still incomplete."""

    __slots__ = ("after", "draft", "input", "kind", "signature")

    def __init__(self, kind: str, after: tuple[int, int]) -> None:
        self.kind = kind
        self.after = after
        """After how many characters and calls it began."""
        self.signature = ""
        self.draft: PartialCall | None = None
        self.input: JsonObject = {}
        """The arguments that came with the start of a call. Usually there are none, and they come in pieces."""


class AnthropicReader:
    """Parses one answer."""

    def __init__(self, prompt: Prompt, target: ModelTarget) -> None:
        names = names_of(prompt)
        self._target = target
        self._answer = answer_tool(prompt, target, names)
        self._drafts = PartialCalls(target, names, prompt.tools)
        self._open: dict[int, _Part] = {}
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._stop: str | None = None
        self._chars = 0
        self._begun = self._done = False

    def feed(self, name: str, data: bytes) -> Iterable[ModelEvent]:
        """Parse one event."""
        try:
            event = _event.decode(data)
        except _UNREADABLE as error:
            if data.startswith(b"[DONE]"):
                return ()  # a proxy may end the answer as other APIs do
            raise failure(
                self._target, FailureKind.MALFORMED, why="it sent something that is not an event of an answer"
            ) from error
        if self._done:
            return ()
        delta = event.delta
        # By far the most frequent one first.
        if delta is not None and delta.text and delta.type == "text_delta":
            return self._text(delta.text)
        return self._take(event.type or name, event)

    def end(self) -> Iterable[ModelEvent]:
        """Return what is left: everything, if the last event came and only the end marker is missing."""
        if self._done:
            return ()
        if self._stop is None:
            raise failure(self._target, FailureKind.NETWORK, instead=BROKE_OFF)
        return self._finish()

    def _take(self, kind: str, event: _Event) -> Iterable[ModelEvent]:
        match kind:
            case "content_block_delta" if event.delta is not None:
                return self._add(event.index, event.delta)
            case "content_block_start" if event.content_block is not None:
                return self._begin(event.index, event.content_block)
            case "content_block_stop":
                return self._close(event.index)
            case "message_start":
                self._begun = True
                self._count(event.message.usage if event.message is not None else None)
            case "message_delta":
                self._count(event.usage)
                if event.delta is not None and event.delta.stop_reason is not None:
                    self._stop = event.delta.stop_reason
            case "message_stop":
                return self._finish()
            case "error":
                error = event.error or _Error()
                raise failure(self._target, _kind(error, 500), error.message, refused=not self._begun)
            case _:
                pass  # pings, and events that may be added in the future
        return ()

    def _text(self, text: str) -> Iterable[ModelEvent]:
        self._chars += len(text)
        return (TextDelta(text),)

    def _begin(self, index: int, block: _Block) -> Iterable[ModelEvent]:
        if len(self._open) >= MAX_PARTS:
            raise failure(self._target, FailureKind.MALFORMED, why="too many parts in one answer")
        part = self._open[index] = _Part(block.type, (self._chars, len(self._drafts.all)))
        match block.type:
            case "text" if block.text:
                return self._text(block.text)
            case "thinking":
                part.signature = block.signature or ""
                return (ReasoningDelta(block.thinking),) if block.thinking else ()
            case "redacted_thinking":
                part.signature = block.data or ""
            case "tool_use" if block.name != self._answer:
                part.draft = self._drafts.begin(block.id or "", block.name or "")
                part.input = block.input if isinstance(block.input, dict) else {}
            case _:
                pass
        return ()

    def _add(self, index: int, delta: _Delta) -> Iterable[ModelEvent]:
        part = self._open.get(index)
        if part is None:
            raise failure(self._target, FailureKind.MALFORMED, why="it continues a part that never began")
        match delta.type:
            case "thinking_delta" if delta.thinking:
                return (ReasoningDelta(delta.thinking),)
            case "signature_delta":
                part.signature += delta.signature or ""
            case "input_json_delta" if delta.partial_json:
                if part.draft is not None:
                    self._drafts.add(part.draft, delta.partial_json)
                elif part.kind == "tool_use":
                    return self._text(delta.partial_json)
            case _:
                pass
        return ()

    def _close(self, index: int) -> Iterable[ModelEvent]:
        part = self._open.pop(index, None)
        if part is not None and part.draft is not None and part.input and not part.draft.pieces:
            self._drafts.add(part.draft, _encode(part.input).decode())
        if part is None or part.kind not in ("thinking", "redacted_thinking"):
            return ()
        data: JsonObject = {"model": self._target.model}
        if part.signature:
            data["signature" if part.kind == "thinking" else "redacted"] = part.signature
        if part.after != (0, 0):
            data["after"] = list(part.after)
        return (ReasoningDelta("", NAME, data),)

    def _count(self, usage: Any) -> None:
        # Each count is cumulative. Some compatible servers begin with zeros.
        for name in _COUNTS:
            self._counts[name] = max(count(usage, name), self._counts[name])

    def _finish(self) -> Iterable[ModelEvent]:
        left = [event for index in list(self._open) for event in self._close(index)]
        calls = list(self._drafts.proposed())
        self._done = True
        stop = _STOPS.get(self._stop or "") or (StopReason.CALLS if calls else StopReason.END)
        return (*left, *calls, TurnDone(stop=stop, usage=self._used()))

    def _used(self) -> Usage:
        fresh, written, cached, made = (self._counts[name] for name in _COUNTS)
        return Usage(
            # Their count does not include cached tokens.
            input_tokens=fresh + cached + written,
            output_tokens=made,
            cached_tokens=cached,
            cache_write_tokens=written,
        )
