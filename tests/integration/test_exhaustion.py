"""The system has no thread, process or descriptor left for a while: runs wait, and end as they should."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from palyra import exhaustion
from palyra.core.events import RunFailed, ToolFinished
from palyra.core.model.prompt import ModelEvent, Prompt, TextDelta
from palyra.core.run.state import RunStatus
from palyra.core.tool import CallOutcome, Risk
from palyra.exhaustion import NO_THREAD
from palyra.providers.scripted import ScriptCall
from palyra.runs.engine import worker
from palyra.tools.base import ToolContext, tool
from tests.integration.cast import DONE, first_calls, on_sqlite
from tests.integration.conftest import Begin
from tests.support.eventually import eventually
from tests.support.world import Model


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(worker, "MAX_STARVED_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(exhaustion, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(exhaustion, "MAX_WAIT_SECONDS", 0.05)


def starving(times: int, error: Exception) -> Model:
    """Return a model that the system has no thread for, so many times."""
    left = [times]

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        if left[0]:
            left[0] -= 1
            raise error
        yield TextDelta("Here I am.")
        yield DONE

    return Model(speak)


@pytest.mark.parametrize("error", [RuntimeError(NO_THREAD), OSError(24, "Too many open files"), MemoryError()])
async def test_a_run_waits_until_there_are_threads(
    begin: Begin, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = await begin(starving(4, error))
    run = await world.ended(await world.say("Are you there?"))
    assert run.status is RunStatus.DONE
    await eventually(lambda: world.worker.starved == 0)
    told = [record for record in caplog.records if record.name == worker.__name__]
    assert [record.levelname for record in told] == ["WARNING", "INFO"], "once when it begins, once when it is over"
    assert told[0].code == "resources_exhausted"  # type: ignore[attr-defined]
    assert not any("broke" in record.getMessage() for record in told)


@on_sqlite
async def test_many_runs_wait_and_none_is_lost(begin: Begin) -> None:
    world = await begin(starving(40, RuntimeError(NO_THREAD)))
    said = [await world.say(f"Message {number}", key=f"k{number}") for number in range(12)]
    assert {run.status for run in await world.all_ended(said)} == {RunStatus.DONE}


@on_sqlite
async def test_a_run_that_waits_is_counted_and_can_be_cancelled(begin: Begin) -> None:
    world = await begin(starving(1_000_000, RuntimeError(NO_THREAD)))
    said = await world.say("Are you there?")
    await eventually(lambda: world.worker.starved == 1)
    await world.cancel(said)
    assert (await world.ended(said)).status is RunStatus.CANCELLED
    await eventually(lambda: world.worker.starved == 0)


@on_sqlite
async def test_a_run_that_waits_too_long_fails_with_a_reason(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MAX_STARVED_SECONDS", 0.0)
    world = await begin(starving(1_000_000, RuntimeError(NO_THREAD)))
    said = await world.say("Are you there?")
    run = await world.ended(said)
    assert run.status is RunStatus.FAILED
    failed = [event for event in await world.events(said) if isinstance(event, RunFailed)]
    assert [event.code for event in failed] == ["resources_exhausted"]
    assert "runs.max_concurrent" in failed[0].reason


@on_sqlite
async def test_a_tool_that_may_be_repeated_is(begin: Begin) -> None:
    tries = 0

    @tool(name="page.read", risk=Risk.LOW, repeatable=True)
    async def read(context: ToolContext) -> str:
        """Read a page."""
        nonlocal tries
        tries += 1
        await asyncio.sleep(0)
        if tries < 3:
            raise OSError(24, "Too many open files")
        return "page one"

    world = await begin(first_calls(ScriptCall(tool="page.read")), tools=[read])
    said = await world.say("Read.")
    assert (await world.ended(said)).status is RunStatus.DONE
    finished = [event for event in await world.events(said) if isinstance(event, ToolFinished)]
    assert [(event.outcome, event.text) for event in finished] == [(CallOutcome.OK, "page one")]
    assert tries == 3


@on_sqlite
async def test_a_tool_that_may_not_be_repeated_is_started_once(begin: Begin) -> None:
    tries = 0

    @tool(name="letter.post", risk=Risk.LOW)
    async def post(context: ToolContext) -> str:
        """Post a letter."""
        nonlocal tries
        tries += 1
        raise OSError(24, "Too many open files")

    world = await begin(first_calls(ScriptCall(tool="letter.post")), tools=[post])
    said = await world.say("Post.")
    assert (await world.ended(said)).status is RunStatus.DONE
    finished = [event for event in await world.events(said) if isinstance(event, ToolFinished)]
    assert [event.outcome for event in finished] == [CallOutcome.ERROR]
    assert tries == 1
