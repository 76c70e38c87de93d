"""OpenAI Responses. Nothing is kept at the provider: every turn is sent whole, with the thoughts that led to it.

The thoughts of a model that are not shown to anybody come sealed, and go back as they came, so that it need not think
them again.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from palyra.core.model import ModelCard
from palyra.core.prompt import ModelEvent, Prompt, ReasoningDelta, StopReason, TextDelta, TurnDone
from palyra.core.tool import JsonObject
from palyra.core.usage import Usage
from palyra.providers.base import ProviderFailed
from palyra.providers.counts import count, made, part_of
from palyra.providers.dialect import Request, Target
from palyra.providers.draft import Draft, Drafts, names_of
from palyra.providers.failure import error_words, failure, kind_of_error, refusal
from palyra.providers.openai import DIALECT as CHAT
from palyra.providers.openai_body import thinker
from palyra.providers.openai_models import known
from palyra.providers.responses_body import NAME, body_of

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


class Responses:
    """The dialect."""

    base_url = "https://api.openai.com/v1"

    def authorised(self, key: str) -> Mapping[str, str]:
        """Return the headers that carry the key."""
        return {"Authorization": f"Bearer {key}"}

    def request(self, prompt: Prompt, target: Target) -> Request:
        """Return what asks the model for its next turn."""
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        return Request(path="/responses", headers=headers, body=msgspec.json.encode(body_of(prompt, target)))

    def reader(self, prompt: Prompt, target: Target) -> "ResponsesReader":
        """Return who reads the answer to it."""
        return ResponsesReader(prompt, target)

    def refused(self, status: int, headers: Mapping[str, str], body: bytes, target: Target) -> ProviderFailed:
        """Say what an answer means that is no stream."""
        return refusal(status, headers, body, target)

    def known(self, model: str) -> ModelCard:
        """Return what is known of a model by its name."""
        return known(model)

    def list_path(self) -> str:
        """Return where the provider lists its models."""
        return CHAT.list_path()

    def listed(self, body: bytes) -> list[str]:
        """Return the models of such a list."""
        return CHAT.listed(body)


class ResponsesReader:
    """Reads one answer."""

    def __init__(self, prompt: Prompt, target: Target) -> None:
        self._target = target
        self._drafts = Drafts(target, names_of(prompt), prompt.tools)
        self._by_item: dict[str, Draft] = {}
        self._stops = _Stops(prompt.options.stop) if prompt.options.stop else None
        self._spoke = False
        """It says its messages in pieces."""
        self._said = False
        """It has said one at once."""
        self._sealed = False
        """It has sent a sealed thought."""
        self._declined = False
        self._over = False

    def feed(self, name: str, data: bytes) -> Iterable[ModelEvent]:
        """Take in one event."""
        if data.startswith(b"[DONE]"):
            return ()
        event = _decode(data)
        # Nearly every event is a few letters of text.
        if event.type == "response.output_text.delta" and type(event.delta) is str:
            self._spoke = True
            return (TextDelta(event.delta),) if self._stops is None else self._until_stop(self._stops, event.delta)
        return self._other(event)

    def end(self) -> Iterable[ModelEvent]:
        """Say what is left: nothing, for an answer always says how it ended."""
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
                pass  # what a new kind of event says can wait for those who know it
        return ()

    def _item(self, event: _Event, item: _Item) -> Iterable[ModelEvent]:
        """Take in an item that is whole."""
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
        """Say a message that came in no pieces."""
        for part in item.content or ():
            self._declined = self._declined or bool(part.get("refusal"))
            if text := _text(part):
                self._said = True
                yield from (TextDelta(text),) if self._stops is None else self._until_stop(self._stops, text)

    def _thought(self, item: _Item) -> Iterator[ModelEvent]:
        """End a thought, with what the model is to be shown again of it."""
        if item.encrypted_content:
            self._sealed = True
            sealed = {"encrypted_content": item.encrypted_content, "summary": item.summary or []}
            yield ReasoningDelta(dialect=NAME, data={**sealed, "by": thinker(self._target)})

    def _draft(self, event: _Event, item: _Item | None = None) -> Draft:
        """Return the call that an event is about, by its item or by its place.

        Some servers give an item another id in every event, and others give every item the same place.
        """
        key = event.item_id or (item.id if item is not None else None) or ""
        place = f"at {event.output_index}"
        draft = self._by_item.get(key) if key else None
        if draft is None:
            draft = self._by_item.get(place)
            if draft is None or (item is not None and item.call_id and draft.call_id not in ("", item.call_id)):
                draft = self._by_item[key or place] = self._drafts.begin()
            self._by_item[place] = draft
        if item is not None:
            draft.call_id = item.call_id or draft.call_id
            draft.name = item.name or draft.name
        return draft

    def _done(self, response: _Response, *, cut: bool) -> Iterator[ModelEvent]:
        if self._over:
            return
        self._over = True
        # Some servers send the items only here.
        known = {"message": self._said, "reasoning": self._sealed}
        for place, item in enumerate(response.output or ()):
            has_come = self._is_known(item) if item.type == "function_call" else known.get(item.type, False)
            if not has_come:
                yield from self._item(_Event(output_index=place), item)
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
        return failure(self._target, kind_of_error(message, code), message or code, why="it gives no reason")

    def _until_stop(self, stops: "_Stops", text: str) -> Iterator[ModelEvent]:
        """Yield the text up to where the caller wants it to end: this dialect does not know of such places."""
        if said := stops.take(text):
            yield TextDelta(said)
        if stops.met and not self._over:
            self._over = True
            yield TurnDone(stop=StopReason.END, usage=Usage())


class _Stops:
    """Looks for the texts at which an answer ends."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = max((len(stop) for stop in self._stops), default=1) - 1
        """How much is held back, since a stop may have begun in it."""
        self._tail = ""
        self.met = False

    def take(self, text: str) -> str:
        """Return what may be said by now."""
        if self.met:
            return ""
        text = self._tail + text
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.met, self._tail = True, ""
            return text[: min(places)]
        keep = len(text) - self._held if self._held else len(text)
        keep = max(0, keep)
        self._tail = text[keep:]
        return text[:keep]

    def rest(self) -> str:
        """Return what was held back, once nothing more comes."""
        rest, self._tail = self._tail, ""
        return rest


def _text(part: JsonObject) -> str:
    text = part.get("text") or part.get("refusal")
    return text if isinstance(text, str) else ""


def _usage(usage: Any) -> Usage:
    asked = count(usage, "input_tokens")
    answer, thoughts = made(usage, asked=asked, whole="output_tokens", details="output_tokens_details")
    cached = part_of(usage, "input_tokens_details", "cached_tokens")
    return Usage(input_tokens=asked, output_tokens=answer, cached_tokens=cached, reasoning_tokens=thoughts)


DIALECT = Responses()
