"""Tool use for models that have no tool calls of their own: `tools = "schema"` in a model's table.

It stands before any provider that can hold a model to a JSON Schema. The model is told of the tools in words, and must
write either a call or an answer, as JSON. Earlier calls and results are shown to it as it would have written and
received them.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, cast

import msgspec

from palyra.core.prompt import (
    CallProposed,
    Choice,
    Message,
    ModelEvent,
    Options,
    Prompt,
    Role,
    StopReason,
    TextDelta,
    TurnDone,
)
from palyra.core.tool import JsonObject
from palyra.providers.base import FailureKind, Provider, ProviderFailed
from palyra.providers.calls import call_id
from palyra.providers.constrained_reader import Answered, BrokenOff, Chosen, Malformed, Reading
from palyra.providers.constrained_tools import Told, form, tell

TOOLS_SHARE = 4
"""One part in so many of the window is for what is told of tools."""
MOST_CHARS = 4 * 1024 * 1024
"""Of what a model may write in a turn."""
NO_RESULT = "There is no result."

log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode


class Constrained:
    """A model that is made to call tools."""

    def __init__(self, inner: Provider) -> None:
        self._inner = inner
        self.name = inner.name
        self.model = inner.model
        self.capabilities = msgspec.structs.replace(inner.capabilities, tools=True)
        self._said_left_out: frozenset[str] = frozenset()

    async def stream(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        """Ask the model for a call or an answer."""
        told = self._tell(prompt)
        if not told.tools:
            # It answers in words of its own.
            async with _events(self._inner, _without_tools(prompt)) as events:
                async for event in events:
                    yield event
            return
        reading, until, written = Reading(), _Until(prompt.options.stop), 0
        async with _events(self._inner, _with_tools(prompt, told)) as events:
            async for event in events:
                match event:
                    case TextDelta():
                        # Of a call nothing is told before it is whole, so that nobody else sees how long it grows.
                        written += len(event.text)
                        if written > MOST_CHARS:
                            raise self._malformed("it has no end")
                        if text := until.cut(reading.feed(event.text)):
                            yield TextDelta(text)
                    case TurnDone():
                        for last in self._ended(prompt, reading, until, event):
                            yield last
                    case _:
                        yield event

    def _ended(self, prompt: Prompt, reading: Reading, until: "_Until", done: TurnDone) -> Iterator[ModelEvent]:
        if done.stop is StopReason.REFUSED:
            yield done
            return
        try:
            match reading.end():
                case Answered(rest):
                    if text := until.cut(rest) + until.rest():
                        yield TextDelta(text)
                    yield TurnDone(stop=StopReason.END, usage=done.usage)
                case Chosen(tool, arguments, malformed):
                    yield CallProposed(call_id=call_id(prompt, 0), tool=tool, arguments=arguments, malformed=malformed)
                    yield TurnDone(stop=StopReason.CALLS, usage=done.usage)
        except BrokenOff as error:
            if done.stop is not StopReason.LENGTH:
                raise self._malformed(f"{error}") from error
            if not reading.tells:
                raise self._malformed("it was cut off at its greatest length within the call of a tool") from error
            # An answer that is cut off is an answer as far as it goes, as with any model.
            if text := until.rest():
                yield TextDelta(text)
            yield done
        except Malformed as error:
            raise self._malformed(f"{error}") from error

    def _malformed(self, why: str) -> ProviderFailed:
        return ProviderFailed(
            f"What {self.model} of {self.name} wrote can not be used, {why}: try again, or choose a model that calls"
            " tools by itself.",
            kind=FailureKind.MALFORMED,
            is_well=True,
        )

    def _tell(self, prompt: Prompt) -> Told:
        choice = prompt.options.choice
        if not prompt.tools or choice is Choice.NONE:
            return Told("", (), ())
        used = frozenset(call.tool for message in prompt.messages for call in message.calls)
        tokens = self.capabilities.window_tokens // TOOLS_SHARE
        told = tell(prompt.tools, tokens=tokens, used=used, must=choice is Choice.REQUIRED)
        if told.left_out and self._said_left_out != frozenset(told.left_out):
            # Once, and not with each turn.
            self._said_left_out = frozenset(told.left_out)
            log.warning(
                "%s of %s is not told of %d tools, since its window of %d tokens has no room for them: %s",
                self.model,
                self.name,
                len(told.left_out),
                self.capabilities.window_tokens,
                ", ".join(told.left_out),
            )
        return told


class _Until:
    """Ends a text where one of the caller's words to stop at begins. The model itself writes its form to the end."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = tuple(word for word in words if word)
        self._keeps = max((len(word) for word in self._words), default=1) - 1
        self._held = ""
        self._is_over = False

    def cut(self, text: str) -> str:
        """Return what can be told of a further piece: its end may be the beginning of such a word."""
        if self._is_over:
            return ""
        self._held += text
        ends = [at for word in self._words if (at := self._held.find(word)) >= 0]
        if ends:
            self._is_over = True
            told, self._held = self._held[: min(ends)], ""
            return told
        safe = max(0, len(self._held) - self._keeps)
        told, self._held = self._held[:safe], self._held[safe:]
        return told

    def rest(self) -> str:
        """Return what was held back."""
        told, self._held = self._held, ""
        return told


