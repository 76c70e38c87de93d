"""OpenAI Chat Completions, for OpenAI and for Ollama, vLLM, llama.cpp, LM Studio, OpenRouter, DeepSeek and others.

Where these differ the reader accepts every form: reasoning in `reasoning_content` or `reasoning`, calls without index
or id or complete in one piece, a message instead of deltas, usage in a last chunk without choices, an end without
`[DONE]`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from palyra.core.model.catalog import ModelCard
from palyra.core.model.prompt import ModelEvent, Prompt, ReasoningDelta, StopReason, TextDelta, TurnDone
from palyra.core.spending.usage import Usage
from palyra.core.tool import JsonObject
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.dialect import AnswerReader, ModelTarget, ProviderRequest
from palyra.providers.dialects.openai_models import model_card
from palyra.providers.dialects.openai_request import NAME, body_of, thinker
from palyra.providers.dialects.partial_calls import MAX_CHARS, PartialCall, PartialCalls, names_of
from palyra.providers.dialects.thought_tags import ThoughtTags
from palyra.providers.dialects.usage_counts import count, made, part_of
from palyra.providers.failures import BROKE_OFF, error_in, error_words, failure, kind_of_error, refusal
from palyra.providers.tool_calls import read_arguments

MAX_DETAILS = 1000
MAX_NAME_CHARS = 1000

_STOPS = {
    "stop": StopReason.END,
    "length": StopReason.LENGTH,
    "tool_calls": StopReason.CALLS,
    "function_call": StopReason.CALLS,
    "content_filter": StopReason.REFUSED,
    "sensitive": StopReason.REFUSED,
    "max_tokens": StopReason.LENGTH,
    "model_length": StopReason.LENGTH,
    "model_context_window_exceeded": StopReason.LENGTH,
}
"""OpenAI's own values, and those of others."""
_GAVE_UP = frozenset({"error", "network_error", "insufficient_system_resource", "abort"})
"""Server errors that are reported as a finish reason."""


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: str | JsonObject | None = None


class _Call(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct, gc=False):
    content: str | list[JsonObject] | None = None
    tool_calls: list[_Call] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[JsonObject] | None = None
    refusal: str | None = None


class _Choice(Struct, gc=False):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: str | JsonObject | None = None


HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream"}

_decode = msgspec.json.Decoder(_Chunk).decode
_encode = msgspec.json.Encoder().encode


class OpenAiDialect:
    """The OpenAI Chat Completions dialect."""

    base_url = "https://api.openai.com/v1"

    def authorised(self, key: str) -> Mapping[str, str]:
        """Return the headers with the key."""
        return {"Authorization": f"Bearer {key}"}

    def request(self, prompt: Prompt, target: ModelTarget) -> ProviderRequest:
        """Return the request for the model's next turn."""
        return ProviderRequest(path="/chat/completions", headers=HEADERS, body=_encode(body_of(prompt, target)))

    def reader(self, prompt: Prompt, target: ModelTarget) -> AnswerReader:
        """Return the parser of the answer."""
        return OpenAiReader(prompt, target)

    def refused(self, status: int, headers: Mapping[str, str], body: bytes, target: ModelTarget) -> ProviderFailed:
        """Return the failure for an answer that is not a stream."""
        return refusal(status, headers, body, target)

    def model_card(self, model: str) -> ModelCard:
        """Return what is known about a model by its name."""
        return model_card(model)

    def list_path(self) -> str:
        """Return the path of the list of models."""
        return "/models"

    def listed(self, body: bytes) -> list[str]:
        """Return the models of such a list."""
        result = _list.decode(body)
        # Together sends a bare list, and an Ollama without models none at all.
        models = result if isinstance(result, list) else result.data or ()
        return sorted({model.id for model in models})


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model] | None


_list = msgspec.json.Decoder(_Models | list[_Model])


