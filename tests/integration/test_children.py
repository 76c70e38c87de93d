"""A run that hands a task to a child waits without being carried, and gets its answer, whatever happens meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator
from itertools import count

import pytest

from palyra.core.events import ChildEnded, ChildStarted, RunAccepted
from palyra.core.ids import CallId, RunId
from palyra.core.limits import Limits
from palyra.core.message import AcceptedMessage, repair_text
from palyra.core.model.prompt import ModelEvent, Prompt, TextDelta
from palyra.core.policy import labels
from palyra.core.run.state import RunStatus
from palyra.core.session_events import SessionCreated
from palyra.core.tool import CallOutcome
from palyra.journal import tape
from palyra.journal.engines.base import Connection
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.scripted import ScriptCall
from palyra.runs.engine import child_runs
from tests.integration.cast import DONE, Bell, a_call, first_calls, inputs, on_postgres, on_sqlite, results
from tests.integration.conftest import Begin
from tests.support.eventually import eventually
from tests.support.world import ATTESTER, Model, World

TASK = "Count the sheep."


def delegating(gate: asyncio.Event | None = None, *, task: str = TASK, tasks: int = 1) -> Model:
    """Return a model that hands over every message but the task itself, which it does when the gate is open."""

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        if inputs(prompt)[-1] == repair_text(task):
            if gate is not None:
                await gate.wait()
            yield TextDelta("Seven sheep.")
        elif results(prompt):
            yield TextDelta(f"I was told: {results(prompt)[-1]}")
        else:
            for number in range(tasks):
                yield a_call("agent.delegate", {"task": task}, call_id=f"c{number}")
        yield DONE

    return Model(speak)


async def row_of(world: World, run: AcceptedMessage) -> tuple[object, ...]:
    def query(conn: Connection) -> tuple[object, ...]:
        row = conn.fetch_one(
            "SELECT status, lease_owner, ready FROM runs WHERE run_id = :run_id", {"run_id": run.run_id}
        )
        assert row is not None
        return row

    return await world.engine.read(query)


async def test_the_parent_waits_uncarried_and_the_childs_answer_comes_back(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(delegating(gate))
    parent = await world.say("How many sheep?")
    child = await world.child_of(parent)
    await world.seen(child, "model_turn_started")
    assert await row_of(world, parent) == ("waiting", None, 0)
    await eventually(lambda: world.worker.active_runs == 1)
    gate.set()
    run = await world.ended(parent)
    assert run.status is RunStatus.DONE
    assert (await world.messages(parent))[-1].text == "I was told: Seven sheep."
    (ended,) = [event for event in await world.events(parent) if isinstance(event, ChildEnded)]
    assert (ended.outcome, ended.text, ended.child_run_id) == (CallOutcome.OK, "Seven sheep.", child.run_id)
    await world.quiet()


async def test_the_child_has_a_session_of_its_own_the_parents_rights_and_what_is_left_of_its_limits(
    begin: Begin,
) -> None:
    world = await begin(delegating(), limits=Limits(model_turns=9, tool_calls=5, wall_clock_ms=60_000))
    parent = await world.say("How many sheep?")
    await world.ended(parent)
    child = await world.child_of(parent)
    assert child.session_id != parent.session_id
    session = await world.session(child)
    assert session.parent_session_id == parent.session_id
    created, accepted = (await world.events(child.session_id))[:2]
    assert isinstance(created, SessionCreated)
    assert isinstance(accepted, RunAccepted)
    assert (accepted.principal, accepted.agent_id) == (session.principal, (await world.run(parent)).agent_id)
    assert accepted.actor == f"run:{parent.run_id}"
    assert accepted.labels == (labels.OWNER, labels.TOOL)
    assert (accepted.limits.model_turns, accepted.limits.tool_calls) == (8, 4)
    assert 0 < accepted.limits.wall_clock_ms <= 60_000
    assert accepted.parent is not None
    assert (accepted.parent.run_id, accepted.parent.depth) == (parent.run_id, 1)
    asked = next(prompt for prompt in world.prompts if inputs(prompt) == [TASK])
    assert len(asked.messages) == 1, "a child does not see its parent's conversation"


async def test_several_children_work_at_the_same_time(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(delegating(gate, tasks=3))
    parent = await world.say("How many sheep?")
    await world.child_of(parent, number=3)
    await world.reaches(parent, RunStatus.WAITING)
    gate.set()
    assert (await world.ended(parent)).status is RunStatus.DONE
    assert results(world.prompts[-1]) == ["Seven sheep."] * 3


async def test_a_run_waits_for_its_child_after_its_other_calls_have_run(begin: Begin) -> None:
    bell = Bell()
    gate = asyncio.Event()

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        if inputs(prompt)[-1] == TASK:
            await gate.wait()
            yield TextDelta("Seven sheep.")
        elif results(prompt):
            yield TextDelta("Done.")
        else:
            yield a_call("agent.delegate", {"task": TASK})
            yield a_call("bell.ring", {"who": "ana"}, call_id="c2")
        yield DONE

    world = await begin(Model(speak), tools=[bell.tool])
    parent = await world.say("Delegate, then ring.")
    await world.reaches(parent, RunStatus.WAITING)
    assert bell.rung["ana"] == 1
    gate.set()
    await world.ended(parent)
    assert results(world.prompts[-1]) == ["Seven sheep.", "rung 1 times"]


@on_sqlite
async def test_children_stand_at_most_three_deep_and_the_last_is_told_why(begin: Begin) -> None:
    def task(depth: int) -> str:
        return f"level {depth}"

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        depth = int(inputs(prompt)[-1].removeprefix("level "))
        if results(prompt):
            yield TextDelta(f"{depth}: {results(prompt)[-1]}")
        else:
            yield a_call("agent.delegate", {"task": task(depth + 1)})
        yield DONE

    world = await begin(Model(speak))
    top = await world.say(task(0))
    assert (await world.ended(top)).status is RunStatus.DONE
    assert len(await world.runs()) == 4
    assert (await world.messages(top))[-1].text == (
        "0: 1: 2: 3: [error] a run may be at most 3 levels below the first; do this task yourself"
    )


@on_sqlite
async def test_a_run_has_at_most_so_many_children_and_is_told_why(begin: Begin) -> None:
    world = await begin(delegating(tasks=3), limits=Limits(max_children=2))
    parent = await world.say("How many sheep?")
    assert (await world.ended(parent)).status is RunStatus.DONE
    assert results(world.prompts[-1]) == [
        "Seven sheep.",
        "Seven sheep.",
        "[error] a run may have at most 2 child runs; do this task yourself",
    ]
    assert len([run for run in await world.runs() if run.parent_run_id]) == 2


async def test_a_child_that_fails_is_reported_to_its_parent(begin: Begin) -> None:
    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        if inputs(prompt)[-1] == TASK:
            raise ProviderFailed("The sheep are gone.", kind=FailureKind.UNAVAILABLE)
        if results(prompt):
            yield TextDelta("I could not.")
        else:
            yield a_call("agent.delegate", {"task": TASK})
        yield DONE

    world = await begin(Model(speak))
    parent = await world.say("How many sheep?")
    assert (await world.ended(parent)).status is RunStatus.DONE
    assert results(world.prompts[-1]) == ["[error] the child run ended failed: The sheep are gone."]


async def test_a_child_that_is_cancelled_is_reported_to_its_parent(begin: Begin) -> None:
    world = await begin(delegating(asyncio.Event()))
    parent = await world.say("How many sheep?")
    child = await world.child_of(parent)
    await world.seen(child, "model_turn_started")
    await world.cancel(child)
    assert (await world.ended(parent)).status is RunStatus.DONE
    assert results(world.prompts[-1]) == ["[error] the child run ended cancelled: cancelled by its owner"]


@on_sqlite
async def test_an_empty_task_is_refused(begin: Begin) -> None:
    world = await begin(first_calls(ScriptCall(tool="agent.delegate", arguments={"task": ""}), then="Well."))
    said = await world.say("Go.")
    assert (await world.ended(said)).status is RunStatus.DONE
    assert results(world.prompts[-1])[0].startswith("[denied]")


async def test_a_task_with_characters_that_no_text_may_hold_still_gets_done(begin: Begin) -> None:
    world = await begin(delegating(task="Count\0the sheep."))
    parent = await world.say("How many sheep?")
    child = await world.child_of(parent)
    assert (await world.ended(child)).status is RunStatus.DONE
    assert (await world.ended(parent)).status is RunStatus.DONE


async def test_killed_after_any_commit_parent_and_child_go_on_to_their_ends(begin: Begin) -> None:
    world = await begin(delegating())
    for commits in count(1):
        world.dies_after(commits)
        parent = await world.say(f"How many sheep? ({commits})", key=f"session {commits}")
        died = await world.dies_before_end_of(parent)
        if died:
            await world.crash()
        assert (await world.ended(parent)).status is RunStatus.DONE
        assert (await world.messages(parent))[-1].text == "I was told: Seven sheep."
        kinds = await world.kinds(parent)
        # A delegation does nothing before its child is on the tape, so it may be repeated; the child may not.
        assert (kinds.count("child_started"), kinds.count("child_ended")) == (1, 1)
        if not died:
            break
    assert commits > 10
    await world.quiet()
    assert len([run for run in await world.runs() if run.parent_run_id]) == commits


async def test_a_parent_that_is_killed_while_it_waits_still_hears_from_its_child(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(delegating(gate))
    parent = await world.say("How many sheep?")
    child = await world.child_of(parent)
    await world.seen(child, "model_turn_started")
    await world.crash()
    assert (await world.run(parent)).status is RunStatus.WAITING
    gate.set()
    assert (await world.ended(parent)).status is RunStatus.DONE
    assert "run_resumed" not in await world.kinds(parent), "nothing of the parent was under way"


@on_postgres
async def test_a_child_does_not_begin_while_somebody_writes_to_its_parent(begin: Begin) -> None:
    """Else a cancel of the parent that is about to commit would look for a child that is about to begin, in vain."""
    world = await begin(delegating(asyncio.Event()))
    parent = await _waits_for_unborn_child(world)
    (started,) = [event for event in await world.events(parent) if isinstance(event, ChildStarted)]
    holds, release = threading.Event(), threading.Event()

    def hold(conn: Connection) -> None:
        tape.lock(conn, parent.session_id)
        holds.set()
        release.wait(60)

    async with asyncio.TaskGroup() as group:
        group.create_task(world.engine.write(hold))
        await asyncio.to_thread(holds.wait, 60)
        beginning = group.create_task(
            world.engine.write(
                lambda conn: child_runs.start(
                    conn, RunId(parent.run_id), CallId(started.call_id), ids=world.ids, at=world.clock.now()
                )
            )
        )
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(beginning), 0.3)
        release.set()
    assert await world.engine.read(lambda conn: _exists(conn, started.child_run_id))
    await world.cancel(parent)


async def _waits_for_unborn_child(world: World) -> AcceptedMessage:
    """Return a run that waits for a child which nobody has begun, as after a crash right behind its `ChildStarted`."""
    await world.stop_queue()
    parent = await world.say("How many sheep?")
    await world.reaches(parent, RunStatus.WAITING)
    return parent


def _exists(conn: Connection, run_id: str) -> bool:
    return conn.fetch_one("SELECT 1 FROM runs WHERE run_id = :run_id", {"run_id": run_id}) is not None


@on_sqlite
async def test_a_parent_that_was_cancelled_before_its_child_began_gets_none(begin: Begin) -> None:
    world = await begin(delegating(asyncio.Event()))
    parent = await _waits_for_unborn_child(world)
    await world.cancel(parent)
    await world.crash()
    await world.quiet()
    assert len(await world.runs()) == 1


@on_sqlite
async def test_a_result_of_a_child_is_not_reported_twice(begin: Begin) -> None:
    world = await begin(delegating())
    parent = await world.say("How many sheep?")
    await world.ended(parent)
    await world.quiet()
    child = await world.child_of(parent)
    before = await world.tape(parent.session_id)
    await world.engine.write(
        lambda conn: child_runs.report(conn, child.run_id, attester=ATTESTER, clock=world.clock, ids=world.ids)
    )
    assert await world.tape(parent.session_id) == before
