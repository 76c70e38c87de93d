"""A candidate set of policies beside the one in force: it judges, it decides nothing, and where it differs is told."""

import asyncio
from datetime import timedelta

import pytest

from palyra.core.events import ApprovalRequested, PolicyDecided
from palyra.core.policy.policy_shadow import PolicyFile
from palyra.core.run.state import RunStatus
from palyra.core.tool import Risk, Verdict
from palyra.journal.engines.base import Connection
from palyra.journal.stores import policy_shadows
from palyra.policy.loader import PolicyInvalid
from palyra.providers.scripted import Script, ScriptCall
from palyra.runs.services import policy_shadow as shadow_module
from palyra.runs.services.policy_shadow import PolicyShadowService, ShadowPolicyInvalid, ShadowPolicyNotFound
from palyra.tools.base import Tool, ToolContext, tool
from tests.integration.cast import first_calls, on_postgres, on_sqlite
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.eventually import eventually
from tests.support.world import World

OPEN = '@id("pens-write") @reason("Pens are harmless.") permit (principal, action, resource == Tool::"pen.write");'
CLOSED = '@id("no-pens") @reason("No ink.") forbid (principal, action, resource == Tool::"pen.write");'
ERRS = """@id("overflows")
forbid (principal, action, resource) when { context.risk_level - 9223372036854775807 - 10 > 0 };"""


def candidate(text: str, name: str = "/new/pens.cedar") -> list[PolicyFile]:
    return [PolicyFile(name=name, text=text)]


def a_pen(written: list[str]) -> Tool:
    @tool(name="pen.write", risk=Risk.MEDIUM)
    async def write(context: ToolContext, *, text: str) -> str:
        """Write."""
        written.append(text)
        return f"wrote {text}"

    return write


async def a_question(world: World, text: str = "Write.", *, key: str = "main") -> str:
    """Have the pen asked about, and return the run."""
    said = await world.say(text, key=key)
    await world.reaches(said, RunStatus.WAITING)
    return said.run_id


def writes(text: str = "x") -> Script:
    return first_calls(ScriptCall(tool="pen.write", arguments={"text": text}))


async def test_it_decides_nothing_and_what_it_would_have_decided_is_told(begin: Begin) -> None:
    written: list[str] = []
    world = await begin(writes(), tools=[a_pen(written)])
    await world.shadows.start(ANA, candidate(OPEN))
    run = await a_question(world)
    # The policies in force asked, whatever the candidate says.
    assert written == []
    events = await world.events(run)
    (decided,) = [event for event in events if isinstance(event, PolicyDecided)]
    assert (decided.verdict, decided.policies) == (Verdict.ASK, ("changes-ask",))

    report = await world.shadows.report()

    assert (report.shadow.judged, report.shadow.flipped, report.shadow.failed) == (1, 1, 0)
    (clause,) = report.clauses
    assert (clause.was, clause.was_by) == (Verdict.ASK, ("changes-ask",))
    assert (clause.would, clause.would_by, clause.calls) == (Verdict.ALLOW, ("pens-write",), 1)
    (example,) = clause.examples
    assert (example.call_id, example.tool, example.run_id) == (decided.call_id, "pen.write", run)
    assert (example.was_reason, example.would_reason) == (decided.reason, "Pens are harmless.")
    assert example.was_hash == decided.policy_hash


async def test_calls_about_which_both_agree_are_counted_and_nothing_is_written_for_them(begin: Begin) -> None:
    world = await begin(
        first_calls(ScriptCall(tool="time.now"), ScriptCall(tool="no.such"), ScriptCall(tool="time.now"))
    )
    await world.shadows.start(ANA, candidate(OPEN))
    await world.ended(await world.say("What time is it?"))
    # It is known here, and goes to the journal with the next write of the shadow.
    found = await world.engine.read(policy_shadows.latest)
    assert found is not None
    assert found[0].judged == 0
    report = await world.shadows.report()
    # What fits no tool was never put before a policy.
    assert (report.shadow.judged, report.clauses) == (2, [])


async def test_it_goes_on_after_a_crash_and_what_it_found_is_not_lost(begin: Begin) -> None:
    written: list[str] = []
    world = await begin(writes(), tools=[a_pen(written)])
    begun = await world.shadows.start(ANA, candidate(CLOSED))
    await a_question(world, key="one")
    _: bool = await eventually(lambda: world.engine.read(_has_flip), timeout=60)
    await world.crash()
    await a_question(world, key="two")
    report = await world.shadows.report()
    assert (report.shadow.shadow_id, report.shadow.flipped) == (begun.shadow_id, 2)
    assert [(clause.would, clause.would_by) for clause in report.clauses] == [(Verdict.DENY, ("no-pens",))]


async def _flipped(world: World) -> int:
    return (await world.shadows.report()).shadow.flipped


def _has_flip(conn: Connection) -> bool:
    found = policy_shadows.latest(conn)
    assert found is not None
    assert found[0].flipped == 1
    return True


async def test_a_changed_candidate_takes_its_place_at_once_and_the_same_one_goes_on(begin: Begin) -> None:
    world = await begin(writes(), tools=[a_pen([])])
    first = await world.shadows.start(ANA, candidate(OPEN))
    await a_question(world, key="one")
    same = await world.shadows.start(ANA, candidate(OPEN))
    assert (same.shadow_id, same.flipped) == (first.shadow_id, 1)
    world.clock.advance(timedelta(seconds=1))
    second = await world.shadows.start(ANA, candidate(CLOSED))
    assert second.shadow_id != first.shadow_id
    assert (await world.shadows.report()).clauses == []
    await a_question(world, key="two")
    (clause,) = (await world.shadows.report()).clauses
    assert (clause.would, clause.calls) == (Verdict.DENY, 1)


