"""OpenAI Responses. Nothing is stored at the provider: every request is complete, with the reasoning of earlier turns.

Hidden reasoning of a model comes encrypted, and is sent back unchanged, so that the model need not repeat it.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from palyra.core.model.prompt import ModelEvent, Prompt, ReasoningDelta, StopReason, TextDelta, TurnDone
from palyra.core.spending.usage import Usage
from palyra.core.tool import JsonObject
from palyra.providers.base import ProviderFailed
from palyra.providers.dialect import AnswerReader, ModelTarget, ProviderRequest
from palyra.providers.dialects.openai import HEADERS, OpenAiDialect
from palyra.providers.dialects.openai_request import thinker
from palyra.providers.dialects.partial_calls import PartialCall, PartialCalls, names_of
from palyra.providers.dialects.responses_request import NAME, body_of
from palyra.providers.dialects.usage_counts import count, made, part_of
from palyra.providers.failures import error_words, failure, kind_of_error

_CUT_SHORT = {"max_output_tokens": StopReason.LENGTH, "content_filter": StopReason.REFUSED}


class _Item(Struct, gc=False):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    encrypted_content: str | None = None
    summary: list[JsonObject] | None = None
    content: list[JsonObject] | None = None


class _Incomplete(Struct, gc=False):
    reason: str | None = None


class _Response(Struct, gc=False):
    output: list[_Item] | None = None
    usage: Any = None
    error: str | JsonObject | None = None
    incomplete_details: _Incomplete | None = None


class _Event(Struct, gc=False):
    type: str = ""
    delta: str | JsonObject | None = None
    item_id: str | None = None
    output_index: int | None = None
    summary_index: int | None = None
    item: _Item | None = None
    arguments: str | None = None
    response: _Response | None = None
    error: str | JsonObject | None = None
    message: str | None = None
    code: str | int | None = None


_decode = msgspec.json.Decoder(_Event).decode


class ResponsesDialect(OpenAiDialect):
    """The OpenAI Responses dialect: other requests and answers of the same servers."""

    def request(self, prompt: Prompt, target: ModelTarget) -> ProviderRequest:
        """Return the request for the model's next turn."""
        return ProviderRequest(path="/responses", headers=HEADERS, body=msgspec.json.encode(body_of(prompt, target)))

    def reader(self, prompt: Prompt, target: ModelTarget) -> AnswerReader:
        """Return the parser of the answer."""
        return ResponsesReader(prompt, target)


