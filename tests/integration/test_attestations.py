"""Attestations of a whole run: each execution has one, however it ended, and no call that was never carried out."""

from pathlib import Path

from palyra.core import attestation
from palyra.core.attestation import Statement, digest_of_text
from palyra.core.events import ChildEnded, PolicyDecided, ToolFinished
from palyra.core.limits import Limits
from palyra.core.run.state import RunStatus
from palyra.core.tool import CallOutcome, CallRuntime, JsonObject, Risk
from palyra.journal.proof.journal_proof import verify
from palyra.journal.proof.signing_key import is_signed
from palyra.providers.scripted import ScriptCall
from palyra.tools.base import ToolContext, tool
from tests.integration.cast import Door, first_calls
from tests.integration.conftest import Begin
from tests.integration.test_children import TASK, delegating
from tests.support.builders import ANA
from tests.support.eventually import eventually
from tests.support.world import SIGNER, Said, World

WRITE: JsonObject = {"path": "new.txt", "text": "Hello.\n"}


async def ends(world: World, run: Said) -> list[ToolFinished | ChildEnded]:
    return [event for event in await world.events(run) if isinstance(event, ToolFinished | ChildEnded)]


def stated(event: ToolFinished | ChildEnded) -> Statement:
    """Return what was stated about an execution, if it was signed."""
    signed = event.attestation
    assert signed is not None
    assert is_signed(SIGNER.public_key, signed.statement.encode(), signed.signature)
    return attestation.read(signed.statement)


async def test_an_execution_is_attested_in_the_entry_that_ends_it(begin: Begin) -> None:
    world = await begin(first_calls(ScriptCall(tool="files.read", arguments={"path": "notes.txt"})))
    said = await world.say("Where is the milk?")
    run = await world.ended(said)

    (end,) = await ends(world, said)
    found = stated(end)

    (decided,) = [event for event in await world.events(said) if isinstance(event, PolicyDecided)]
    assert (found.principal, found.agent_id) == (ANA, run.agent_id)
    assert (found.session_id, found.run_id, found.call_id) == (said.session_id, said.run_id, end.call_id)
    assert (found.tool, found.runtime, found.outcome) == ("files.read", CallRuntime.INTERNAL, CallOutcome.OK)
    assert (found.policy_hash, found.approval_id, found.grant_id) == (decided.policy_hash, None, None)
    assert (found.result, found.finished_at, found.attempt) == (digest_of_text(end.text), end.at, 1)
    assert (found.programs, found.full_result) == ((), None)
    report = await world.engine.read(verify)
    assert (report.attested, report.unattested) == (1, 0)


async def test_it_names_the_answer_that_let_it_run_and_what_a_person_made_of_the_arguments(begin: Begin) -> None:
    world = await begin(first_calls(ScriptCall(tool="files.write", arguments=WRITE)))
    said = await world.say("Do it.")
    await world.reaches(said, RunStatus.WAITING)
    (asked,) = await world.approvals.page(ANA, only_open=True, before=None, limit=9)
    changed = WRITE | {"text": "Goodbye.\n"}
    await world.approvals.resolve(ANA, asked.approval_id, allow=True, arguments=changed)
    await world.ended(said)

    found = stated((await ends(world, said))[0])

    assert found.approval_id == asked.approval_id
    assert found.arguments == attestation.digest_of_json(changed)


async def test_a_long_result_is_attested_whole(begin: Begin, workspace: Path) -> None:
    @tool(name="test.talk", risk=Risk.LOW, read_only=True)
    async def talk(context: ToolContext) -> str:
        """Talk a lot."""
        return "blah " * 10_000

    world = await begin(first_calls(ScriptCall(tool="test.talk"), then="Done."), tools=[talk])
    said = await world.say("Talk.")
    await world.ended(said)

    (end,) = await ends(world, said)
    found = stated(end)

    assert isinstance(end, ToolFinished)
    assert found.full_result is not None
    assert (found.full_result.artifact_id, found.full_result.size) == (end.artifact, 50_000)
    assert found.full_result.digest == digest_of_text("blah " * 10_000)
    assert found.result == digest_of_text(end.text) != found.full_result.digest


async def test_a_call_that_a_crash_interrupted_is_attested_as_such(begin: Begin) -> None:
    again, once = Door("door.again", repeatable=True, read_only=True), Door("door.once", read_only=True)
    calls = first_calls(ScriptCall(tool="door.again"), ScriptCall(tool="door.once"), then="Done.")
    world = await begin(calls, tools=[again.tool, once.tool])
    said = await world.say("Go.")
    await eventually(lambda: (again.came, once.came) == (1, 1))
    await world.crash()
    again.open.set()
    await world.ended(said)

    found = {one.tool: one for one in map(stated, await ends(world, said))}

    assert (found["door.again"].outcome, found["door.again"].attempt) == (CallOutcome.OK, 2)
    assert (found["door.once"].outcome, found["door.once"].attempt) == (CallOutcome.INTERRUPTED, 1)


async def test_a_call_that_outlasted_the_run_is_attested_as_interrupted(begin: Begin) -> None:
    door = Door()
    world = await begin(
        first_calls(ScriptCall(tool="door.wait"), then="Done."), tools=[door.tool], limits=Limits(wall_clock_ms=1_000)
    )
    said = await world.say("Wait.")
    await world.ended(said)

    assert stated((await ends(world, said))[0]).outcome is CallOutcome.INTERRUPTED


async def test_a_child_is_attested_with_its_answer(begin: Begin) -> None:
    world = await begin(delegating())
    said = await world.say("Have the sheep counted.")
    await world.ended(said)

    (end,) = await ends(world, said)
    found = stated(end)

    assert isinstance(end, ChildEnded)
    assert (found.tool, found.outcome) == ("agent.delegate", CallOutcome.OK)
    assert found.result == digest_of_text(end.text)
    assert found.arguments == attestation.digest_of_json({"task": TASK})


async def test_a_call_that_was_never_carried_out_is_not_attested(begin: Begin) -> None:
    calls = [ScriptCall(tool="time.now"), ScriptCall(tool="time.now"), ScriptCall(tool="no.such.tool")]
    world = await begin(first_calls(*calls, then="Done."), limits=Limits(tool_calls=1))
    said = await world.say("Go.")
    await world.ended(said)

    attested = [end.attestation is not None for end in await ends(world, said)]

    assert attested.count(True) == 1
    assert attested.count(False) >= 1
