"""A clock that was years ahead once, and was set right: what was recorded meanwhile holds nothing up."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from palyra.background.jobs import cleanup, retention
from palyra.core.clock import to_ms
from palyra.core.ids import TaskId
from palyra.core.policy.approval import ApprovalScope
from palyra.core.run.state import RunStatus
from palyra.journal.ledger import accounts
from palyra.journal.stores import tasks
from palyra.providers.scripted import ScriptCall
from tests.integration.cast import ECHO, Bell, first_calls, held
from tests.integration.conftest import Begin
from tests.integration.test_approvals import Pen, asked, writes
from tests.integration.test_budgets import MOST, failure, money, priced
from tests.support.builders import ANA
from tests.support.eventually import eventually
from tests.support.world import World

YEARS = timedelta(days=9 * 365)
ROUND = timedelta(milliseconds=cleanup.EVERY_MS)


async def test_the_last_session_and_the_last_run_are_those_that_were_used_last(begin: Begin) -> None:
    world = await begin(ECHO)
    world.clock.sleep(YEARS)
    await world.ended(ahead := await world.say("Hello from the future.", key="ahead"))
    world.clock.sleep(-YEARS)
    await world.ended(now := await world.say("Hello.", key="now"))

    listed = await world.sessions.page(ANA, archived=False, before=None, limit=9)
    runs = await world.control.page(ANA, session_id=None, before=None, limit=9)

    assert [one.session_id for one in listed] == [now.session_id, ahead.session_id]
    assert [one.run_id for one in runs] == [now.run_id, ahead.run_id]


async def test_a_session_goes_on_in_the_order_of_its_tape(begin: Begin) -> None:
    world = await begin(ECHO)
    world.clock.sleep(YEARS)
    await world.ended(await world.say("one"))
    world.clock.sleep(-YEARS)
    assert await world.ask("two") == "You said: two"
    assert [message.text for message in world.prompts[-1].messages][::2] == ["one", "two"]


async def test_a_run_under_way_goes_on_when_the_clock_is_set_right(begin: Begin) -> None:
    bell = Bell()
    world = await begin(first_calls(ScriptCall(tool="bell.ring")), tools=[bell.tool])
    world.clock.sleep(YEARS)
    reached, release = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await release.wait()

    world.line.before_write = hold
    said = await world.say("Ring.")
    await asyncio.wait_for(reached.wait(), 60)
    world.clock.sleep(-YEARS)
    release.set()
    assert (await world.ended(said)).status is RunStatus.DONE
    assert bell.rung == {"": 1}


async def test_the_lease_of_a_daemon_that_died_ahead_does_not_last_for_years(begin: Begin) -> None:
    here = await begin(held(asyncio.Event()))
    here.clock.sleep(YEARS)
    said = await here.say("Go.")
    await here.seen(said, "model_turn_started")
    await here.die()
    here.clock.sleep(-YEARS)
    there = await begin(ECHO, clock=here.clock, ids=here.ids, house="next door")
    assert (await there.ended(said)).status is RunStatus.DONE


async def test_what_was_allowed_for_a_time_while_the_clock_was_ahead_is_asked_about_again(begin: Begin) -> None:
    pen = Pen()
    world = await begin(writes("again"), tools=[pen.tool])
    world.clock.sleep(YEARS)
    first = await world.say("again")
    (question,) = await asked(world, first)
    await world.approvals.resolve(
        ANA, question.approval_id, allow=True, scope=ApprovalScope.TIMEBOXED, ttl=timedelta(minutes=5)
    )
    await world.ended(first)
    world.clock.sleep(-YEARS)
    await asked(world, await world.say("again", key="second"))
    assert pen.written == ["again"]


async def test_a_budget_that_is_spent_stays_so_after_a_clock_that_was_ahead(begin: Begin) -> None:
    world = await priced(begin, daily=money(MOST))
    await world.ended(await world.say("One."))
    assert (await failure(world, await world.say("Two."))).code == "budget_exceeded"

    world.clock.sleep(YEARS)
    assert (await world.ended(await world.say("A day with a budget of its own."))).status is RunStatus.DONE
    ahead_ms = to_ms(world.clock.now())
    assert await world.engine.write(lambda conn: accounts.sweep(conn, now_ms=ahead_ms)) > 0

    world.clock.sleep(-YEARS)
    assert (await failure(world, await world.say("Three."))).code == "budget_exceeded"


async def test_what_was_spent_while_the_clock_was_ahead_is_not_taken_from_today(begin: Begin) -> None:
    world = await priced(begin, daily=money(MOST))
    world.clock.sleep(YEARS)
    await world.ended(await world.say("One."))
    world.clock.sleep(-YEARS)
    assert (await world.ended(await world.say("Two."))).status is RunStatus.DONE
    assert (await failure(world, await world.say("Three."))).code == "budget_exceeded"


@pytest.fixture(params=[cleanup.KIND, retention.KIND])
def kind(request: pytest.FixtureRequest) -> str:
    """A task that plans its own next round."""
    return str(request.param)


async def plan(world: World, kind: str, *, in_ms: int) -> None:
    now_ms = to_ms(world.clock.now())
    await world.engine.write(
        lambda conn: tasks.plan(conn, TaskId(world.ids.new()), kind, now_ms=now_ms, at_ms=now_ms + in_ms)
    )


async def next_round_ms(world: World) -> int:
    due_ms = await world.engine.read(tasks.next_due_ms)
    assert due_ms is not None
    return due_ms


async def test_rounds_go_on_after_a_clock_that_was_ahead(begin: Begin, tmp_path: Path, kind: str) -> None:
    """Each round plans the next one: that of the future would come in years."""
    world = await begin(ECHO, jobs=retention.jobs(tmp_path, archived_days=1))
    world.clock.sleep(YEARS)
    ahead_ms = to_ms(world.clock.now())
    await plan(world, kind, in_ms=0)

    async def planned_ahead() -> bool:
        return await next_round_ms(world) >= ahead_ms + cleanup.EVERY_MS

    _: bool = await eventually(planned_ahead)
    world.clock.sleep(-YEARS)

    async def planned_in_time() -> bool:
        return await next_round_ms(world) <= to_ms(world.clock.now()) + cleanup.EVERY_MS

    _ = await eventually(planned_in_time)


async def test_rounds_go_on_after_a_clock_that_was_one_round_ahead(begin: Begin, tmp_path: Path, kind: str) -> None:
    """As at the start of a machine whose clock shows local time: the next round has the time that this one had."""
    world = await begin(ECHO, jobs=retention.jobs(tmp_path, archived_days=1))
    world.clock.sleep(ROUND)
    await plan(world, kind, in_ms=cleanup.EVERY_MS)
    world.clock.sleep(-ROUND)
    now_ms = to_ms(world.clock.now())
    await world.engine.write(lambda conn: tasks.hasten(conn, now_ms=now_ms, longest_ms=0))  # as each start does
    assert await next_round_ms(world) <= to_ms(world.clock.now()) + cleanup.EVERY_MS
    world.clock.sleep(ROUND)

    async def planned_again() -> bool:
        return await next_round_ms(world) > to_ms(world.clock.now()) + cleanup.EVERY_MS // 2

    _: bool = await eventually(planned_again)


async def test_one_round_waits_at_most_and_the_earlier_time_holds(begin: Begin, kind: str) -> None:
    world = await begin(ECHO)
    now_ms = to_ms(world.clock.now())
    for in_ms in (3000_000, 3600_000, 1800_000):  # as each start of a daemon does
        await plan(world, kind, in_ms=in_ms)
    assert now_ms + 1800_000 <= await next_round_ms(world) <= to_ms(world.clock.now()) + 1800_000
    assert await world.engine.read(tasks.counts) == {"pending": 1}
