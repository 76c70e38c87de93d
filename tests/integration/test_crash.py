"""Killed at any moment, nothing is lost, and nothing that must not happen twice does."""

import asyncio
import random
from itertools import count

import pytest

from palyra.core.events import ModelText, RunResumed, ToolFinished, ToolProposed, ToolStarted
from palyra.core.message import AcceptedMessage
from palyra.core.model.prompt import Role
from palyra.core.run.state import RunStatus
from palyra.core.tool import CallOutcome
from palyra.providers.scripted import Script, ScriptCall, ScriptRule, ScriptText
from palyra.runs.engine.steps.tools import MAX_ATTEMPTS
from tests.integration.cast import Bell, Door, first_calls, held, inputs, on_sqlite, results
from tests.integration.conftest import Begin
from tests.support.eventually import eventually
from tests.support.world import World

BUSY = Script(
    rules=(
        ScriptRule(
            turns=(
                (
                    ScriptText(text="Let me see. "),
                    ScriptCall(tool="files.read", arguments={"path": "notes.txt"}),
                    ScriptCall(tool="time.now"),
                    ScriptCall(tool="bell.ring", arguments={"who": "{input}"}),
                ),
                (ScriptText(text="Once more. "), ScriptCall(tool="files.list")),
                (ScriptText(text="Done."),),
            )
        ),
    )
)


async def assert_no_harm_done(world: World, said: AcceptedMessage, bell: Bell) -> None:
    """Look whether the run came to its end as if nothing had happened, but for what it was told."""
    run = await world.ended(said)
    assert run.status is RunStatus.DONE
    assert (await world.messages(said))[-1].text == "Done."
    (name,) = {message.text for message in await world.messages(said) if message.role is Role.USER}
    assert bell.rung[name] <= 1
    events = await world.events(said)
    rings = [event.call_id for event in events if isinstance(event, ToolProposed) and event.tool == "bell.ring"]
    starts = [event.call_id for event in events if isinstance(event, ToolStarted) and event.call_id in rings]
    assert len(starts) == len(set(starts)) <= 1
    ends = [event for event in events if isinstance(event, ToolFinished) and event.call_id in rings]
    assert len(ends) == 1
    told = [text for prompt in world.prompts if inputs(prompt) == [name] for text in results(prompt)]
    if ends[0].outcome is CallOutcome.INTERRUPTED:
        assert any("may or may not have taken effect" in text for text in told)
    else:
        assert bell.rung[name] == 1


async def test_killed_after_any_commit_a_run_goes_on_to_its_end(begin: Begin) -> None:
    bell = Bell()
    world = await begin(BUSY, tools=[bell.tool])
    for commits in count(1):
        world.dies_after(commits)
        said = await world.say(f"run {commits}", key=f"session {commits}")
        died = await world.dies_before_end_of(said)
        before = await world.tape(said.session_id)
        if died:
            await world.crash()
        await assert_no_harm_done(world, said, bell)
        after = await world.tape(said.session_id)
        assert after[: len(before)] == before, "what was on the tape is no longer there"
        if not died:
            break
        await world.quiet()
    assert commits > 10


@pytest.mark.parametrize("seed", range(3))
async def test_killed_again_and_again_with_many_runs_under_way_all_of_them_end(begin: Begin, seed: int) -> None:
    dice = random.Random(seed)
    bell = Bell()
    world = await begin(BUSY, tools=[bell.tool])
    said = [await world.say(f"run {number}", key=f"session {number}") for number in range(8)]
    for _ in range(4):
        world.dies_after(dice.randint(1, 30))
        await asyncio.sleep(dice.random() / 50)
        await world.crash()
    for one in said:
        await assert_no_harm_done(world, one, bell)


