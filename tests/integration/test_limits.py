"""A run that may not go further gets one last turn, and ends with an answer that says so."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from palyra.core.clock import to_ms
from palyra.core.errors import Invalid
from palyra.core.events import LimitReached, ModelTurnStarted, RunCancelled, ToolFinished, ToolStarted
from palyra.core.limits import LimitKind, Limits
from palyra.core.message import AcceptedMessage
from palyra.core.model.prompt import ModelEvent, Prompt, TextDelta
from palyra.core.run.state import RunStatus
from palyra.core.tool import CallOutcome, Risk
from palyra.journal.stores import leases
from palyra.providers.scripted import (
    Script,
    ScriptCall,
    ScriptCondition,
    ScriptEndless,
    ScriptRule,
    ScriptStop,
    ScriptText,
)
from palyra.runs.engine.loop import RunExecution
from palyra.tools.base import Tool, ToolContext, tool
from tests.integration.cast import DONE, Bell, Door, a_call, inputs, on_sqlite, results, said_by
from tests.integration.conftest import Begin
from tests.support.builders import a_cancel, a_cancellation
from tests.support.world import Model, World

LAST_WORDS = "I found this much."


def busy(
    *calls: ScriptCall,
    last: tuple[ScriptText | ScriptCall | ScriptEndless | ScriptStop, ...] = (ScriptText(text=LAST_WORDS),),
) -> Script:
    """Return a model that makes these calls in every turn as long as it has tools."""
    return Script(rules=(ScriptRule(when=ScriptCondition(tools=True), actions=calls),), default=last)


async def assert_last_words(world: World, said: AcceptedMessage, limit: LimitKind) -> None:
    run = await world.ended(said)
    assert (run.status, run.limit_reached) == (RunStatus.DONE, limit)
    assert [event.limit for event in await world.events(said) if isinstance(event, LimitReached)] == [limit]
    assert world.prompts[-1].tools == ()
    assert limit.value.replace("_", " ") in world.prompts[-1].system
    assert (await world.messages(said))[-1].text == LAST_WORDS


async def test_after_its_last_model_turn_a_run_answers_without_tools(begin: Begin) -> None:
    world = await begin(busy(ScriptCall(tool="time.now")), limits=Limits(model_turns=2))
    said = await world.say("Look at the clock.")
    await assert_last_words(world, said, LimitKind.MODEL_TURNS)
    turns = [event.last for event in await world.events(said) if isinstance(event, ModelTurnStarted)]
    assert turns == [False, False, True]


def failing(*steps: tuple[str, bool]) -> tuple[Model, Tool]:
    """Return a model that makes a call for each step and a tool that fails at those that say so; then it talks."""

    @tool(name="step.take", risk=Risk.LOW)
    async def take(context: ToolContext, *, name: str) -> str:
        """Take a step."""
        if not dict(steps)[name]:
            raise StepFailed
        return "ok"

    def speak(prompt: Prompt) -> list[ModelEvent]:
        done = len(results(prompt))
        if not prompt.tools or done >= len(steps):
            return [TextDelta(LAST_WORDS), DONE]
        return [a_call("step.take", {"name": steps[done][0]}, call_id=f"c{done}"), DONE]

    return said_by(speak), take


class StepFailed(Invalid):
    """There is no such step."""


async def test_a_call_that_fails_three_times_in_a_row_is_the_last(begin: Begin) -> None:
    model, step = failing(*[("a", False)] * 10)
    world = await begin(model, tools=[step])
    said = await world.say("Go.")
    await assert_last_words(world, said, LimitKind.REPEATED_FAILURE)
    assert (await world.run(said)).tool_calls == 3


async def test_a_call_may_fail_often_as_long_as_something_new_works_in_between(begin: Begin) -> None:
    edits = [step for number in range(5) for step in (("test", False), (f"edit {number}", True))]
    model, step = failing(*edits)
    world = await begin(model, tools=[step])
    run = await world.ended(await world.say("Go."))
    assert (run.status, run.limit_reached, run.tool_calls) == (RunStatus.DONE, None, 10)


async def test_a_call_that_works_each_time_does_not_hide_one_that_never_does(begin: Begin) -> None:
    model, step = failing(*[("bad", False), ("good", True)] * 10)
    world = await begin(model, tools=[step])
    said = await world.say("Go.")
    await assert_last_words(world, said, LimitKind.REPEATED_FAILURE)
    assert (await world.run(said)).tool_calls == 7


async def test_a_call_with_arguments_that_do_not_fit_is_not_made_for_ever(begin: Begin) -> None:
    world = await begin(busy(ScriptCall(tool="time.now", arguments={"nonsense": 1})))
    said = await world.say("What time is it?")
    await assert_last_words(world, said, LimitKind.REPEATED_FAILURE)


async def test_tool_calls_beyond_the_limit_are_not_run_also_within_one_turn(begin: Begin) -> None:
    bell = Bell()
    world = await begin(busy(*[ScriptCall(tool="bell.ring")] * 3), tools=[bell.tool], limits=Limits(tool_calls=2))
    said = await world.say("Ring.")
    await assert_last_words(world, said, LimitKind.TOOL_CALLS)
    assert bell.rung[""] == 2
    finished = [event.outcome for event in await world.events(said) if isinstance(event, ToolFinished)]
    assert finished == [CallOutcome.OK, CallOutcome.OK, CallOutcome.SKIPPED]
    assert "reached its limit (tool calls)" in results(world.prompts[-1])[2]
    assert (await world.run(said)).tool_calls == 2


@on_sqlite
async def test_a_run_without_tool_calls_allowed_still_answers(begin: Begin) -> None:
    world = await begin(busy(ScriptCall(tool="time.now")), limits=Limits(tool_calls=0))
    said = await world.say("Look at the clock.")
    await assert_last_words(world, said, LimitKind.TOOL_CALLS)
    assert not [event for event in await world.events(said) if isinstance(event, ToolStarted)]


async def test_a_tool_that_outlasts_the_wall_clock_is_stopped_and_the_model_told(begin: Begin) -> None:
    door = Door()
    world = await begin(busy(ScriptCall(tool="door.wait")), tools=[door.tool], limits=Limits(wall_clock_ms=1_000))
    said = await world.say("Wait.")
    await assert_last_words(world, said, LimitKind.WALL_CLOCK)
    assert (door.came, door.sent_away) == (1, 1)
    assert results(world.prompts[-1])[0].startswith("[interrupted]")


async def test_a_model_that_outlasts_the_wall_clock_is_asked_once_more(begin: Begin) -> None:
    script = Script(
        rules=(ScriptRule(when=ScriptCondition(tools=True), actions=(ScriptEndless(text="la ", delay_ms=2),)),),
        default=(ScriptText(text=LAST_WORDS),),
    )
    world = await begin(script, limits=Limits(wall_clock_ms=1_000))
    said = await world.say("Sing.")
    await assert_last_words(world, said, LimitKind.WALL_CLOCK)
    kinds = await world.kinds(said)
    assert "model_text" in kinds[: kinds.index("run_resumed")]


async def test_a_last_turn_that_never_ends_is_cancelled_for_its_time(begin: Begin) -> None:
    world = await begin(
        busy(ScriptCall(tool="time.now"), last=(ScriptEndless(text="and ", delay_ms=2),)),
        limits=Limits(model_turns=1, wall_clock_ms=500, last_turn_timeout_ms=500),
    )
    said = await world.say("Go.")
    run = await world.ended(said)
    assert (run.status, run.reason) == (RunStatus.CANCELLED, "timeout")
    events = await world.events(said)
    assert isinstance(events[-1], RunCancelled)
    assert "model_text" in await world.kinds(said)
    assert 1_000 <= (await world.state(said)).active_ms < 10_000


async def test_a_last_turn_without_a_word_is_a_failure(begin: Begin) -> None:
    world = await begin(busy(ScriptCall(tool="time.now"), last=(ScriptStop(),)), limits=Limits(model_turns=1))
    said = await world.say("Go.")
    run = await world.ended(said)
    assert run.status is RunStatus.FAILED
    assert run.reason == "the run reached a limit, and the model gave no final answer"


@on_sqlite
async def test_calls_that_are_proposed_in_the_last_turn_are_refused(begin: Begin) -> None:
    bell = Bell()
    last = (ScriptText(text=LAST_WORDS), ScriptCall(tool="bell.ring"))
    world = await begin(busy(ScriptCall(tool="time.now"), last=last), tools=[bell.tool], limits=Limits(model_turns=1))
    said = await world.say("Go.")
    run = await world.ended(said)
    assert (run.status, run.limit_reached) == (RunStatus.DONE, LimitKind.MODEL_TURNS)
    assert not bell.rung


@on_sqlite
async def test_waiting_for_a_child_does_not_count_as_time(begin: Begin) -> None:
    gate = asyncio.Event()

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        match inputs(prompt)[-1]:
            case "Delegate." if not results(prompt):
                yield a_call("agent.delegate", {"task": "Take your time."})
            case "Take your time.":
                await gate.wait()
                yield TextDelta("Here.")
            case _:
                yield TextDelta("Thanks.")
        yield DONE

    world = await begin(Model(speak))
    parent = await world.say("Delegate.")
    await world.reaches(parent, RunStatus.WAITING)
    child = await world.child_of(parent)
    before = await world.state(parent)
    await world.seen(child, "model_turn_started")
    world.clock.advance(timedelta(minutes=5))
    gate.set()
    await world.ended(parent)
    assert (await world.state(child)).active_ms >= 300_000
    assert (await world.state(parent)).active_ms - before.active_ms < 10_000


@on_sqlite
async def test_what_the_worker_spent_is_on_the_tape(begin: Begin) -> None:
    gate = asyncio.Event()

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        await gate.wait()
        yield TextDelta("Hello.")
        yield DONE

    world = await begin(Model(speak))
    said = await world.say("Think.")
    await world.seen(said, "model_turn_started")
    world.clock.advance(timedelta(minutes=5))
    gate.set()
    await world.ended(said)
    assert 300_000 <= (await world.state(said)).active_ms < 310_000


async def test_time_is_counted_once_even_if_its_record_was_interrupted(begin: Begin) -> None:
    world = await begin(busy(ScriptCall(tool="time.now")))
    await world.worker.park(seconds=0)
    said = await world.say("Go.")
    now_ms = to_ms(world.clock.now())
    (lease,) = await world.engine.write(
        lambda conn: leases.claim(conn, leases.RUNS, owner="test:1", now_ms=now_ms, limit=1)
    )
    carrier = RunExecution(world.engine, lease, clock=world.clock, ids=world.ids)
    await carrier.begin()
    world.clock.advance(timedelta(minutes=5))
    recording = asyncio.create_task(carrier([a_cancel()]))
    await asyncio.sleep(0)
    recording.cancel()
    with pytest.raises(asyncio.CancelledError):
        await recording
    assert "cancel_requested" in await world.kinds(said), "a write that was begun is not abandoned"
    await carrier.catch_up()
    world.clock.advance(timedelta(minutes=1))
    state = await carrier([a_cancellation()])
    assert 360_000 <= state.active_ms < 370_000


@on_sqlite
async def test_an_agent_may_have_limits_of_its_own(begin: Begin) -> None:
    world = await begin(busy(ScriptCall(tool="time.now")))
    await world.change_agent(limits=Limits(model_turns=1))
    said = await world.say("Look at the clock.")
    await assert_last_words(world, said, LimitKind.MODEL_TURNS)


@on_sqlite
async def test_an_agent_sees_and_may_use_its_own_tools_only(begin: Begin) -> None:
    world = await begin(busy(ScriptCall(tool="files.list")), limits=Limits(model_turns=1))
    await world.change_agent(tools=("time.now",))
    said = await world.say("List the files.")
    await world.ended(said)
    assert [spec.name for spec in world.prompts[0].tools] == ["time.now"]
    assert results(world.prompts[-1])[0].startswith("[denied]")