class ResponsesReader:
    """Parses one answer."""

    def __init__(self, prompt: Prompt, target: ModelTarget) -> None:
        self._target = target
        self._drafts = PartialCalls(target, names_of(prompt), prompt.tools)
        self._by_item: dict[str, PartialCall] = {}
        self._stops = _Stops(prompt.options.stop) if prompt.options.stop else None
        self._spoke = False
        """It sends its messages in pieces."""
        self._said = False
        """It has sent a message at once."""
        self._sealed = False
        """It has sent encrypted reasoning."""
        self._declined = False
        self._over = False

    def feed(self, name: str, data: bytes) -> Iterable[ModelEvent]:
        """Parse one event."""
        if data.startswith(b"[DONE]"):
            return ()
        event = _decode(data)
        # Nearly every event is a few letters of text.
        if event.type == "response.output_text.delta" and type(event.delta) is str:
            self._spoke = True
            return (TextDelta(event.delta),) if self._stops is None else self._until_stop(self._stops, event.delta)
        return self._other(event)

    def end(self) -> Iterable[ModelEvent]:
        """Return what is left: nothing, since an answer always reports how it ended."""
        return ()

    def _other(self, event: _Event) -> Iterable[ModelEvent]:
        match event.type:
            case "response.refusal.delta" if isinstance(event.delta, str):
                self._spoke = self._declined = True
                return (TextDelta(event.delta),)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return (ReasoningDelta(event.delta),) if isinstance(event.delta, str) else ()
            case "response.reasoning_summary_part.added" if event.summary_index:
                return (ReasoningDelta("\n\n"),)
            case "response.output_item.added" if event.item is not None and event.item.type == "function_call":
                self._draft(event, event.item)
            case "response.function_call_arguments.delta" if isinstance(event.delta, str):
                self._drafts.add(self._draft(event), event.delta)
            case "response.function_call_arguments.done" if event.arguments:
                self._drafts.settle(self._draft(event), event.arguments)
            case "response.output_item.done" if event.item is not None:
                return self._item(event, event.item)
            case "response.completed" | "response.incomplete":
                return self._done(event.response or _Response(), cut=event.type == "response.incomplete")
            case "response.failed" | "response.cancelled" | "error":
                raise self._failed(event)
            case _:
                pass  # unknown kinds of events are ignored
        return ()

    def _item(self, event: _Event, item: _Item) -> Iterable[ModelEvent]:
        """Parse a complete item."""
        if item.type == "function_call":
            draft = self._draft(event, item)
            if item.arguments:
                self._drafts.settle(draft, item.arguments)
        elif item.type == "reasoning":
            return self._thought(item)
        elif item.type == "message" and not self._spoke:
            return self._message(item)
        return ()

    def _message(self, item: _Item) -> Iterator[ModelEvent]:
        """Yield a message that did not come in pieces."""
        for part in item.content or ():
            self._declined = self._declined or bool(part.get("refusal"))
            if text := _text(part):
                self._said = True
                yield from (TextDelta(text),) if self._stops is None else self._until_stop(self._stops, text)

    def _thought(self, item: _Item) -> Iterator[ModelEvent]:
        """End a reasoning block, with what the model must get back."""
        if item.encrypted_content:
            self._sealed = True
            sealed = {"encrypted_content": item.encrypted_content, "summary": item.summary or []}
            yield ReasoningDelta(dialect=NAME, data={**sealed, "by": thinker(self._target)})

    def _draft(self, event: _Event, item: _Item | None = None) -> PartialCall:
        """Return the call that an event is about, by its item or by its index.

        Some servers give an item another id in every event, and others give every item the same index.
        """
        key = event.item_id or (item.id if item is not None else None) or ""
        location = f"at {event.output_index}"
        draft = self._by_item.get(key) if key else None
        if draft is None:
            draft = self._by_item.get(location)
            if draft is None or (item is not None and item.call_id and draft.call_id not in ("", item.call_id)):
                draft = self._by_item[key or location] = self._drafts.begin()
            self._by_item[location] = draft
        if item is not None:
            draft.call_id = item.call_id or draft.call_id
            draft.name = item.name or draft.name
        return draft

    def _done(self, response: _Response, *, cut: bool) -> Iterator[ModelEvent]:
        if self._over:
            return
        self._over = True
        # Some servers send the items only here.
        cached = {"message": self._said, "reasoning": self._sealed}
        for index, item in enumerate(response.output or ()):
            has_come = self._is_known(item) if item.type == "function_call" else cached.get(item.type, False)
            if not has_come:
                yield from self._item(_Event(output_index=index), item)
        if self._stops is not None and (rest := self._stops.rest()):
            yield TextDelta(rest)
        calls = list(self._drafts.proposed())
        yield from calls
        yield TurnDone(stop=self._stop(response, calls=bool(calls), cut=cut), usage=_usage(response.usage))

    def _is_known(self, item: _Item) -> bool:
        """Whether a call has come before."""
        return item.id in self._by_item or any(draft.call_id == item.call_id for draft in self._drafts.all)

    def _stop(self, response: _Response, *, calls: bool, cut: bool) -> StopReason:
        why = response.incomplete_details.reason if response.incomplete_details is not None else None
        if why or cut:
            return _CUT_SHORT.get(why or "", StopReason.LENGTH)
        if self._declined:
            return StopReason.REFUSED
        return StopReason.CALLS if calls else StopReason.END

    def _failed(self, event: _Event) -> ProviderFailed:
        error = event.error or (event.response.error if event.response is not None else None)
        if error is None:
            error = {"message": event.message or "", "code": event.code}
        message, code = error_words({"error": error}) or ("", "")
        return failure(self._target, kind_of_error(message, code), message or code, why="no reason given")

    def _until_stop(self, stops: "_Stops", text: str) -> Iterator[ModelEvent]:
        """Yield the text up to the caller's stop sequence: this dialect does not support them."""
        if sent_text := stops.take(text):
            yield TextDelta(sent_text)
        if stops.met and not self._over:
            self._over = True
            yield TurnDone(stop=StopReason.END, usage=Usage())


class _Stops:
    """Searches for stop sequences."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = max((len(stop) for stop in self._stops), default=1) - 1
        """How much is held back, since a stop sequence may have begun in it."""
        self._tail = ""
        self.met = False

    def take(self, text: str) -> str:
        """Return the text that can be sent by now."""
        if self.met:
            return ""
        text = self._tail + text
        positions = [position for stop in self._stops if (position := text.find(stop)) >= 0]
        if positions:
            self.met, self._tail = True, ""
            return text[: min(positions)]
        keep = len(text) - self._held if self._held else len(text)
        keep = max(0, keep)
        self._tail = text[keep:]
        return text[:keep]

    def rest(self) -> str:
        """Return the text that was held back, at the end of the answer."""
        rest, self._tail = self._tail, ""
        return rest


def _text(part: JsonObject) -> str:
    text = part.get("text") or part.get("refusal")
    return text if isinstance(text, str) else ""


def _usage(usage: Any) -> Usage:
    requested = count(usage, "input_tokens")
    answer, thoughts = made(usage, requested=requested, full_text="output_tokens", details="output_tokens_details")
    cached = part_of(usage, "input_tokens_details", "cached_tokens")
    return Usage(input_tokens=requested, output_tokens=answer, cached_tokens=cached, reasoning_tokens=thoughts)


DIALECT = ResponsesDialect()
