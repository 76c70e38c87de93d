"""Tool calls: which run side by side, what is recorded of them, what goes back to the model."""

import asyncio

from palyra.core.events import PolicyDecided, ToolFinished, ToolProposed, ToolStarted
from palyra.core.limits import Limits
from palyra.core.model.prompt import CallProposed, ModelEvent, Prompt, Role, TextDelta
from palyra.core.policy import labels
from palyra.core.run.state import RunStatus
from palyra.core.tool import CallOutcome, Risk, Verdict
from palyra.providers.scripted import ScriptCall
from palyra.tools.base import Tool, ToolContext, tool
from tests.integration.cast import DONE, Bell, Door, first_calls, on_sqlite, results, said_by
from tests.integration.conftest import Begin
from tests.support.eventually import eventually


def meeting(*names: str) -> list[Tool]:
    """Return tools that only read, and of which none comes back before all have begun."""
    barrier = asyncio.Barrier(len(names))

    def guest(name: str) -> Tool:
        @tool(name=name, risk=Risk.LOW, read_only=True)
        async def meet(context: ToolContext) -> str:
            """Meet the others."""
            await barrier.wait()
            return f"{name} met the others"

        return meet

    return [guest(name) for name in names]


async def test_a_call_is_recorded_before_and_after_it_runs_and_its_result_is_fed_back(begin: Begin) -> None:
    world = await begin(first_calls(ScriptCall(tool="files.read", arguments={"path": "notes.txt"})))
    said = await world.say("Where is the milk?")
    await world.ended(said)
    assert await world.kinds(said) == [
        "run_accepted",
        "run_started",
        "context_assembled",
        "model_turn_started",
        "tool_proposed",
        "model_turn_ended",
        "policy_decided",
        "tool_started",
        "tool_finished",
        "context_assembled",
        "model_turn_started",
        "model_text",
        "model_turn_ended",
        "run_completed",
    ]
    assert "The milk is in the fridge." in results(world.prompts[-1])[0]
    assert [message.role for message in await world.messages(said)] == [
        Role.USER,
        Role.ASSISTANT,
        Role.TOOL,
        Role.ASSISTANT,
    ]
    run = await world.run(said)
    assert (run.turns, run.tool_calls) == (2, 1)


async def test_calls_that_only_read_run_side_by_side(begin: Begin) -> None:
    world = await begin(
        first_calls(ScriptCall(tool="meet.a"), ScriptCall(tool="meet.b")), tools=meeting("meet.a", "meet.b")
    )
    said = await world.say("Let them meet.")
    await world.ended(said)
    assert results(world.prompts[-1]) == ["meet.a met the others", "meet.b met the others"]


async def test_each_result_is_recorded_when_it_is_there_and_fed_back_in_the_models_order(begin: Begin) -> None:
    slow, quick = Door("door.slow", read_only=True), Door("door.quick", read_only=True)
    quick.open.set()
    world = await begin(
        first_calls(ScriptCall(tool="door.slow"), ScriptCall(tool="door.quick")), tools=[slow.tool, quick.tool]
    )
    said = await world.say("Go.")
    await world.seen(said, "tool_finished")
    assert slow.came == 1
    slow.open.set()
    await world.ended(said)
    events = await world.events(said)
    names = {event.call_id: event.tool for event in events if isinstance(event, ToolProposed)}
    finished = [names[event.call_id] for event in events if isinstance(event, ToolFinished)]
    assert finished == ["door.quick", "door.slow"]
    called = [call.tool for message in world.prompts[-1].messages for call in message.calls]
    answered = [names[message.call_id] for message in world.prompts[-1].messages if message.call_id is not None]
    assert called == answered == ["door.slow", "door.quick"]


async def test_calls_that_change_something_run_in_turn(begin: Begin) -> None:
    first, second = Door("door.first"), Door("door.second")
    world = await begin(
        first_calls(ScriptCall(tool="door.first"), ScriptCall(tool="door.second")), tools=[first.tool, second.tool]
    )
    said = await world.say("Go.")
    await eventually(lambda: first.came == 1)
    second.open.set()
    assert [kind for kind in await world.kinds(said) if kind == "tool_started"] == ["tool_started"]
    first.open.set()
    await world.ended(said)
    order = [
        (type(event).__name__, event.call_id)
        for event in await world.events(said)
        if isinstance(event, ToolStarted | ToolFinished)
    ]
    one, two = order[0][1], order[2][1]
    assert order == [("ToolStarted", one), ("ToolFinished", one), ("ToolStarted", two), ("ToolFinished", two)]


@on_sqlite
async def test_a_call_that_changes_something_waits_for_the_readers_before_it(begin: Begin) -> None:
    reader, bell = Door("door.read", read_only=True), Bell()
    world = await begin(
        first_calls(ScriptCall(tool="door.read"), ScriptCall(tool="bell.ring")), tools=[reader.tool, bell.tool]
    )
    said = await world.say("Go.")
    await eventually(lambda: reader.came == 1)
    assert not bell.rung
    reader.open.set()
    await world.ended(said)
    assert bell.rung[""] == 1


