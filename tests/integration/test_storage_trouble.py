"""The journal can not be written for a while: nothing is lost, nothing is done twice, and it is said once."""

import logging
from collections.abc import AsyncIterator

import pytest

from palyra.core.errors import Unavailable
from palyra.core.events import ModelTurnStarted, ToolFinished, ToolStarted
from palyra.core.model.prompt import ModelEvent, Prompt, TextDelta
from palyra.core.run.state import RunStatus
from palyra.core.tool import CallOutcome
from palyra.journal import storage_health
from palyra.journal.engines.base import StorageFull, StorageUnavailable
from palyra.providers.scripted import ScriptCall
from palyra.runs.engine import worker
from tests.integration.cast import DONE, ECHO, Bell, Door, first_calls, inputs, on_sqlite, results
from tests.integration.conftest import Begin
from tests.support.eventually import eventually
from tests.support.world import Model, World


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(worker, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(worker, "MAX_WAIT_SECONDS", 0.05)


class Trouble:
    """What happens to each write, from the moment on at which it begins."""

    def __init__(self, world: World, error: Unavailable | None = None) -> None:
        self.refused = 0
        self._world = world
        self._error = error or StorageFull()

    def begin(self) -> None:
        self._world.line.before_write = self._refuse

    def end(self) -> None:
        async def nothing() -> None:
            pass

        self._world.line.before_write = nothing

    async def _refuse(self) -> None:
        self.refused += 1
        raise self._error


def said_in_log(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == storage_health.__name__]


async def test_a_run_stands_still_while_the_disk_is_full_and_goes_on_when_it_is_not(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    bell, door = Bell(), Door()
    world = await begin(
        first_calls(ScriptCall(tool="bell.ring"), ScriptCall(tool="door.wait"), then="Done."),
        tools=[bell.tool, door.tool],
    )
    trouble = Trouble(world)
    said = await world.say("Go.")
    await eventually(lambda: door.came)
    trouble.begin()
    door.open.set()
    await eventually(lambda: trouble.refused > 5)
    assert world.storage.trouble == "storage_full"
    assert (await world.run(said)).status is RunStatus.IN_PROGRESS
    trouble.end()
    run = await world.ended(said)
    assert run.status is RunStatus.DONE
    assert (bell.rung[""], door.came) == (1, 1)
    await eventually(lambda: world.storage.trouble is None)
    await eventually(lambda: len(said_in_log(caplog)) == 2, timeout=60)
    full, again = said_in_log(caplog)
    assert "disk that holds the journal is full" in full
    assert "is writable again" in again
    assert [record.levelno for record in caplog.records if record.name == storage_health.__name__] == [
        logging.ERROR,
        logging.WARNING,
    ]
    # The result of the second call could not be recorded, so nobody can know it any more.
    events = await world.events(said)
    assert [event.outcome for event in events if isinstance(event, ToolFinished)] == [
        CallOutcome.OK,
        CallOutcome.INTERRUPTED,
    ]
    assert len([event for event in events if isinstance(event, ToolStarted)]) == 2
    assert results(world.prompts[-1])[0] == "rung 1 times"


async def test_a_turn_that_could_not_be_recorded_is_taken_anew(begin: Begin) -> None:
    trouble: Trouble | None = None

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        yield TextDelta("Half of ")
        if trouble is not None and not trouble.refused:
            trouble.begin()
        yield TextDelta("it")
        yield DONE

    world = await begin(Model(speak))
    trouble = Trouble(world)
    said = await world.say("Go.")
    await eventually(lambda: trouble.refused > 3)
    trouble.end()
    assert (await world.ended(said)).status is RunStatus.DONE
    turns = [event.turn for event in await world.events(said) if isinstance(event, ModelTurnStarted)]
    assert turns == [1, 2]
    assert [message.text for message in await world.messages(said)] == ["Go.", "Half of it"]


async def test_at_any_commit_of_a_run_trouble_costs_time_and_nothing_else(begin: Begin) -> None:
    bell = Bell()
    script = first_calls(ScriptCall(tool="bell.ring", arguments={"who": "{input}"}), then="Done.")
    world = await begin(script, tools=[bell.tool])
    for place in range(1, 9):
        writes = 0

        async def refuse(place: int = place) -> None:
            nonlocal writes
            writes += 1
            if place <= writes < place + 3:
                raise StorageFull

        world.line.before_write = refuse
        said = await world.say(f"trouble {place}", key=f"session {place}")
        run = await world.ended(said)
        assert run.status is RunStatus.DONE
        assert bell.rung[f"trouble {place}"] <= 1
        told = [text for prompt in world.prompts if inputs(prompt) == [f"trouble {place}"] for text in results(prompt)]
        assert set(told) <= {"rung 1 times", told[-1]}


async def test_a_short_trouble_of_another_kind_is_said_too(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    world = await begin(ECHO)
    trouble = Trouble(world, StorageUnavailable("The database is away."))
    trouble.begin()
    said = await world.say("Hello.")
    await eventually(lambda: trouble.refused > 3)
    assert world.storage.trouble == "storage_unavailable"
    assert said_in_log(caplog) == ["The database is away."]
    trouble.end()
    assert (await world.ended(said)).status is RunStatus.DONE


async def test_a_run_that_could_not_be_renewed_for_long_stops_its_tools(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease may be somebody else's by now, who may have started the same tool."""
    monkeypatch.setattr(worker, "RENEW_SECONDS", 0.02)
    monkeypatch.setattr(worker, "UNRENEWED_SECONDS", 0.1)
    door = Door()
    world = await begin(first_calls(ScriptCall(tool="door.wait"), then="Done."), tools=[door.tool])
    said = await world.say("Go.")
    await eventually(lambda: door.came)
    trouble = Trouble(world)
    trouble.begin()
    await eventually(lambda: door.sent_away)
    trouble.end()
    assert (await world.ended(said)).status is RunStatus.DONE
    assert door.came == 1


async def test_a_run_that_met_trouble_in_a_tool_can_still_be_cancelled(begin: Begin) -> None:
    quick, slow = Door("door.quick", repeatable=True), Door("door.slow")
    world = await begin(
        first_calls(ScriptCall(tool="door.quick"), ScriptCall(tool="door.slow"), then="Done."),
        tools=[quick.tool, slow.tool],
    )
    trouble = Trouble(world)
    said = await world.say("Go.")
    await eventually(lambda: quick.came)
    trouble.begin()
    quick.open.set()
    await eventually(lambda: trouble.refused > 3)
    trouble.end()
    await eventually(lambda: slow.came)
    await world.cancel(said)
    assert (await world.ended(said)).status is RunStatus.CANCELLED
    assert slow.sent_away == 1


@on_sqlite
async def test_a_run_whose_tape_can_not_be_read_is_parked_once_the_journal_can_be_written(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    door = Door()
    world = await begin(first_calls(ScriptCall(tool="door.wait")), tools=[door.tool])
    trouble = Trouble(world)
    broken = await world.say("Go.", key="broken")
    await eventually(lambda: door.came)
    await world.engine.write(
        lambda conn: conn.execute("DELETE FROM tape WHERE run_id = :run_id", {"run_id": broken.run_id})
    )
    trouble.begin()
    door.open.set()
    await eventually(lambda: trouble.refused > 10)
    trouble.end()
    await eventually(lambda: any("is parked" in record.getMessage() for record in caplog.records))
    assert (await world.run(broken)).ended_at is None
    assert world.worker.is_at_work
    await world.die()  # and its books would not be right


@on_sqlite
async def test_a_run_whose_tape_can_not_be_read_does_not_keep_others_from_their_ends(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    world = await begin(ECHO)
    await world.worker.park(seconds=0)
    broken = await world.say("Hello.", key="broken")
    await world.engine.write(
        lambda conn: conn.execute("DELETE FROM tape WHERE run_id = :run_id", {"run_id": broken.run_id})
    )
    await world.crash()
    assert await world.ask("Hello.", key="whole") == "You said: Hello."
    await eventually(lambda: any("is parked" in record.getMessage() for record in caplog.records))
    assert (await world.run(broken)).ended_at is None
    await world.die()  # and its books would not be right