def _with_tools(prompt: Prompt, told: Told) -> Prompt:
    options = prompt.options
    answer = None if options.choice is Choice.REQUIRED else options.schema or {"type": "string"}
    return msgspec.structs.replace(
        prompt,
        system="\n\n".join(part for part in (prompt.system, told.text) if part),
        tools=(),
        messages=tuple(_alternating(_plain(prompt.messages, framed=True))),
        options=_options(options, schema=form(told.tools, answer=answer), stop=()),
    )


def _without_tools(prompt: Prompt) -> Prompt:
    return msgspec.structs.replace(
        prompt,
        tools=(),
        messages=tuple(_alternating(_plain(prompt.messages, framed=False))),
        options=_options(prompt.options),
    )


def _options(options: Options, **changes: Any) -> Options:
    return msgspec.structs.replace(options, choice=Choice.AUTO, **changes)


def _plain(messages: tuple[Message, ...], *, framed: bool) -> Iterator[Message]:
    """Tell a conversation without calls: each stands with its result, whenever that came.

    If the model is to write in the form, it is shown its own words in it. If not, it would only go on in that manner,
    so calls are told to it.
    """
    results = {message.call_id: message for message in messages if message.role is Role.TOOL}
    for message in messages:
        match message.role:
            case Role.USER:
                yield message
            case Role.ASSISTANT:
                if message.text:
                    yield _said({"answer": message.text}) if framed else Message(role=Role.ASSISTANT, text=message.text)
                for call in message.calls:
                    result = results.get(call.call_id)
                    text, images = (result.text, result.images) if result is not None else (NO_RESULT, ())
                    if framed:
                        yield _said({"tool": call.tool, "arguments": call.arguments})
                        told = f"Result of {call.tool}:\n{text}"
                    else:
                        told = f"Result of {call.tool} with {_encode(call.arguments).decode()}:\n{text}"
                    yield Message(role=Role.USER, text=told, images=images)
            case Role.TOOL:
                continue


def _said(value: JsonObject) -> Message:
    return Message(role=Role.ASSISTANT, text=_encode(value).decode())


def _alternating(messages: Iterator[Message]) -> Iterator[Message]:
    """Join what the same one says: many models insist on taking turns."""
    last: Message | None = None
    for message in messages:
        if last is not None and last.role is message.role:
            text = "\n\n".join(part for part in (last.text, message.text) if part)
            last = msgspec.structs.replace(last, text=text, images=(*last.images, *message.images))
            continue
        if last is not None:
            yield last
        last = message
    if last is not None:
        yield last


def _events(provider: Provider, prompt: Prompt) -> "aclosing[AsyncGenerator[ModelEvent]]":
    # The port says that it is a generator; what was opened for an answer is closed with it.
    return aclosing(cast("AsyncGenerator[ModelEvent]", provider.stream(prompt)))