async def test_one_that_can_not_be_used_is_refused_with_its_place_and_the_one_before_goes_on(begin: Begin) -> None:
    world = await begin(writes(), tools=[a_pen([])])
    kept = await world.shadows.start(ANA, candidate(OPEN))
    for text, place in (
        ('@id("a")\npermit (principal, action, resourc);', "/new/pens.cedar:2:"),
        ('@id("a") permit (principal, action, resource)\nwhen { context.mood };', "/new/pens.cedar:2:16"),
        ("permit (principal, action, resource);", "/new/pens.cedar:1:1"),
    ):
        with pytest.raises(PolicyInvalid, match=r"no name|cannot be parsed|schema") as refused:
            await world.shadows.start(ANA, candidate(text))
        assert place in refused.value.detail
    for files in ([], candidate(OPEN) * 2, candidate(OPEN, name=" ")):
        with pytest.raises(ShadowPolicyInvalid):
            await world.shadows.start(ANA, files)
    assert (await world.shadows.report()).shadow == kept
    await a_question(world)
    assert await _flipped(world) == 1


async def test_one_that_errs_denies_in_the_report_and_nowhere_else(begin: Begin) -> None:
    world = await begin(first_calls(ScriptCall(tool="time.now")))
    await world.shadows.start(ANA, candidate(ERRS))
    said = await world.say("Time?")
    assert (await world.ended(said)).status is RunStatus.DONE
    assert [event.verdict for event in await world.events(said) if isinstance(event, PolicyDecided)] == [Verdict.ALLOW]
    (clause,) = (await world.shadows.report()).clauses
    assert (clause.would, clause.would_by) == (Verdict.DENY, ("overflows",))
    assert "cannot be evaluated" in clause.examples[0].would_reason


async def test_one_that_breaks_outright_is_told_of_and_the_run_does_not_notice(begin: Begin) -> None:
    """A candidate from an earlier version may not fit the engine of today: it was checked by another one."""
    world = await begin(first_calls(ScriptCall(tool="time.now")))
    await world.shadows.start(ANA, candidate(OPEN))
    await world.engine.write(
        lambda conn: conn.execute("UPDATE shadows SET files = :files", {"files": '[{"name":"/x","text":"permit ("}]'})
    )
    await world.crash()
    assert world.shadows.active
    said = await world.say("Time?")
    assert (await world.ended(said)).status is RunStatus.DONE
    report = await world.shadows.report()
    assert (report.shadow.judged, report.shadow.failed, report.clauses) == (0, 1, [])
    assert report.shadow.failure


async def test_a_grant_counts_for_both_and_an_edited_call_is_not_judged_twice(begin: Begin) -> None:
    written: list[str] = []
    world = await begin(writes("a"), tools=[a_pen(written)])
    await world.shadows.start(ANA, candidate('@id("nothing") forbid (principal, action, resource == Tool::"none");'))
    run = await a_question(world)
    (question,) = [event for event in await world.events(run) if isinstance(event, ApprovalRequested)]
    await world.approvals.resolve(ANA, question.approval_id, allow=True, arguments={"text": "b"})
    await world.ended(run)
    assert written == ["b"]
    report = await world.shadows.report()
    assert (report.shadow.judged, report.clauses) == (1, [])


async def test_stopped_it_is_asked_no_more_and_its_report_stays(begin: Begin) -> None:
    world = await begin(writes(), tools=[a_pen([])])
    with pytest.raises(ShadowPolicyNotFound):
        await world.shadows.report()
    with pytest.raises(ShadowPolicyNotFound):
        await world.shadows.stop(ANA)
    await world.shadows.start(ANA, candidate(OPEN))
    await a_question(world, key="one")
    ended = await world.shadows.stop(ANA)
    assert (ended.stopped_by, ended.flipped) == (ANA, 1)
    await a_question(world, key="two")
    assert await _flipped(world) == 1
    with pytest.raises(ShadowPolicyNotFound):
        await world.shadows.stop(ANA)
    await world.crash()
    assert not world.shadows.active


@on_sqlite
async def test_what_can_not_be_written_down_now_is_written_down_later(begin: Begin) -> None:
    world = await begin(writes(), tools=[a_pen([])])
    await world.shadows.start(ANA, candidate(OPEN))
    # The rows are out of reach, as on a full disk: whatever the shadow writes fails, and nothing else does.
    await world.engine.write(lambda conn: conn.execute("ALTER TABLE shadows RENAME TO away"))
    await a_question(world, key="one")
    await world.engine.write(lambda conn: conn.execute("ALTER TABLE away RENAME TO shadows"))
    await a_question(world, key="two")
    assert await _flipped(world) == 2


@on_postgres
async def test_every_daemon_of_a_journal_learns_of_it(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_module, "READ_SECONDS", 0.02)
    world = await begin(writes(), tools=[a_pen([])])
    other = PolicyShadowService(world.engine, clock=world.clock, ids=world.ids, shared=True)
    await other.load()
    watching = asyncio.create_task(other.watch())

    try:
        await world.shadows.start(ANA, candidate(OPEN))
        await eventually(lambda: other.active)
        await world.shadows.stop(ANA)
        await eventually(lambda: not other.active)
    finally:
        watching.cancel()
