"""Tool calls for models without native tool calls: `tools = "schema"` in a model's table.

It wraps any provider that can constrain a model by a JSON Schema. The tools are described in the prompt, and the model
must write either a call or an answer, as JSON. Earlier calls and results are shown in the same form.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, cast

import msgspec

from palyra.core.model.prompt import (
    CallProposed,
    GenerationOptions,
    Message,
    ModelEvent,
    Prompt,
    Role,
    StopReason,
    TextDelta,
    ToolChoice,
    TurnDone,
)
from palyra.core.tool import JsonObject
from palyra.providers.base import FailureKind, Provider, ProviderFailed
from palyra.providers.emulated_tools.prompt import ToolInstructions, describe_tools, output_schema
from palyra.providers.emulated_tools.reader import (
    ConstrainedReader,
    OutputMalformed,
    OutputTruncated,
    TextAnswer,
    ToolChosen,
)
from palyra.providers.tool_calls import call_id

TOOLS_SHARE = 4
"""The share of the window for the description of tools: one part in this many."""
MAX_CHARS = 4 * 1024 * 1024
"""The maximum output of a turn."""
NO_RESULT = "There is no result."

log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode


class EmulatedToolsProvider:
    """A model with emulated tool calls."""

    def __init__(self, inner: Provider) -> None:
        self._inner = inner
        self.name = inner.name
        self.model = inner.model
        self.capabilities = msgspec.structs.replace(inner.capabilities, tools=True)
        self._said_left_out: frozenset[str] = frozenset()

    async def stream(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        """Request a call or an answer from the model."""
        tool_instructions = self._tool_instructions(prompt)
        if not tool_instructions.tools:
            # It answers in free text.
            async with _events(self._inner, _without_tools(prompt)) as events:
                async for event in events:
                    yield event
            return
        reading, until, written = ConstrainedReader(), _StopText(prompt.options.stop), 0
        async with _events(self._inner, _with_tools(prompt, tool_instructions)) as events:
            async for event in events:
                match event:
                    case TextDelta():
                        # A call is not forwarded before it is complete, so its size must be limited here.
                        written += len(event.text)
                        if written > MAX_CHARS:
                            raise self._malformed("it is too long")
                        if text := until.cut(reading.feed(event.text)):
                            yield TextDelta(text)
                    case TurnDone():
                        for last in self._ended(prompt, reading, until, event):
                            yield last
                    case _:
                        yield event

    def _ended(
        self, prompt: Prompt, reading: ConstrainedReader, until: "_StopText", done: TurnDone
    ) -> Iterator[ModelEvent]:
        if done.stop is StopReason.REFUSED:
            yield done
            return
        try:
            match reading.end():
                case TextAnswer(rest):
                    if text := until.cut(rest) + until.rest():
                        yield TextDelta(text)
                    yield TurnDone(stop=StopReason.END, usage=done.usage)
                case ToolChosen(tool, arguments, malformed):
                    yield CallProposed(call_id=call_id(prompt, 0), tool=tool, arguments=arguments, malformed=malformed)
                    yield TurnDone(stop=StopReason.CALLS, usage=done.usage)
        except OutputTruncated as error:
            if done.stop is not StopReason.LENGTH:
                raise self._malformed(f"{error}") from error
            if not reading.is_text:
                raise self._malformed("it was truncated at its maximum length within a tool call") from error
            # A truncated answer is used as far as it goes, as with any model.
            if text := until.rest():
                yield TextDelta(text)
            yield done
        except OutputMalformed as error:
            raise self._malformed(f"{error}") from error

    def _malformed(self, why: str) -> ProviderFailed:
        return ProviderFailed(
            (
                f"The output of {self.model} of {self.name} cannot be used: {why}. Try again, or choose a "
                "model that supports tools natively."
            ),
            kind=FailureKind.MALFORMED,
            is_well=True,
        )

    def _tool_instructions(self, prompt: Prompt) -> ToolInstructions:
        choice = prompt.options.choice
        if not prompt.tools or choice is ToolChoice.NONE:
            return ToolInstructions("", (), ())
        used = frozenset(call.tool for message in prompt.messages for call in message.calls)
        tokens = self.capabilities.window_tokens // TOOLS_SHARE
        tool_instructions = describe_tools(prompt.tools, tokens=tokens, used=used, must=choice is ToolChoice.REQUIRED)
        if tool_instructions.left_out and self._said_left_out != frozenset(tool_instructions.left_out):
            # Once, and not with each turn.
            self._said_left_out = frozenset(tool_instructions.left_out)
            log.warning(
                "%s of %s does not get %d tools, because its window of %d tokens has no room for them: %s",
                self.model,
                self.name,
                len(tool_instructions.left_out),
                self.capabilities.window_tokens,
                ", ".join(tool_instructions.left_out),
            )
        return tool_instructions


class _StopText:
    """Ends a text at one of the caller's stop sequences. The model itself writes its JSON to the end."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = tuple(word for word in words if word)
        self._keeps = max((len(word) for word in self._words), default=1) - 1
        self._held = ""
        self._is_over = False

    def cut(self, text: str) -> str:
        """Return what can be forwarded of a further piece: its end may be the beginning of a stop sequence."""
        if self._is_over:
            return ""
        self._held += text
        ends = [at for word in self._words if (at := self._held.find(word)) >= 0]
        if ends:
            self._is_over = True
            reported_text, self._held = self._held[: min(ends)], ""
            return reported_text
        safe = max(0, len(self._held) - self._keeps)
        reported_text, self._held = self._held[:safe], self._held[safe:]
        return reported_text

    def rest(self) -> str:
        """Return the text that was held back."""
        text, self._held = self._held, ""
        return text


