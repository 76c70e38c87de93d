"""A clock that was years ahead once, and was set right: what was recorded meanwhile holds nothing up."""

import asyncio
from datetime import timedelta

from palyra.background.jobs import cleanup
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

YEARS = timedelta(days=9 * 365)


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


async def test_upkeep_goes_on_after_a_clock_that_was_ahead(begin: Begin) -> None:
    """Each round plans the next one: that of the future would come in years."""
    world = await begin(ECHO)
    world.clock.sleep(YEARS)
    ahead_ms = to_ms(world.clock.now())
    await world.engine.write(lambda conn: cleanup.plan(conn, TaskId(world.ids.new()), now_ms=ahead_ms, at_ms=ahead_ms))

    async def next_round_ms() -> int:
        due_ms = await world.engine.read(tasks.next_due_ms)
        assert due_ms is not None
        return due_ms

    async def planned_ahead() -> bool:
        return await next_round_ms() >= ahead_ms + cleanup.EVERY_MS

    _: bool = await eventually(planned_ahead)
    world.clock.sleep(-YEARS)

    async def planned_in_time() -> bool:
        return await next_round_ms() <= to_ms(world.clock.now()) + cleanup.EVERY_MS

    _ = await eventually(planned_in_time)
