"""Models and tools that play a part in the tests."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

from palyra.core.model.prompt import CallProposed, ModelEvent, Prompt, Role, StopReason, TextDelta, TurnDone
from palyra.core.spending.usage import Usage
from palyra.core.tool import JsonObject, Risk
from palyra.providers.scripted import Script, ScriptCall, ScriptCondition, ScriptRule, ScriptText
from palyra.tools.base import Tool, ToolContext, tool
from tests.support.world import Model

on_sqlite = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("place", ["postgres"], indirect=True)

DONE = TurnDone(stop=StopReason.END, usage=Usage(input_tokens=10, output_tokens=2))
ECHO = Script(default=(ScriptText(text="You said: {input}"),))


def inputs(prompt: Prompt) -> list[str]:
    """Return what the person said, as far as the prompt shows it."""
    return [message.text for message in prompt.messages if message.role is Role.USER]


def results(prompt: Prompt) -> list[str]:
    """Return what tools returned, as far as the prompt shows it."""
    return [message.text for message in prompt.messages if message.role is Role.TOOL]


def first_calls(*calls: ScriptCall, then: str = "Done: {result}") -> Script:
    """Return a model that makes the calls in its first turn, and answers in its second."""
    return Script(
        rules=(ScriptRule(when=ScriptCondition(tools=True), turns=(calls, (ScriptText(text=then),))),),
        default=(ScriptText(text=then),),
    )


def held(gate: asyncio.Event) -> Model:
    """Return a model that begins to speak, and goes on when it may."""

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        yield TextDelta("Well, ")
        await gate.wait()
        yield TextDelta(f"you said: {inputs(prompt)[-1]}")
        yield DONE

    return Model(speak)


def said_by(speak: Callable[[Prompt], list[ModelEvent]], *, window_tokens: int = 100_000) -> Model:
    """Return a model that says at once what the function returns."""

    async def stream(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        for event in speak(prompt):
            yield event

    return Model(stream, window_tokens=window_tokens)


def a_call(name: str, arguments: JsonObject | None = None, *, call_id: str = "c1") -> CallProposed:
    return CallProposed(call_id=call_id, tool=name, arguments=arguments or {})


class Bell:
    """A tool that must never be started twice for one purpose, and knows how often it was."""

    def __init__(self) -> None:
        self.rung: Counter[str] = Counter()

        @tool(name="bell.ring", risk=Risk.LOW)
        async def ring(context: ToolContext, *, who: str = "") -> str:
            """Ring a bell."""
            self.rung[who] += 1
            return f"rung {self.rung[who]} times"

        self.tool: Tool = ring


class Door:
    """A tool that waits until it is opened, and knows who came and whether they were sent away."""

    def __init__(self, name: str = "door.wait", *, read_only: bool = False, repeatable: bool = False) -> None:
        self.open = asyncio.Event()
        self.came = 0
        self.sent_away = 0

        @tool(name=name, risk=Risk.LOW, read_only=read_only, repeatable=repeatable)
        async def wait(context: ToolContext) -> str:
            """Wait at the door."""
            self.came += 1
            try:
                await self.open.wait()
            except asyncio.CancelledError:
                self.sent_away += 1
                raise
            return "came in"

        self.tool: Tool = wait
