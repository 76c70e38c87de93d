"""Several daemons on one journal: each run has one carrier, and one that was taken over can not write any more."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest

from palyra.core.clock import to_ms
from palyra.core.events import ModelText, RunFailed
from palyra.core.ids import RunId
from palyra.core.model.prompt import ModelEvent, Prompt, TextDelta
from palyra.core.run.state import RunStatus
from palyra.core.tool import Risk
from palyra.journal.engines.base import Connection
from palyra.journal.stores import leases, runs
from palyra.journal.stores.leases import Lease, LeaseLost
from palyra.providers.scripted import Script, ScriptCall, ScriptCondition, ScriptRule, ScriptText
from palyra.runs.engine import worker
from palyra.runs.recording.replay import replay
from palyra.runs.recording.run_writer import write_run
from palyra.sandbox.files.file_changes import ExistingFile, FileChange
from palyra.tools.base import Tool, ToolContext, tool
from tests.integration.cast import DONE, ECHO, Bell, Door, first_calls, held, inputs, on_postgres
from tests.integration.conftest import Begin
from tests.support.builders import a_failure
from tests.support.eventually import eventually
from tests.support.world import Model, World

EXPIRED = timedelta(milliseconds=leases.LENGTH_MS + 1)


@pytest.fixture(autouse=True)
def _sweep_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers in different processes do not wake one another here, so they must look."""
    monkeypatch.setattr(worker, "SWEEP_SECONDS", 0.05)


async def beside(begin: Begin, first: World, model: Model | None = None) -> World:
    """Start a second daemon on the journal of the first."""
    return await begin(model or ECHO, clock=first.clock, ids=first.ids, house="next door")


def frozen(until: asyncio.Event) -> Callable[[], Awaitable[None]]:
    """Return what holds up each write of a daemon, as if its machine stood still."""

    async def wait() -> None:
        await until.wait()

    return wait


@on_postgres
async def test_each_run_is_carried_once(begin: Begin) -> None:
    asked: list[str] = []

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        asked.append(inputs(prompt)[-1])
        yield TextDelta("Yes.")
        yield DONE

    here = await begin(Model(speak))
    there = await beside(begin, here, Model(speak))
    texts = [f"Number {number}." for number in range(30)]
    async with asyncio.TaskGroup() as group:
        said = [group.create_task((here, there)[number % 2].say(text, key=text)) for number, text in enumerate(texts)]
    done = await here.all_ended([one.result() for one in said])
    assert {(run.status, run.turns) for run in done} == {(RunStatus.DONE, 1)}
    assert sorted(asked) == sorted(texts)


@on_postgres
async def test_a_run_whose_carrier_stands_still_is_taken_over_and_the_old_one_can_not_write(begin: Begin) -> None:
    thaw, gate = asyncio.Event(), asyncio.Event()
    here = await begin(held(gate))
    said = await here.say("Hello.")
    await here.seen(said, "model_text")
    here.line.before_write = frozen(thaw)
    there = await beside(begin, here)
    here.clock.advance(EXPIRED)
    run = await there.ended(said)
    assert run.status is RunStatus.DONE
    before = await there.tape(said.session_id)
    thaw.set()
    gate.set()
    await eventually(lambda: here.worker.active_runs == 0)
    await there.quiet()
    texts = [event.text for event in await there.events(said) if isinstance(event, ModelText)]
    assert texts == ["Well, ", "You said: Hello."]
    assert (await there.tape(said))[-1] == [entry for entry in before if entry.run_id == said.run_id][-1]
    assert await here.ask("Are you there?", key="other") in (
        "Well, you said: Are you there?",
        "You said: Are you there?",
    )


@on_postgres
async def test_a_run_whose_carrier_died_is_taken_over_when_its_lease_is_over_and_not_before(begin: Begin) -> None:
    bell, door = Bell(), Door()
    calls = first_calls(ScriptCall(tool="bell.ring"), ScriptCall(tool="door.wait"), then="Done.")
    here = await begin(calls, tools=[bell.tool, door.tool])
    said = await here.say("Go.")
    await eventually(lambda: door.came)
    there = await begin(calls, clock=here.clock, ids=here.ids, house="next door")
    await here.die()
    now_ms = to_ms(here.clock.now())
    claimable = await there.engine.write(
        lambda conn: leases.claim(conn, leases.RUNS, owner="x:y", now_ms=now_ms, limit=10)
    )
    assert claimable == []
    assert (await there.run(said)).status is RunStatus.IN_PROGRESS
    here.clock.advance(EXPIRED)
    assert (await there.ended(said)).status is RunStatus.DONE
    assert (bell.rung[""], door.came) == (1, 1)


