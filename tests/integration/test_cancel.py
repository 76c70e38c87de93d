"""Whoever wants a run to stop is obeyed at once, whatever it is doing."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from palyra.core.events import CancelRequested, InputMode, RunCancelled, ToolFinished
from palyra.core.ids import IdInvalid
from palyra.core.message import AcceptedMessage, TextInvalid
from palyra.core.model.prompt import ModelEvent, Prompt, TextDelta
from palyra.core.run.state import RunStatus
from palyra.providers.scripted import Script, ScriptCall, ScriptEndless
from palyra.runs.engine import worker
from palyra.runs.services.cancellation import RunNotFound
from tests.integration.cast import DONE, ECHO, Bell, Door, a_call, first_calls, held, inputs, on_sqlite, results
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.eventually import eventually
from tests.support.world import BEN, Model, World

SOON = 2.0
"""Seconds; the promise is 100 ms, but this machine may be busy with something else."""

ENDLESS = Script(default=(ScriptEndless(text="la ", delay_ms=1),))


async def assert_cancelled(world: World, said: AcceptedMessage) -> None:
    """Look whether the run ended as one does that was told to: the wish, then nothing but the end."""
    run = await world.ended(said, seconds=SOON)
    assert (run.status, run.reason) == (RunStatus.CANCELLED, "cancelled by its owner")
    kinds = await world.kinds(said)
    after = kinds[kinds.index("cancel_requested") + 1 :]
    assert after[-1] == "run_cancelled"
    # What was on its way to the tape when the wish was recorded may stand between them.
    assert after[:-1] in ([], ["model_text"])


async def test_a_run_that_would_speak_for_ever_stops(begin: Begin) -> None:
    world = await begin(ENDLESS)
    said = await world.say("Sing.")
    await world.seen(said, "model_text", times=2)
    await world.cancel(said)
    await assert_cancelled(world, said)
    await eventually(lambda: world.worker.active_runs == 0)


async def test_what_the_model_had_open_is_closed_before_the_run_ends(begin: Begin) -> None:
    closed = []

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        try:
            while True:
                yield TextDelta("la ")
                await asyncio.sleep(0.001)
        finally:
            closed.append(inputs(prompt)[-1])

    world = await begin(Model(speak))
    said = await world.say("Sing.")
    await world.seen(said, "model_text")
    await world.cancel(said)
    await world.ended(said, seconds=SOON)
    assert closed == ["Sing."]


async def test_a_model_that_says_nothing_stops(begin: Begin) -> None:
    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        await asyncio.Event().wait()
        yield DONE

    world = await begin(Model(speak))
    said = await world.say("Think.")
    await world.seen(said, "model_turn_started")
    await world.cancel(said)
    await assert_cancelled(world, said)


async def test_a_tool_at_work_is_stopped(begin: Begin) -> None:
    door, reader = Door(), Door("door.read", read_only=True)
    world = await begin(
        first_calls(ScriptCall(tool="door.read"), ScriptCall(tool="door.wait")), tools=[door.tool, reader.tool]
    )
    said = await world.say("Go.")
    await eventually(lambda: reader.came)
    await world.cancel(said)
    await assert_cancelled(world, said)
    assert (reader.sent_away, door.came) == (1, 0)


async def test_a_queued_run_ends_at_once_and_the_active_one_goes_on(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    first, second, third = await world.say("One."), await world.say("Two."), await world.say("Three.")
    cancelled = await world.cancel(second)
    assert cancelled.status is RunStatus.CANCELLED
    assert await world.kinds(second) == ["run_accepted", "cancel_requested", "run_cancelled"]
    gate.set()
    runs = await world.all_ended([first, third])
    assert [run.status for run in runs] == [RunStatus.DONE] * 2
    assert [inputs(prompt)[-1] for prompt in world.prompts] == ["One.", "Three."]


async def test_the_next_in_the_queue_starts_when_the_active_run_is_cancelled(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    first, second = await world.say("One."), await world.say("Two.")
    await world.seen(first, "model_text")
    await world.cancel(first)
    await world.seen(second, "model_text")
    gate.set()
    assert (await world.ended(second)).status is RunStatus.DONE


async def test_a_run_that_nobody_carries_ends_in_the_same_commit(begin: Begin) -> None:
    world = await begin(ECHO)
    await world.worker.park(seconds=0)
    said = await world.say("Hello.")
    assert (await world.cancel(said)).status is RunStatus.CANCELLED
    assert not world.prompts


async def test_a_run_that_waits_for_a_child_ends_and_takes_the_child_with_it(begin: Begin) -> None:
    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        if inputs(prompt)[-1] == "Delegate.":
            yield a_call("agent.delegate", {"task": "Sing."})
            yield DONE
        while True:
            yield TextDelta("la ")
            await asyncio.sleep(0.001)

    world = await begin(Model(speak))
    parent = await world.say("Delegate.")
    await world.reaches(parent, RunStatus.WAITING)
    child = await world.child_of(parent)
    await world.seen(child, "model_text")
    assert (await world.cancel(parent)).status is RunStatus.CANCELLED
    ended = await world.ended(child, seconds=SOON)
    assert (ended.status, ended.reason) == (RunStatus.CANCELLED, "the run that asked for it has ended")
    await world.quiet()


async def test_cancelling_a_run_that_has_ended_changes_nothing(begin: Begin) -> None:
    world = await begin(ECHO)
    said = await world.say("Hello.")
    await world.ended(said)
    before = await world.tape(said)
    assert (await world.cancel(said)).status is RunStatus.DONE
    assert await world.tape(said) == before


async def test_cancelling_twice_is_recorded_once(begin: Begin) -> None:
    world = await begin(ENDLESS)
    said = await world.say("Sing.")
    await world.seen(said, "model_text")
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(world.cancel(said))
    await world.ended(said, seconds=SOON)
    events = await world.events(said)
    assert len([event for event in events if isinstance(event, CancelRequested)]) == 1
    assert len([event for event in events if isinstance(event, RunCancelled)]) == 1


async def test_a_cancel_is_found_when_its_wake_up_is_lost(begin: Begin) -> None:
    door = Door()
    world = await begin(first_calls(ScriptCall(tool="door.wait")), tools=[door.tool])
    said = await world.say("Go.")
    await eventually(lambda: door.came)
    world.line.deaf = True
    await world.cancel(said)
    await assert_cancelled(world, said)
    assert door.sent_away == 1


@pytest.mark.parametrize("deaf", [False, True])
async def test_a_cancel_right_before_any_commit_of_the_run_is_not_missed(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, deaf: bool
) -> None:
    """Also if the worker does not hear of it, and comes upon it in the middle of a step."""
    monkeypatch.setattr(worker, "SWEEP_SECONDS", 0.02)
    calls = (
        ScriptCall(tool="time.now"),
        ScriptCall(tool="files.list"),
        ScriptCall(tool="bell.ring"),
        ScriptCall(tool="bell.ring"),
    )
    world = await begin(first_calls(*calls, then="Done."), tools=[Bell().tool])
    world.line.deaf = deaf
    for place in count(1):
        said = await world.say("What time is it?", key=f"at {place}")
        writes = count(1)

        async def step_in(said: AcceptedMessage = said, writes: Iterator[int] = writes, place: int = place) -> None:
            if next(writes) == place:
                await world.cancel(said)

        world.line.before_write = step_in
        run = await world.ended(said, seconds=SOON)
        if run.status is RunStatus.CANCELLED:
            continue
        # What the run is cancelled before may be a write of somebody else's, while its own last one goes through.
        assert run.status is RunStatus.DONE
        assert "cancel_requested" not in await world.kinds(said)
        if next(writes) <= place:
            break
    assert place > 5
    assert not caplog.records, "a cancel is no fault"


async def test_what_a_cancelled_run_left_open_is_told_to_the_next_one(begin: Begin) -> None:
    door = Door()
    world = await begin(first_calls(ScriptCall(tool="door.wait"), then="Done."), tools=[door.tool])
    said = await world.say("Go.")
    await eventually(lambda: door.came)
    await world.cancel(said)
    await world.ended(said, seconds=SOON)
    assert not [event for event in await world.events(said) if isinstance(event, ToolFinished)]
    door.open.set()
    await world.ask("And now?")
    assert results(world.prompts[1]) == ["[interrupted] this call was not executed: its run ended first"]


@on_sqlite
async def test_somebody_elses_run_can_not_be_cancelled_nor_seen(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    said = await world.say("Hello.")
    texts = set()
    for run_id in (said.run_id, world.ids.new()):
        with pytest.raises(RunNotFound) as refusal:
            await world.cancel(run_id, who=BEN)
        texts.add(refusal.value.detail)
    assert len(texts) == 1
    with pytest.raises(IdInvalid):
        await world.cancel("nonsense")
    gate.set()
    assert (await world.ended(said)).status is RunStatus.DONE


@on_sqlite
async def test_a_long_reason_is_cut_and_an_unclean_one_refused(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    said = await world.say("Hello.")
    with pytest.raises(TextInvalid):
        await world.control.cancel(ANA, said.run_id, reason="a\0b")
    await world.control.cancel(ANA, said.run_id, reason="x" * 1000)
    run = await world.ended(said)
    assert run.reason == "x" * 500


@on_sqlite
async def test_interrupting_is_a_cancel_too(begin: Begin) -> None:
    world = await begin(ENDLESS)
    said = await world.say("Sing.")
    await world.seen(said, "model_text")
    second = await world.say("Stop.", mode=InputMode.INTERRUPT)
    assert (await world.ended(said, seconds=SOON)).status is RunStatus.CANCELLED
    await world.seen(second, "model_text")
    await world.cancel(second)
    await world.ended(second, seconds=SOON)
