"""How a run comes into the hands of a worker: in the commit that accepts it, and without luck where that can not be."""

import asyncio
from contextlib import ExitStack

from palyra.core.run.record import RunRecord
from palyra.core.run.state import RunStatus
from palyra.journal.stores import leases
from palyra.journal.stores.leases import Lease
from tests.integration.cast import ECHO, held
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.eventually import eventually
from tests.support.world import CONCURRENCY, World


async def held_by(world: World, owner: str) -> list[Lease]:
    return await world.engine.read(lambda conn: leases.held(conn, leases.RUNS, owner=owner, now_ms=0))


def place_of(world: World) -> str | None:
    with world.worker.reserve_slot(ANA) as owner:
        return owner


async def test_a_run_is_carried_from_the_commit_that_accepts_it(begin: Begin) -> None:
    world = await begin(held(gate := asyncio.Event()))
    owner = await eventually(lambda: place_of(world))
    assert owner is not None
    # Nothing but that commit can have given it to anybody.
    world.line.deaf = True

    said = await world.say("Go.")

    assert await held_by(world, owner) == [Lease(said.run_id, owner, 1)]
    world.line.deaf = False
    gate.set()
    assert (await world.ended(said)).status is RunStatus.DONE
    assert await held_by(world, owner) == []


async def test_a_run_whose_carrier_never_heard_of_it_is_found(begin: Begin) -> None:
    world = await begin(ECHO)
    await eventually(lambda: place_of(world))
    world.line.deaf = True
    said = await world.say("Go.")

    assert (await world.ended(said)).status is RunStatus.DONE


async def test_a_run_that_no_worker_has_room_for_waits_until_one_has(begin: Begin) -> None:
    world = await begin(held(gate := asyncio.Event()), concurrency=4)
    await eventually(lambda: place_of(world))
    for number in range(4):
        await world.say("Go.", key=str(number))
    with world.worker.reserve_slot(ANA) as owner:
        assert owner is None
    said = await world.say("Go.")
    # It is looked for, but nobody has room.
    await asyncio.sleep(0.05)
    assert (await world.run(said)).turns == 0

    gate.set()
    assert (await world.ended(said)).status is RunStatus.DONE


async def test_a_caller_that_leaves_does_not_take_its_run_along(begin: Begin) -> None:
    world = await begin(ECHO)
    await eventually(lambda: place_of(world))
    caller = asyncio.create_task(world.say("Go."))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    assert caller.cancelled()

    async def done() -> RunRecord:
        (run,) = await world.runs()
        assert run.ended_at is not None
        return run

    run: RunRecord = await eventually(done)
    assert run.status is RunStatus.DONE
    # The place that was kept for it is free again.
    with ExitStack() as places:
        assert None not in [places.enter_context(world.worker.reserve_slot(ANA)) for _ in range(CONCURRENCY)]
