"""Principals do not keep one another waiting, however much one of them asks for."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from palyra.core.ids import PrincipalId
from palyra.core.message import AcceptedMessage
from palyra.core.model.prompt import ModelEvent, Prompt, TextDelta
from palyra.core.run.state import RunStatus
from palyra.runs.services.intake import RunQueueFull
from tests.integration.cast import DONE, inputs
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.eventually import eventually
from tests.support.world import BEN, OPEN_RUNS, Model, World

CID, DAN = PrincipalId("user:cid"), PrincipalId("user:dan")


class Hanging:
    """A model that hangs where it is told to, and counts how often it does."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.hanging = 0
        self.model = Model(self._speak)

    async def _speak(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        if inputs(prompt)[-1] == "Hang.":
            self.hanging += 1
            try:
                await self.gate.wait()
            finally:
                self.hanging -= 1
        yield TextDelta("Hello!")
        yield DONE

    async def hang(self, world: World, count: int, *, who: PrincipalId = ANA, begun: int) -> list[AcceptedMessage]:
        """Send so many messages that hang, and wait until those have begun that have a slot."""
        await eventually(lambda: world.worker.is_at_work)
        before = self.hanging
        said = [await world.say("Hang.", key=f"{who} {number}", who=who) for number in range(count)]
        await eventually(lambda: self.hanging == before + begun)
        return said


async def open_runs(world: World, said: list[AcceptedMessage]) -> int:
    return sum([(await world.run(one)).ended_at is None for one in said])


@pytest.mark.parametrize("concurrency", [4, 64])
async def test_others_are_answered_while_one_principal_occupies_every_slot(begin: Begin, concurrency: int) -> None:
    model = Hanging()
    world = await begin(model.model, concurrency=concurrency)
    await world.know(CID, DAN)
    hanging = await model.hang(world, concurrency + 6, begun=concurrency)

    for who in (BEN, CID, DAN):
        for number in range(2):
            hello = await world.say("Hello.", key=f"hello {number}", who=who)
            assert (await world.ended(hello, who=who)).status is RunStatus.DONE

    assert await open_runs(world, hanging) == concurrency + 6
    model.gate.set()
    for one in hanging:
        assert (await world.ended(one)).status is RunStatus.DONE


async def test_every_principal_has_slots_of_its_own(begin: Begin) -> None:
    model = Hanging()
    world = await begin(model.model, concurrency=32)
    await world.know(CID)
    await model.hang(world, 40, begun=32)
    await model.hang(world, 5, who=BEN, begun=2)

    hello = await world.say("Hello.", who=CID)
    assert (await world.ended(hello, who=CID)).status is RunStatus.DONE

    model.gate.set()


async def test_slots_that_become_free_go_to_the_principal_with_the_fewest_running(begin: Begin) -> None:
    model = Hanging()
    world = await begin(model.model, concurrency=4)
    hanging = await model.hang(world, 12, begun=4)
    waiting = [await world.say("Hang.", key=f"ben {number}", who=BEN) for number in range(3)]
    await eventually(lambda: model.hanging == 5)

    for one in hanging[:2]:
        await world.control.cancel(ANA, one.run_id)

    async def begun() -> bool:
        # Ana had four of the five slots; after two of hers ended there is room for one more, which is Ben's.
        return [(await world.run(one, who=BEN)).turns for one in waiting] == [1, 1, 0]

    _: bool = await eventually(begun)
    assert sum([(await world.run(one)).turns for one in hanging]) == 4
    model.gate.set()


async def test_a_principal_alone_gets_every_slot(begin: Begin) -> None:
    model = Hanging()
    world = await begin(model.model, concurrency=8)
    await model.hang(world, 8, begun=8)
    model.gate.set()


async def test_a_principal_has_only_so_many_open_runs(begin: Begin) -> None:
    model = Hanging()
    world = await begin(model.model, concurrency=1)
    hanging = await model.hang(world, OPEN_RUNS, begun=1)

    with pytest.raises(RunQueueFull, match="200 of your runs are open"):
        await world.say("Hello.", key="one more")

    assert (await world.ended(await world.say("Hello.", who=BEN), who=BEN)).status is RunStatus.DONE
    await world.control.cancel(ANA, hanging[-1].run_id)
    await world.say("Hello.", key="one more")