class OpenAiReader:
    """Parses one answer."""

    def __init__(self, prompt: Prompt, target: ModelTarget) -> None:
        self._target = target
        self._by = thinker(target)
        self._drafts = PartialCalls(target, names_of(prompt), prompt.tools)
        self._by_index: dict[int, PartialCall] = {}
        self._thinks = ""
        """The field of the current reasoning; empty if there is none."""
        self._tags = ThoughtTags()
        self._thought_once = False
        self._details: list[_Detail] = []
        self._details_chars = 0
        self._finish: str | None = None
        self._in_pieces = False
        self._declined = False
        self._usage = Usage()
        self._over = False

    def feed(self, name: str, data: bytes) -> Iterable[ModelEvent]:
        """Parse one event."""
        if data.startswith(b"[DONE]"):
            return self._done()
        if name == "error":
            raise self._failed(*(error_in(data) or ("", "")))
        chunk = _decode(data)
        choices = chunk.choices
        if choices and chunk.usage is None and chunk.error is None:
            choice = choices[0]
            delta = choice.delta
            # Nearly every chunk is a few letters of text, and nothing else.
            if (
                delta is not None
                and type(delta.content) is str
                and choice.finish_reason is None
                and self._tags.over
                and not self._thinks
                and delta.tool_calls is None
                and delta.reasoning is None
                and delta.reasoning_content is None
                and delta.reasoning_details is None
            ):
                return (TextDelta(delta.content),) if delta.content else ()
        return list(self._chunk_events(chunk))

    def end(self) -> Iterable[ModelEvent]:
        """Return what is left; an answer with a finish reason is complete even without `[DONE]`."""
        if self._over:
            return ()
        if self._finish is None:
            raise failure(self._target, FailureKind.NETWORK, instead=BROKE_OFF)
        return self._done()

    def _chunk_events(self, chunk: _Chunk) -> Iterator[ModelEvent]:
        if chunk.error:
            raise self._failed(*(error_words({"error": chunk.error}) or ("", "")))
        if chunk.usage is not None:
            self._usage = _usage(chunk.usage)
        for choice in chunk.choices or ():
            if choice.delta is not None:
                self._in_pieces = True
                yield from self._delta(choice.delta)
            elif choice.message is not None and not self._in_pieces:
                yield from self._delta(choice.message)
            if choice.finish_reason != "null":
                self._finish = choice.finish_reason or self._finish

    def _failed(self, message: str, code: str) -> ProviderFailed:
        return failure(self._target, kind_of_error(message, code), message or code, why="no reason given")

    def _delta(self, delta: _Delta) -> Iterator[ModelEvent]:
        if delta.reasoning_details:
            self._add_details(delta.reasoning_details)
        thought = delta.reasoning_content if delta.reasoning_content is not None else delta.reasoning
        # An empty field counts once: some servers send it with every chunk.
        if thought or (thought is not None and not self._thought_once):
            self._thinks = "reasoning" if delta.reasoning_content is None else "reasoning_content"
            if thought:
                yield ReasoningDelta(thought)
        if isinstance(delta.content, list):
            yield from self._parts(delta.content)
        elif delta.content:
            yield from self._thought()
            yield from self._tags.take(delta.content)
        if delta.refusal:
            self._declined = True
            yield TextDelta(delta.refusal)
        for call in delta.tool_calls or ():
            yield from self._thought()
            self._call(call)

    def _parts(self, parts: list[JsonObject]) -> Iterator[ModelEvent]:
        """Parse content in typed parts, as Mistral sends it."""
        for part in parts:
            if part.get("type") == "thinking":
                inner = part.get("thinking")
                texts = [one.get("text") for one in inner if isinstance(one, dict)] if isinstance(inner, list) else []
                sent_text = "".join(text for text in texts if isinstance(text, str))
                if sent_text:
                    yield ReasoningDelta(sent_text)
            elif isinstance(part.get("text"), str) and part["text"]:
                yield TextDelta(part["text"])

    def _thought(self) -> Iterator[ModelEvent]:
        """End the current reasoning, with what must be sent back."""
        if self._thinks and not self._details:
            self._thought_once = True
            yield ReasoningDelta(dialect=NAME, data={"field": self._thinks, "by": self._by})
        self._thinks = ""

    def _add_details(self, details: list[JsonObject]) -> None:
        """Join the pieces of OpenRouter's reasoning details: they are sent back unchanged."""
        for detail in details:
            last = self._details[-1] if self._details else None
            if last is None or any(last.rest.get(name) != detail.get(name) for name in ("type", "index", "id")):
                last = _Detail()
                self._details.append(last)
            self._details_chars += last.add(detail)
        if len(self._details) > MAX_DETAILS or self._details_chars > MAX_CHARS:
            raise failure(self._target, FailureKind.MALFORMED, why="the reasoning is too long")

    def _call(self, call: _Call) -> None:
        function = call.function or _Function()
        draft = self._draft(call, function)
        if function.name and draft.name != function.name:
            # A name may come in pieces too, but not after the arguments have begun.
            draft.name = function.name if draft.pieces else draft.name + function.name
            if len(draft.name) > MAX_NAME_CHARS:
                raise failure(self._target, FailureKind.MALFORMED, why="the tool name is too long")
        if isinstance(function.arguments, dict):
            self._drafts.add(draft, _encode(function.arguments).decode())
        elif function.arguments:
            self._drafts.add(draft, function.arguments)

    def _draft(self, call: _Call, function: _Function) -> PartialCall:
        """Return the call that a piece belongs to. Some servers give every call the index 0, others none at all."""
        all_ = self._drafts.all
        if call.index is not None:
            draft = self._by_index.get(call.index)
        else:
            same = (one for one in all_ if call.id and one.call_id == call.id)
            draft = next(same, all_[-1] if all_ else None)
        if draft is not None and not _begins(call, function, draft):
            draft.call_id = draft.call_id or call.id or ""
            return draft
        draft = self._drafts.begin(call.id or "")
        if call.index is not None:
            self._by_index[call.index] = draft
        return draft

    def _done(self) -> Iterable[ModelEvent]:
        if self._over:
            return ()
        self._over = True
        if self._finish in _GAVE_UP:
            raise failure(self._target, FailureKind.UNAVAILABLE, why="its answer ended in an error")
        events: list[ModelEvent] = [*self._thought(), *self._tags.rest()]
        if self._details:
            details = [detail.whole() for detail in self._details]
            data = {"field": "reasoning_details", "details": details, "by": self._by}
            events.append(ReasoningDelta(dialect=NAME, data=data))
        calls = list(self._drafts.proposed())
        stop = _STOPS.get(self._finish or "", StopReason.END)
        if self._declined:
            stop = StopReason.REFUSED
        elif calls and stop is StopReason.END:
            # Many say `stop` after calls as well.
            stop = StopReason.CALLS
        elif not calls and stop is StopReason.CALLS:
            stop = StopReason.END
        return [*events, *calls, TurnDone(stop=stop, usage=self._usage)]


