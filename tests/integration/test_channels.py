"""The channel by which a message came in, from the door to the policy: through steering, children, and second looks."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

from palyra.core.events import InputMode, PolicyDecided, RunAccepted
from palyra.core.message import AcceptedMessage
from palyra.core.model.prompt import ModelEvent, Prompt, TextDelta
from palyra.core.policy.approval import Approval
from palyra.core.policy.policy_shadow import PolicyFile
from palyra.core.run.state import RunStatus
from palyra.core.tool import Risk, Verdict
from palyra.journal.stores import policy_decisions
from palyra.policy.cedar_source import split
from palyra.policy.gate import Gate
from palyra.policy.loader import combine
from palyra.policy.simulation import judge_again
from palyra.providers.scripted import ScriptCall
from palyra.tools.base import Tool, ToolContext, tool
from tests.integration.cast import DONE, a_call, first_calls, inputs, results
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.world import Model, Said, World

RULE = """@id("pens-stay-home") @reason("Not from there.")
forbid (principal, action, resource == Tool::"pen.write") when { context.channel == Channel::"http" };"""
GATE = Gate(combine(split(RULE, "own.cedar")))
WRITES = first_calls(ScriptCall(tool="pen.write", arguments={"text": "x"}))


@tool(name="pen.write", risk=Risk.MEDIUM)
async def write(context: ToolContext, *, text: str) -> str:
    """Write."""
    return f"wrote {text}"


PEN: Tool = write


async def decided(world: World, run: Said) -> list[tuple[Verdict, str]]:
    events = await world.events(run)
    return [(event.verdict, event.reason) for event in events if isinstance(event, PolicyDecided)]


async def asked(world: World, run: AcceptedMessage) -> Approval:
    await world.reaches(run, RunStatus.WAITING)
    found = await world.approvals.page(ANA, only_open=True, before=None, limit=10)
    (question,) = [one for one in found if one.run_id == run.run_id]
    return question


async def test_what_is_forbidden_by_one_channel_is_asked_about_by_another(begin: Begin) -> None:
    world = await begin(WRITES, tools=[PEN])
    world.gate = GATE
    by_http = await world.say("Write.", key="one", origin="http")
    await world.ended(by_http)
    assert await decided(world, by_http) == [(Verdict.DENY, "Not from there.")]
    assert results(world.prompts[-1]) == ["[denied] Not from there."]

    by_grpc = await world.say("Write.", key="two", origin="grpc")
    await asked(world, by_grpc)
    assert [verdict for verdict, _ in await decided(world, by_grpc)] == [Verdict.ASK]


async def test_a_run_knows_its_channel_after_a_crash(begin: Begin) -> None:
    world = await begin(WRITES, tools=[PEN])
    world.gate = GATE
    # Right behind the acceptance, before anything was judged.
    world.dies_after(2)
    said = await world.say("Write.", origin="http")
    assert await world.dies_before_end_of(said)
    await world.crash()
    await world.ended(said)
    assert await decided(world, said) == [(Verdict.DENY, "Not from there.")]


async def test_a_child_has_the_channel_of_the_run_that_it_began_with(begin: Begin) -> None:
    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        if results(prompt):
            yield TextDelta(results(prompt)[-1])
        elif (said := inputs(prompt)[-1]) == "write":
            yield a_call("pen.write", {"text": "x"})
        else:
            yield a_call("agent.delegate", {"task": {"first": "second", "second": "write"}[said]})
        yield DONE

    world = await begin(Model(speak), tools=[PEN])
    world.gate = GATE
    top = await world.say("first", origin="http")
    await world.ended(top)
    child = await world.child_of(await world.child_of(top))
    assert await decided(world, child) == [(Verdict.DENY, "Not from there.")]
    accepted = (await world.events(child))[0]
    assert isinstance(accepted, RunAccepted)
    assert (accepted.channel, accepted.source_channels) == ("run", ("http",))
    assert "Not from there." in (await world.messages(top))[-1].text


async def test_who_joins_a_run_brings_his_channel_along(begin: Begin) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        if inputs(prompt)[-1] == "Look.":
            begun.set()
            await go_on.wait()
            yield TextDelta("I looked.")
        elif results(prompt):
            yield TextDelta("Done.")
        else:
            yield a_call("pen.write", {"text": "x"})
        yield DONE

    world = await begin(Model(speak), tools=[PEN])
    world.gate = GATE
    said = await world.say("Look.", origin="grpc")
    await begun.wait()
    joined = await world.say("And write.", mode=InputMode.STEER, origin="http")
    assert joined.steered
    go_on.set()
    await world.ended(said)
    assert await decided(world, said) == [(Verdict.DENY, "Not from there.")]
    assert (await world.state(said)).channels == ("grpc", "http")


async def test_a_question_that_is_asked_once_more_has_the_channel_of_then(begin: Begin) -> None:
    world = await begin(WRITES, tools=[PEN])
    said = await world.say("Write.", origin="http")
    question = await asked(world, said)
    world.clock.advance(world.expires + timedelta(seconds=1))
    await world.ended(said)
    world.gate = GATE
    again = await world.intake.reissue(ANA, question.approval_id)
    await world.ended(again)
    assert await decided(world, again) == [(Verdict.DENY, "Not from there.")]


async def test_second_looks_are_taken_with_the_channel_of_then(begin: Begin) -> None:
    world = await begin(WRITES, tools=[PEN])
    await world.shadows.start(ANA, [PolicyFile(name="/new/pens.cedar", text=RULE)])
    by_http = await world.say("Write.", key="one", origin="http")
    by_grpc = await world.say("Write.", key="two", origin="grpc")
    for said in (by_http, by_grpc):
        await asked(world, said)

    report = await world.shadows.report()
    assert (report.shadow.judged, report.shadow.flipped) == (2, 1)
    (clause,) = report.clauses
    assert [(one.run_id, one.would) for one in clause.examples] == [(by_http.run_id, Verdict.DENY)]

    past = await world.engine.read(lambda conn: list(policy_decisions.decided(conn)))
    again = {call.run_id: judge_again(GATE, call, PEN.spec).verdict for call in past}
    assert again == {by_http.run_id: Verdict.DENY, by_grpc.run_id: Verdict.ASK}
