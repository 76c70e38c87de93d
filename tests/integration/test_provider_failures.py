"""A model that fails ends its run with a reason, and nothing else."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from palyra.core.events import ModelText, ModelTurnDiscarded, RunFailed
from palyra.core.model.prompt import CallProposed, ModelEvent, Prompt, TextDelta
from palyra.core.projection.transcript import FAILED
from palyra.core.run.state import RunStatus
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.scripted import Script, ScriptCondition, ScriptFailure, ScriptRule, ScriptText
from tests.integration.cast import DONE, inputs, on_sqlite, said_by
from tests.integration.conftest import Begin
from tests.support.eventually import eventually
from tests.support.world import Model

CUT = ScriptFailure(kind=FailureKind.NETWORK, message="The line is cut.")


async def test_a_model_that_fails_before_it_speaks_fails_the_run(begin: Begin) -> None:
    world = await begin(
        Script(
            rules=(ScriptRule(when=ScriptCondition(contains="break"), actions=(CUT,)),),
            default=(ScriptText(text="Hi."),),
        )
    )
    said = await world.say("break")
    run = await world.ended(said)
    assert (run.status, run.reason) == (RunStatus.FAILED, "The line is cut.")
    events = await world.events(said)
    assert isinstance(events[-2], ModelTurnDiscarded)
    assert isinstance(events[-1], RunFailed)
    assert events[-1].code == "model_network"
    assert await world.ask("And now?") == "Hi."
    assert inputs(world.prompts[-1]) == ["break", "And now?"]


async def test_text_that_was_shown_before_the_failure_stays_on_the_tape_and_is_no_answer(begin: Begin) -> None:
    gate = asyncio.Event()

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        yield TextDelta("Half of ")
        await gate.wait()
        yield TextDelta("a sentence")
        raise ProviderFailed("The line is cut.", kind=FailureKind.NETWORK)

    world = await begin(Model(speak))
    said = await world.say("Go.")
    await world.seen(said, "model_text")
    gate.set()
    assert (await world.ended(said)).status is RunStatus.FAILED
    texts = [event.text for event in await world.events(said) if isinstance(event, ModelText)]
    assert "".join(texts) == "Half of a sentence"
    assert [message.text for message in await world.messages(said)] == ["Go.", FAILED]


@on_sqlite
async def test_a_stream_that_ends_before_its_turn_is_a_failure(begin: Begin) -> None:
    world = await begin(said_by(lambda prompt: [TextDelta("Half")]))
    said = await world.say("Go.")
    run = await world.ended(said)
    assert run.reason == "the model's stream ended before its turn was complete"
    failed = (await world.events(said))[-1]
    assert isinstance(failed, RunFailed)
    assert failed.code == "model_malformed"


@on_sqlite
async def test_nothing_counts_that_comes_after_the_end_of_the_turn(begin: Begin) -> None:
    world = await begin(said_by(lambda prompt: [TextDelta("Hi."), DONE, TextDelta("More."), DONE]))
    said = await world.say("Go.")
    assert (await world.ended(said)).status is RunStatus.DONE
    assert (await world.messages(said))[-1].text == "Hi."


async def test_a_fault_of_ours_fails_the_run_and_the_worker_lives_on(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    def speak(prompt: Prompt) -> list[ModelEvent]:
        if inputs(prompt)[-1] == "break":
            raise ZeroDivisionError("the token is hunter2")
        return [TextDelta("Hi."), DONE]

    world = await begin(said_by(speak))
    said = await world.say("break")
    run = await world.ended(said)
    assert run.status is RunStatus.FAILED
    assert run.reason == "Palyra itself failed (ZeroDivisionError). The log has the details."
    failed = (await world.events(said))[-1]
    assert isinstance(failed, RunFailed)
    assert failed.code == "internal_error"
    assert "hunter2" not in "".join(entry.content for entry in await world.tape(said))
    broke = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.__dict__["run_id"] for record in broke] == [said.run_id]
    assert await world.ask("And now?") == "Hi."


async def test_a_fault_of_ours_after_text_fails_the_run_too(begin: Begin) -> None:
    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        yield TextDelta("Well, ")
        await asyncio.sleep(0.01)
        raise ZeroDivisionError

    world = await begin(Model(speak))
    said = await world.say("Go.")
    assert (await world.ended(said)).status is RunStatus.FAILED
    await eventually(lambda: world.worker.active_runs == 0)


@on_sqlite
async def test_an_answer_of_over_a_mebibyte_is_a_failure(begin: Begin) -> None:
    world = await begin(said_by(lambda prompt: [*[TextDelta("x" * 100_000)] * 11, DONE]))
    said = await world.say("Go.")
    run = await world.ended(said)
    assert run.status is RunStatus.FAILED
    assert run.reason is not None
    assert "did not stop" in run.reason


@on_sqlite
async def test_a_turn_of_over_64_calls_is_a_failure_and_none_of_them_runs(begin: Begin) -> None:
    calls = [CallProposed(call_id=str(number), tool="time.now", arguments={}) for number in range(65)]
    world = await begin(said_by(lambda prompt: [*calls, DONE]))
    said = await world.say("Go.")
    assert (await world.ended(said)).status is RunStatus.FAILED
    assert "tool_started" not in await world.kinds(said)


@on_sqlite
async def test_a_queued_message_runs_after_one_that_failed(begin: Begin) -> None:
    world = await begin(
        Script(
            rules=(ScriptRule(when=ScriptCondition(contains="break"), actions=(ScriptText(text="Well"), CUT)),),
            default=(ScriptText(text="Hi."),),
        )
    )
    said = [await world.say("break"), await world.say("break again"), await world.say("And now?")]
    runs = await world.all_ended(said)
    assert [run.status for run in runs] == [RunStatus.FAILED, RunStatus.FAILED, RunStatus.DONE]


@on_sqlite
async def test_a_run_whose_agent_is_gone_fails_with_a_reason(begin: Begin) -> None:
    world = await begin(Script(default=(ScriptText(text="Hi."),)))
    await world.worker.park(seconds=0)
    said = await world.say("Hello.")
    await world.engine.write(lambda conn: conn.execute("DELETE FROM agents WHERE principal = 'user:ana'"))
    # `crash` brings the agent back under another id: the run's own is gone.
    await world.crash()
    run = await world.ended(said)
    assert run.status is RunStatus.FAILED
    failed = (await world.events(said))[-1]
    assert isinstance(failed, RunFailed)
    assert failed.code == "agent_missing"