async def test_an_old_lease_is_refused_and_nothing_is_recorded(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    said = await world.say("Hello.")
    await world.seen(said, "model_text")
    state = await world.state(said)
    for lease in (
        Lease(said.run_id, "somebody:else", 1),
        Lease(said.run_id, (await _lease(world, said.run_id)).owner, 0),
    ):
        with pytest.raises(LeaseLost):
            await world.engine.write(
                lambda conn, lease=lease: write_run(conn, state, [a_failure()], lease=lease, ids=world.ids)  # type: ignore[misc]
            )
    assert not [event for event in await world.events(said) if isinstance(event, RunFailed)]
    gate.set()
    assert (await world.ended(said)).status is RunStatus.DONE


async def _lease(world: World, run_id: str) -> Lease:
    mark = await world.engine.write(lambda conn: runs.mark(conn, RunId(run_id)))
    assert mark.lease is not None
    return mark.lease


async def test_a_machine_that_slept_does_not_take_its_own_runs_from_itself(begin: Begin) -> None:
    """All its leases are over when it wakes up, and it looks for runs to take up before it renews them."""
    door = Door()
    goes = ScriptRule(
        when=ScriptCondition(equals="Go."), turns=((ScriptCall(tool="door.wait"),), (ScriptText(text="Done."),))
    )
    world = await begin(Script(rules=(goes,), default=(ScriptText(text="Yes."),)), tools=[door.tool])
    said = await world.say("Go.")
    await eventually(lambda: door.came)
    for _ in range(3):
        world.clock.sleep(timedelta(hours=8))
        await world.ask("Is anybody there?", key="other")
    door.open.set()
    run = await world.ended(said)
    assert (run.status, door.came, door.sent_away) == (RunStatus.DONE, 1, 0)
    assert "run_resumed" not in await world.kinds(said)


async def test_leases_are_renewed_while_a_run_is_carried(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "RENEW_SECONDS", 0.02)
    gate = asyncio.Event()
    world = await begin(held(gate))
    said = await world.say("Hello.")
    await world.seen(said, "model_text")

    def until(conn: Connection) -> int:
        row = conn.fetch_one("SELECT lease_until_ms FROM runs WHERE run_id = :run_id", {"run_id": said.run_id})
        assert row is not None
        return int(row[0])

    before = await world.engine.read(until)
    world.clock.advance(timedelta(seconds=5))

    async def look() -> bool:
        return await world.engine.read(until) >= before + 5_000

    renewed: bool = await eventually(look)
    assert renewed
    gate.set()
    await world.ended(said)


async def test_a_run_that_was_taken_away_stops_its_tools(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "RENEW_SECONDS", 0.02)
    door = Door()
    world = await begin(first_calls(ScriptCall(tool="door.wait"), then="Done."), tools=[door.tool])
    said = await world.say("Go.")
    await eventually(lambda: door.came)
    await world.worker.park(seconds=0)
    await world.engine.write(
        lambda conn: conn.execute("UPDATE runs SET lease_owner = 'next door:1', lease_epoch = lease_epoch + 1")
    )
    await eventually(lambda: door.sent_away)
    await eventually(lambda: world.worker.active_runs == 0)
    assert (await world.kinds(said))[-1] == "tool_started", "nothing may be recorded without the lease"
    state = await world.engine.read(lambda conn: replay(conn, said.run_id))
    assert state.status is RunStatus.IN_PROGRESS


@on_postgres
async def test_a_daemon_that_was_frozen_before_it_kept_a_file_does_not_change_the_file(begin: Begin) -> None:
    """Frozen inside a file change, taken over, and awake again: the change is made once."""
    changed: list[str] = []

    def a_change(who: str) -> Tool:
        @tool(name="file.change", risk=Risk.LOW, repeatable=True)
        async def change(context: ToolContext) -> str:
            """Change a file."""
            if not await context.storage.earlier():
                await context.storage.checkpoint([FileChange(ExistingFile("/w", "/w/x", None), b"x")])
            changed.append(who)
            return "changed"

        return change

    thaw = asyncio.Event()
    here = await begin(first_calls(ScriptCall(tool="file.change")), tools=[a_change("here")])

    async def freeze() -> None:
        if not thaw.is_set() and "tool_started" in await here.kinds(said):
            await thaw.wait()

    said = await here.say("Go.", key="main")
    here.line.before_write = freeze
    await here.seen(said, "tool_started")
    there = await begin(
        first_calls(ScriptCall(tool="file.change")),
        tools=[a_change("there")],
        clock=here.clock,
        ids=here.ids,
        house="next door",
    )
    here.clock.advance(EXPIRED)
    assert (await there.ended(said)).status is RunStatus.DONE
    assert changed == ["there"]
    thaw.set()
    await eventually(lambda: here.worker.active_runs == 0)
    assert changed == ["there"], "the one that was frozen found out before it changed anything"
