"""What an answer is good for when the world changes between it and the call."""

import asyncio

import msgspec

from palyra.core.events import ToolFinished
from palyra.core.policy.approval import Approval, ApprovalScope
from palyra.core.policy.effect import Effect
from palyra.core.run.state import RunStatus
from palyra.core.tool import CallOutcome, Risk
from palyra.gateway.approval_export import chained
from palyra.policy.cedar_source import split
from palyra.policy.gate import Gate
from palyra.policy.loader import combine
from palyra.providers.scripted import Script, ScriptCall, ScriptCondition, ScriptRule, ScriptText
from palyra.tools.base import ToolContext, tool
from tests.integration.cast import first_calls
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.eventually import eventually
from tests.support.world import Said, World


class Slow:
    """A tool that waits before it is done, so that something can happen before the next call."""

    def __init__(self, *, risk: Risk = Risk.MEDIUM) -> None:
        self.done: list[str] = []
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

        async def preview(context: ToolContext, given: msgspec.Struct) -> Effect:
            text = given.text  # type: ignore[attr-defined]
            return Effect(risk=risk, summary=f"do {text}", kind="deed")

        @tool(name="slow.do", risk=risk, preview=preview)
        async def do(context: ToolContext, *, text: str) -> str:
            """Do something slowly."""
            self.begun.set()
            await self.go_on.wait()
            self.done.append(text)
            return f"did {text}"

        self.tool = do


async def asked(world: World, run: Said) -> Approval:
    await world.reaches(run, RunStatus.WAITING)
    (found,) = await world.approvals.page(ANA, only_open=True, before=None, limit=10)
    return found


def does(*texts: str) -> Script:
    return first_calls(*(ScriptCall(tool="slow.do", arguments={"text": text}) for text in texts))


async def test_an_answer_that_changes_the_arguments_holds_when_whoever_gave_it_has_gone(begin: Begin) -> None:
    slow = Slow(risk=Risk.HIGH)
    slow.go_on.set()
    world = await begin(does("x"), tools=[slow.tool])
    world.inbox = True
    said = await world.say("Do.")
    question = await asked(world, said)
    world.inbox = False
    await world.approvals.resolve(ANA, question.approval_id, allow=True, arguments={"text": "mine"})
    await world.ended(said)
    assert slow.done == ["mine"]


async def test_a_grant_that_is_taken_back_while_an_earlier_call_runs_covers_the_next_no_more(begin: Begin) -> None:
    slow = Slow()
    slow.go_on.set()
    script = Script(
        rules=(
            ScriptRule(
                when=ScriptCondition(contains="twice", tools=True),
                turns=(
                    tuple(ScriptCall(tool="slow.do", arguments={"text": text}) for text in ("one", "two")),
                    (ScriptText(text="Done: {result}"),),
                ),
            ),
            ScriptRule(
                when=ScriptCondition(tools=True),
                turns=((ScriptCall(tool="slow.do", arguments={"text": "first"}),), (ScriptText(text="Done."),)),
            ),
        ),
        default=(ScriptText(text="Done."),),
    )
    world = await begin(script, tools=[slow.tool])
    first = await world.say("Do.")
    question = await asked(world, first)
    await world.approvals.resolve(ANA, question.approval_id, allow=True, scope=ApprovalScope.ALWAYS)
    await world.ended(first)
    slow.go_on.clear()
    slow.begun.clear()

    said = await world.say("twice", key="twice")
    await eventually(slow.begun.is_set)
    (grant,) = await world.approvals.grants(ANA, limit=10)
    await world.approvals.revoke(ANA, grant.grant_id)
    slow.go_on.set()
    await world.ended(said)

    assert slow.done == ["first", "one"]
    finished = [event for event in await world.events(said) if isinstance(event, ToolFinished)]
    assert [event.outcome for event in finished] == [CallOutcome.OK, CallOutcome.DENIED]
    assert "an approval was revoked" in finished[1].text


async def test_policies_that_change_while_an_earlier_call_runs_count_for_the_next(begin: Begin) -> None:
    def gate(text: str) -> Gate:
        return Gate(combine(split(text, "test.cedar")))

    slow = Slow()
    world = await begin(does("one", "two"), tools=[slow.tool])
    world.gate = gate('@id("all") permit (principal, action == Action::"run", resource);')
    said = await world.say("Do.")
    await eventually(slow.begun.is_set)
    world.gate = gate('@id("none") @reason("Not any more.") forbid (principal, action, resource);')
    slow.go_on.set()
    await world.ended(said)
    assert slow.done == ["one"]
    finished = [event for event in await world.events(said) if isinstance(event, ToolFinished)]
    assert [event.outcome for event in finished] == [CallOutcome.OK, CallOutcome.DENIED]
    assert "Not any more." in finished[1].text


async def test_an_answer_tells_what_was_called_in_the_place_of_what_was_proposed(begin: Begin) -> None:
    slow = Slow()
    slow.go_on.set()
    world = await begin(does("x"), tools=[slow.tool])
    said = await world.say("Do.")
    question = await asked(world, said)
    answered = await world.approvals.resolve(ANA, question.approval_id, allow=True, arguments={"text": "mine"})
    (listed,) = await world.approvals.page(ANA, only_open=False, before=None, limit=10)
    assert answered.arguments == listed.arguments == {"text": "x"}
    assert answered.edited_arguments == listed.edited_arguments == {"text": "mine"}
    assert (await world.approvals.get(ANA, question.approval_id)).edited_arguments == {"text": "mine"}
    assert question.edited_arguments is None
    await world.ended(said)
    lines = [line async for line in chained(world.approvals, ANA)]
    assert b'"edited_arguments":{"text":"mine"}' in lines[0]