async def test_what_a_tool_returned_is_labelled_so_and_so_is_what_the_model_says_then(begin: Begin) -> None:
    world = await begin(first_calls(ScriptCall(tool="time.now")))
    said = await world.say("What time is it?")
    await world.ended(said)
    entries = await world.events(said)
    assert [event.labels for event in entries if isinstance(event, ToolFinished)] == [(labels.TOOL,)]
    assert entries[-2].labels == (labels.OWNER, labels.TOOL)


@on_sqlite
async def test_a_denied_call_is_reported_to_the_model_and_the_run_goes_on(begin: Begin) -> None:
    @tool(name="house.burn", risk=Risk.HIGH)
    async def burn(context: ToolContext) -> str:
        """Burn the house."""
        raise AssertionError("this must never run")

    calls = (
        ScriptCall(tool="files.raed", arguments={"path": "notes.txt"}),
        ScriptCall(tool="files.read", arguments={"pth": "notes.txt"}),
        ScriptCall(tool="files.read", raw='{"path": "notes'),
        ScriptCall(tool="house.burn"),
        ScriptCall(tool="time.now"),
    )
    world = await begin(first_calls(*calls, then="I see."), tools=[burn])
    said = await world.say("Go.")
    run = await world.ended(said)
    assert run.status is RunStatus.DONE
    verdicts = [event for event in await world.events(said) if isinstance(event, PolicyDecided)]
    assert [event.verdict for event in verdicts] == [Verdict.DENY] * 4 + [Verdict.ALLOW]
    unknown, bad, malformed, risky, _ = results(world.prompts[-1])
    assert "Unknown tool 'files.raed'" in unknown
    assert "Did you mean files.read" in unknown
    assert "pth" in bad
    assert "files.read was not called" in malformed
    assert "no_approval_channel" in risky
    assert all(text.startswith("[denied] ") for text in (unknown, bad, malformed, risky))
    assert run.tool_calls == 1


@on_sqlite
async def test_a_turn_of_denied_calls_alone_goes_straight_back_to_the_model(begin: Begin) -> None:
    world = await begin(first_calls(ScriptCall(tool="no.such"), then="I can not."))
    said = await world.say("Go.")
    assert (await world.ended(said)).status is RunStatus.DONE
    assert "tool_started" not in await world.kinds(said)
    assert len(world.prompts) == 2


@on_sqlite
async def test_a_tool_that_fails_or_is_too_slow_is_reported_to_the_model(begin: Begin) -> None:
    @tool(name="pot.drop", risk=Risk.LOW)
    async def drop(context: ToolContext) -> str:
        """Drop the pot."""
        raise ValueError("it broke")

    slow = Door("door.slow")
    world = await begin(
        first_calls(ScriptCall(tool="pot.drop"), ScriptCall(tool="door.slow"), then="Oh."),
        tools=[drop, slow.tool],
        limits=Limits(tool_timeout_ms=50),
    )
    said = await world.say("Go.")
    assert (await world.ended(said)).status is RunStatus.DONE
    outcomes = [event.outcome for event in await world.events(said) if isinstance(event, ToolFinished)]
    assert outcomes == [CallOutcome.ERROR, CallOutcome.TIMEOUT]
    broke, late = results(world.prompts[-1])
    assert "it broke" in broke
    assert "longer than 0.05 s" in late


@on_sqlite
async def test_two_calls_of_one_turn_may_have_the_same_id_of_the_provider(begin: Begin) -> None:
    def speak(prompt: Prompt) -> list[ModelEvent]:
        if results(prompt):
            return [TextDelta("Done."), DONE]
        twin = CallProposed(call_id="same", tool="time.now", arguments={})
        return [twin, twin, DONE]

    world = await begin(said_by(speak))
    said = await world.say("Go.")
    assert (await world.ended(said)).status is RunStatus.DONE
    assert len(results(world.prompts[-1])) == 2


@on_sqlite
async def test_text_beside_calls_is_part_of_the_conversation(begin: Begin) -> None:
    def speak(prompt: Prompt) -> list[ModelEvent]:
        if results(prompt):
            return [TextDelta("Done."), DONE]
        return [TextDelta("Let me look."), CallProposed(call_id="c", tool="time.now", arguments={}), DONE]

    world = await begin(said_by(speak))
    said = await world.say("Go.")
    await world.ended(said)
    _, asked, result, answer = await world.messages(said)
    assert (asked.text, [call.tool for call in asked.calls]) == ("Let me look.", ["time.now"])
    assert result.call_id == asked.calls[0].call_id
    assert answer.text == "Done."