class _Detail:
    """A reasoning detail whose text comes in pieces."""

    def __init__(self) -> None:
        self.rest: JsonObject = {}
        self._pieces: dict[str, list[str]] = {}

    def add(self, piece: JsonObject) -> int:
        """Add a piece, and return its size."""
        for name, value in piece.items():
            if name in ("text", "summary", "data") and isinstance(value, str):
                self._pieces.setdefault(name, []).append(value)
            elif value is not None or name not in self.rest:
                self.rest[name] = value
        return sum(len(value) for value in piece.values() if isinstance(value, str))

    def whole(self) -> JsonObject:
        return {**self.rest, **{name: "".join(pieces) for name, pieces in self._pieces.items()}}


def _begins(call: _Call, function: _Function, draft: PartialCall) -> bool:
    """Return whether a piece begins a new call rather than continue the last."""
    if call.id and draft.call_id and call.id != draft.call_id:
        # Some servers give every piece its own id; but only a call that begins has a name.
        return bool(function.name)
    # Without ids: a name after complete arguments.
    return bool(function.name and not call.id and draft.pieces and not read_arguments(draft.text)[1])


def _usage(usage: Any) -> Usage:
    # DeepSeek has its own name for the cached tokens.
    cached = part_of(usage, "prompt_tokens_details", "cached_tokens") or max(0, count(usage, "prompt_cache_hit_tokens"))
    requested = count(usage, "prompt_tokens")
    answer, thoughts = made(
        usage, requested=requested, full_text="completion_tokens", details="completion_tokens_details"
    )
    return Usage(input_tokens=requested, output_tokens=answer, cached_tokens=cached, reasoning_tokens=thoughts)


DIALECT = OpenAiDialect()
