"""Messages that arrive while a run is active: queue, steer, interrupt."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from palyra.core.clock import to_ms
from palyra.core.events import (
    ApprovalDecision,
    ApprovalResolved,
    Entry,
    InputMode,
    InputSteered,
    RunAccepted,
    RunStarted,
)
from palyra.core.limits import LimitKind, Limits
from palyra.core.model.prompt import ModelEvent, Prompt, TextDelta
from palyra.core.run.state import RunStatus
from palyra.core.session import SessionArchivedError
from palyra.core.tool import Verdict
from palyra.journal.engines.base import Fact
from palyra.journal.stores import leases
from palyra.providers.scripted import Script, ScriptCall, ScriptText
from palyra.runs.recording.run_writer import write_run
from palyra.runs.services.intake import RunQueueFull
from tests.integration.cast import DONE, ECHO, Door, a_call, first_calls, held, inputs, on_sqlite, results
from tests.integration.conftest import Begin
from tests.support.builders import ANA, a_question, a_turn, a_verdict
from tests.support.eventually import eventually
from tests.support.world import QUEUED_INPUTS, Model, World


async def started_in_order(world: World, session_id: str) -> list[str]:
    return [entry.run_id or "" for entry in await world.tape(session_id) if entry.kind == "run_started"]


async def test_a_second_message_waits_and_runs_after_the_first(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    first = await world.say("One.")
    await world.seen(first, "model_text")
    second = await world.say("Two.")
    assert (first.queued, second.queued) == (False, True)
    assert (await world.run(second)).status is RunStatus.ACCEPTED
    gate.set()
    await world.all_ended([first, second])
    kinds = [(entry.kind, entry.run_id) for entry in await world.tape(first.session_id)]
    end = kinds.index(("run_completed", first.run_id))
    assert kinds[end + 1] == ("run_started", second.run_id)
    assert inputs(world.prompts[0]) == ["One."]
    assert inputs(world.prompts[1]) == ["One.", "Two."]


async def test_ten_messages_at_once_run_in_the_order_in_which_they_came(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    said = [await world.say(f"Number {number}.") for number in range(10)]
    gate.set()
    await world.all_ended(said)
    assert await started_in_order(world, said[0].session_id) == [one.run_id for one in said]
    assert [inputs(prompt)[-1] for prompt in world.prompts] == [f"Number {number}." for number in range(10)]
    assert [message.text for message in await world.messages(said[0])][-2:] == [
        "Number 9.",
        "Well, you said: Number 9.",
    ]


@on_sqlite
async def test_an_input_joins_the_conversation_when_its_run_starts_not_when_it_was_accepted(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    first, second = await world.say("One."), await world.say("Two.")
    assert [message.text for message in await world.messages(first)] == ["One."]
    gate.set()
    await world.all_ended([first, second])
    assert [message.text for message in await world.messages(first)] == [
        "One.",
        "Well, you said: One.",
        "Two.",
        "Well, you said: Two.",
    ]


async def test_a_full_queue_refuses_with_a_retry_hint_and_loses_nothing(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    said = [await world.say(f"Number {number}.") for number in range(1 + QUEUED_INPUTS)]
    with pytest.raises(RunQueueFull, match="16 inputs are queued") as refusal:
        await world.say("One too many.")
    assert refusal.value.retry_after.total_seconds() > 0
    await world.say("Elsewhere there is room.", key="other")
    gate.set()
    done = await world.all_ended(said)
    assert {run.status for run in done} == {RunStatus.DONE}
    assert await started_in_order(world, said[0].session_id) == [one.run_id for one in said]
    assert (await world.say("Now there is room.")).queued is False


@on_sqlite
async def test_a_refused_message_leaves_no_trace(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    said = [await world.say(f"Number {number}.") for number in range(1 + QUEUED_INPUTS)]
    before = await world.tape(said[0].session_id)
    with pytest.raises(RunQueueFull):
        await world.say("One too many.", idempotency_key="late")
    accepted = [entry for entry in await world.tape(said[0].session_id) if entry.kind == "run_accepted"]
    assert len(accepted) == len(said)
    assert len(before) <= len(await world.tape(said[0].session_id))
    gate.set()
    await world.all_ended(said)
    retried = await world.say("One too many.", idempotency_key="late")
    assert not retried.repeated
    await world.ended(retried)


async def test_a_steering_message_joins_the_run_at_its_next_model_turn(begin: Begin) -> None:
    door = Door()
    world = await begin(first_calls(ScriptCall(tool="door.wait"), then="Done."), tools=[door.tool])
    first = await world.say("Go through the door.")
    await eventually(lambda: door.came)
    steered = await world.say("Take the umbrella.", mode=InputMode.STEER)
    assert (steered.run_id, steered.steered, steered.queued) == (first.run_id, True, False)
    door.open.set()
    run = await world.ended(first)
    assert run.status is RunStatus.DONE
    asked = world.prompts[1]
    assert inputs(asked) == ["Go through the door.", "Take the umbrella."]
    # The result stands behind its call, and what was said meanwhile behind both.
    assert [message.text for message in asked.messages][2:4] == ["came in", "Take the umbrella."]


async def test_a_run_that_has_answered_goes_on_for_what_was_said_meanwhile(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    first = await world.say("One.")
    await world.seen(first, "model_text")
    await world.say("Two.", mode=InputMode.STEER)
    gate.set()
    run = await world.ended(first)
    assert (run.status, run.turns) == (RunStatus.DONE, 2)
    assert inputs(world.prompts[1]) == ["One.", "Two."]
    assert len(await world.runs()) == 1


async def test_steering_with_no_active_run_is_a_new_run(begin: Begin) -> None:
    world = await begin(ECHO)
    await world.ask("One.")
    said = await world.say("Two.", mode=InputMode.STEER)
    assert (said.steered, said.queued) == (False, False)
    assert (await world.ended(said)).status is RunStatus.DONE


async def test_a_steering_message_at_the_very_end_is_never_lost(begin: Begin) -> None:
    """The message and the end of the turn set out at the same moment, now the one ahead and now the other."""
    recorded, pauses = asyncio.Event(), [0]

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        yield TextDelta("Yes.")
        await recorded.wait()
        for _ in range(pauses[0]):
            await asyncio.sleep(0)
        yield DONE

    world = await begin(Model(speak))
    world.engine.subscribe(lambda facts: _set_on(facts, "model_text", recorded))
    for number in range(60):
        recorded.clear()
        pauses[0] = max(0, number % 12 - 6)
        first = await world.say(f"First {number}.")
        await recorded.wait()
        for _ in range(max(0, 6 - number % 12)):
            await asyncio.sleep(0)
        steer = await world.say(f"Steer {number}.", mode=InputMode.STEER)
        await world.all_ended([first, steer])
        assert any(f"Steer {number}." in inputs(prompt) for prompt in world.prompts), "no model turn saw the message"
        assert (steer.run_id == first.run_id) == steer.steered
    kept = [message.text for message in await world.messages(first.session_id)]
    assert [text for text in kept if text.startswith("Steer")] == [f"Steer {number}." for number in range(60)]


def _set_on(facts: Sequence[Fact], kind: str, event: asyncio.Event) -> None:
    if any(isinstance(fact, Entry) and fact.kind == kind for fact in facts):
        event.set()


async def test_many_who_steer_at_once_are_all_heard(begin: Begin) -> None:
    world = await begin(Script(default=(ScriptText(text="Yes.", chunk=1, delay_ms=1),)))
    first = await world.say("First.")
    texts = [f"Steer {number}." for number in range(12)]
    async with asyncio.TaskGroup() as group:
        steers = [group.create_task(world.say(text, mode=InputMode.STEER)) for text in texts]
    await world.all_ended([first, *(steer.result() for steer in steers)])
    heard = {text for prompt in world.prompts for text in inputs(prompt)}
    assert heard == {"First.", *texts}


async def test_an_interrupting_message_cancels_the_active_run_and_goes_before_the_queue(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    first = await world.say("One.")
    await world.seen(first, "model_text")
    queued = [await world.say("Two."), await world.say("Three.")]
    urgent = await world.say("Stop! Fire!", mode=InputMode.INTERRUPT)
    assert (await world.ended(first)).status is RunStatus.CANCELLED
    await world.seen(urgent, "model_text")
    gate.set()
    await world.all_ended([urgent, *queued])
    order = [first, urgent, *queued]
    assert await started_in_order(world, first.session_id) == [one.run_id for one in order]
    assert (await world.run(first)).reason == "interrupted by a new message"


async def test_of_two_that_interrupt_the_later_goes_first(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    first = await world.say("One.")
    await world.seen(first, "model_text")
    second, third = (
        await world.say("Two.", mode=InputMode.INTERRUPT),
        await world.say("Three.", mode=InputMode.INTERRUPT),
    )
    gate.set()
    await world.all_ended([first, second, third])
    order = await started_in_order(world, first.session_id)
    assert order in (
        [first.run_id, third.run_id, second.run_id],
        [first.run_id, second.run_id, third.run_id],  # the second had begun, and was interrupted itself
    )
    assert (await world.run(third)).status is RunStatus.DONE


async def test_interrupting_a_run_that_nobody_carries_ends_it_in_the_same_commit(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    await world.worker.park(seconds=0)
    first = await world.say("One.")
    urgent = await world.say("Two.", mode=InputMode.INTERRUPT)
    assert (await world.run(first)).status is RunStatus.CANCELLED
    assert urgent.queued is False
    gate.set()
    await world.crash()
    assert (await world.ended(urgent)).status is RunStatus.DONE


@on_sqlite
async def test_interrupting_when_nothing_is_active_is_a_new_run(begin: Begin) -> None:
    world = await begin(ECHO)
    said = await world.say("Now!", mode=InputMode.INTERRUPT)
    assert (await world.ended(said)).status is RunStatus.DONE


async def test_a_steering_message_to_a_run_at_its_limit_becomes_a_run_of_its_own(begin: Begin) -> None:
    gate = asyncio.Event()

    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        if prompt.tools and not results(prompt):
            yield a_call("time.now")
        else:
            yield TextDelta("That is as far as I came.")
            await gate.wait()
        yield DONE

    world = await begin(Model(speak), limits=Limits(model_turns=1))
    first = await world.say("One.")
    await world.seen(first, "limit_reached")
    await world.seen(first, "model_text")
    steer = await world.say("Two.", mode=InputMode.STEER)
    assert (steer.steered, steer.queued) == (False, True)
    gate.set()
    runs = await world.all_ended([first, steer])
    assert [run.status for run in runs] == [RunStatus.DONE, RunStatus.DONE]
    assert runs[0].limit_reached is LimitKind.MODEL_TURNS


async def test_a_message_to_an_archived_session_is_refused(begin: Begin) -> None:
    world = await begin(ECHO)
    said = await world.say("One.")
    await world.ended(said)
    await world.sessions.archive(ANA, said.session_id)
    for mode in InputMode:
        with pytest.raises(SessionArchivedError):
            await world.say("Two.", mode=mode)
    await world.sessions.unarchive(ANA, said.session_id)
    assert await world.ask("Three.") == "You said: Three."


@on_sqlite
async def test_a_message_behind_a_run_that_waits_is_told_what_it_waits_for(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(_delegating(gate))
    parent = await world.say("Delegate.")
    await world.reaches(parent, RunStatus.WAITING)
    second = await world.say("And this.")
    assert second.queued
    assert second.waiting_for is not None
    assert "waits for a child run" in second.waiting_for
    steer = await world.say("By the way.", mode=InputMode.STEER)
    assert steer.run_id == parent.run_id
    assert (await world.run(parent)).status is RunStatus.WAITING
    gate.set()
    await world.all_ended([parent, second])
    assert any("By the way." in inputs(prompt) for prompt in world.prompts)


def _delegating(gate: asyncio.Event) -> Model:
    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        if inputs(prompt)[-1] == "Delegate.":
            yield a_call("agent.delegate", {"task": "Do it."})
        elif inputs(prompt)[-1] == "Do it.":
            await gate.wait()
            yield TextDelta("It is done.")
        else:
            yield TextDelta("Thank you.")
        yield DONE

    return Model(speak)


@on_sqlite
async def test_the_tape_says_how_each_message_came(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    first = await world.say("One.", idempotency_key="k1")
    await world.say("Two.", mode=InputMode.STEER, idempotency_key="k2")
    gate.set()
    await world.ended(first)
    events = await world.events(first)
    accepted, steered = (
        next(event for event in events if isinstance(event, RunAccepted)),
        next(event for event in events if isinstance(event, InputSteered)),
    )
    assert (accepted.text, accepted.mode, accepted.idempotency_key) == ("One.", InputMode.QUEUE, "k1")
    assert (steered.text, steered.actor, steered.idempotency_key) == ("Two.", ANA, "k2")
    assert isinstance(events[1], RunStarted)


async def test_a_steering_message_withdraws_the_questions_that_are_open(begin: Begin) -> None:
    """Nothing asks a person yet, so the run is brought to its question by hand."""
    world = await begin(ECHO)
    await world.worker.park(seconds=0)
    said = await world.say("Burn the letters.")
    now_ms = to_ms(world.clock.now())
    (lease,) = await world.engine.write(
        lambda conn: leases.claim(conn, leases.RUNS, owner="house:by hand", now_ms=now_ms, limit=1)
    )
    state = await world.state(said)
    asks = [*a_turn(1, "c1", "c2"), a_verdict("c1", Verdict.ASK), a_verdict("c2", Verdict.DENY), a_question("c1")]
    await world.engine.write(lambda conn: write_run(conn, state, asks, lease=lease, ids=world.ids))
    assert (await world.run(said)).status is RunStatus.WAITING
    behind = await world.say("And then?")
    assert behind.waiting_for is not None
    assert behind.waiting_for.startswith(
        "the active run waits for your approval of shell: answer with `palyra approvals`"
    )
    steer = await world.say("Keep them.", mode=InputMode.STEER)
    assert (steer.run_id, steer.steered) == (said.run_id, True)
    (resolved,) = [event for event in await world.events(said) if isinstance(event, ApprovalResolved)]
    assert (resolved.decision, resolved.reason, resolved.actor) == (ApprovalDecision.WITHDRAWN, "Keep them.", ANA)
    await world.crash()
    assert (await world.ended(said)).status is RunStatus.DONE
    assert results(world.prompts[0]) == ["[denied] Keep them.", "[denied] so says the policy"]
    assert inputs(world.prompts[0]) == ["Burn the letters.", "Keep them."]
    await world.ended(behind)