async def test_text_that_was_recorded_before_the_crash_stays_and_the_turn_is_taken_anew(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    said = await world.say("Hello.")
    await world.seen(said, "model_text")
    await world.crash()
    gate.set()
    assert (await world.ended(said)).status is RunStatus.DONE
    kinds = await world.kinds(said)
    first = kinds.index("model_text")
    assert kinds[first : first + 4] == ["model_text", "run_resumed", "context_assembled", "model_turn_started"]
    texts = [event.text for event in await world.events(said) if isinstance(event, ModelText) and event.turn == 1]
    assert texts == ["Well, "]
    assert [message.text for message in await world.messages(said)] == ["Hello.", "Well, you said: Hello."]


async def test_a_tool_that_may_be_repeated_runs_again_and_no_other(begin: Begin) -> None:
    again, once = Door("door.again", repeatable=True, read_only=True), Door("door.once", read_only=True)
    world = await begin(
        first_calls(ScriptCall(tool="door.again"), ScriptCall(tool="door.once"), then="Done."),
        tools=[again.tool, once.tool],
    )
    said = await world.say("Go.")
    await eventually(lambda: (again.came, once.came) == (1, 1))
    await world.crash()
    again.open.set()
    await world.ended(said)
    assert (again.came, once.came) == (2, 1)
    assert results(world.prompts[-1])[0] == "came in"
    assert results(world.prompts[-1])[1].startswith("[interrupted] the call was in progress when the daemon stopped")
    attempts = [event.attempt for event in await world.events(said) if isinstance(event, ToolStarted)]
    assert attempts == [1, 1, 2]
    assert (await world.run(said)).tool_calls == 2


@on_sqlite
async def test_a_call_that_was_interrupted_too_often_is_not_started_again(begin: Begin) -> None:
    """It may be what kills the daemon."""
    door = Door(repeatable=True)
    world = await begin(first_calls(ScriptCall(tool="door.wait"), then="Done."), tools=[door.tool])
    said = await world.say("Go.")
    for attempt in range(1, MAX_ATTEMPTS + 1):
        await eventually(lambda attempt=attempt: door.came == attempt)  # type: ignore[misc]
        await world.crash()
    assert (await world.ended(said)).status is RunStatus.DONE
    assert door.came == MAX_ATTEMPTS
    assert results(world.prompts[-1])[0].startswith("[interrupted]")


async def test_a_result_that_was_recorded_is_not_fetched_again(begin: Begin) -> None:
    bell, door = Bell(), Door()
    world = await begin(
        first_calls(ScriptCall(tool="bell.ring"), ScriptCall(tool="door.wait"), then="Done."),
        tools=[bell.tool, door.tool],
    )
    said = await world.say("Go.")
    await eventually(lambda: door.came)
    await world.crash()
    await world.ended(said)
    assert bell.rung[""] == 1
    assert results(world.prompts[-1])[0] == "rung 1 times"


async def test_a_queue_keeps_its_order_over_a_crash(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    said = [await world.say(f"Number {number}.") for number in range(5)]
    await world.seen(said[0], "model_text")
    await world.crash()
    gate.set()
    await world.all_ended(said)
    order = [entry.run_id for entry in await world.tape(said[0].session_id) if entry.kind == "run_started"]
    assert order == [one.run_id for one in said]


async def test_a_cancel_that_was_recorded_is_carried_out_after_a_crash(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    said = await world.say("Hello.")
    await world.seen(said, "model_text")
    world.line.cut = True  # the worker is dead already, and only its lease is left
    assert (await world.cancel(said)).status is RunStatus.IN_PROGRESS
    await world.crash()
    assert (await world.ended(said)).status is RunStatus.CANCELLED


async def test_a_daemon_that_stops_in_an_orderly_way_lets_go_of_its_runs(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    said = await world.say("Hello.")
    await world.seen(said, "model_text")
    await world.stop()
    await world.start()
    gate.set()
    assert (await world.ended(said)).status is RunStatus.DONE
    assert [event for event in await world.events(said) if isinstance(event, RunResumed)]


@on_sqlite
async def test_a_daemon_that_stops_waits_a_while_for_what_is_under_way(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    said = await world.say("Hello.")
    await world.seen(said, "model_text")
    async with asyncio.TaskGroup() as group:
        parked = group.create_task(world.worker.park(seconds=60))
        await asyncio.sleep(0)
        late = await world.say("Too late.", key="late")
        assert not parked.done()
        gate.set()
    assert (await world.run(said)).status is RunStatus.DONE
    assert (await world.run(late)).status is RunStatus.ACCEPTED
    await world.stop()
    await world.start()
    assert (await world.ended(late)).status is RunStatus.DONE


@on_sqlite
async def test_a_daemon_that_stops_does_not_wait_for_ever(begin: Begin) -> None:
    world = await begin(held(asyncio.Event()))
    said = await world.say("Hello.")
    await world.seen(said, "model_text")
    await world.worker.park(seconds=0.01)
    assert world.worker.active_runs == 1
    await world.cancel(said)
    await world.ended(said)