def _with_tools(prompt: Prompt, tool_instructions: ToolInstructions) -> Prompt:
    options = prompt.options
    answer = None if options.choice is ToolChoice.REQUIRED else options.schema or {"type": "string"}
    return msgspec.structs.replace(
        prompt,
        system="\n\n".join(part for part in (prompt.system, tool_instructions.text) if part),
        tools=(),
        messages=tuple(_alternating(_plain(prompt.messages, framed=True))),
        options=_options(options, schema=output_schema(tool_instructions.tools, answer=answer), stop=()),
    )


def _without_tools(prompt: Prompt) -> Prompt:
    return msgspec.structs.replace(
        prompt,
        tools=(),
        messages=tuple(_alternating(_plain(prompt.messages, framed=False))),
        options=_options(prompt.options),
    )


def _options(options: GenerationOptions, **changes: Any) -> GenerationOptions:
    return msgspec.structs.replace(options, choice=ToolChoice.AUTO, **changes)


def _plain(messages: tuple[Message, ...], *, framed: bool) -> Iterator[Message]:
    """Yield a conversation without tool calls: each call comes with its result, whenever that came.

    If the model must write JSON, its own earlier messages are shown as JSON. If not, it would only continue in that
    form, so calls are described in words.
    """
    results = {message.call_id: message for message in messages if message.role is Role.TOOL}
    for message in messages:
        match message.role:
            case Role.USER:
                yield message
            case Role.ASSISTANT:
                if message.text:
                    yield (
                        _assistant_message({"answer": message.text})
                        if framed
                        else Message(role=Role.ASSISTANT, text=message.text)
                    )
                for call in message.calls:
                    result = results.get(call.call_id)
                    text, images = (result.text, result.images) if result is not None else (NO_RESULT, ())
                    if framed:
                        yield _assistant_message({"tool": call.tool, "arguments": call.arguments})
                        reported_text = f"Result of {call.tool}:\n{text}"
                    else:
                        reported_text = f"Result of {call.tool} with {_encode(call.arguments).decode()}:\n{text}"
                    yield Message(role=Role.USER, text=reported_text, images=images)
            case Role.TOOL:
                continue


def _assistant_message(value: JsonObject) -> Message:
    return Message(role=Role.ASSISTANT, text=_encode(value).decode())


def _alternating(messages: Iterator[Message]) -> Iterator[Message]:
    """Merge consecutive messages of one role: many models require that roles alternate."""
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
    # The interface says that it is a generator; what was opened for an answer is closed with it.
    return aclosing(cast("AsyncGenerator[ModelEvent]", provider.stream(prompt)))
