"""The same request under the same key is one run, however often and whenever it comes."""

import asyncio
from datetime import timedelta

import pytest

from palyra.background.jobs import cleanup
from palyra.background.queue import JobContext
from palyra.core.events import InputMode
from palyra.core.message import TextInvalid
from palyra.core.session import SessionRef
from palyra.journal.stores.idempotency_keys import IdempotencyKeyConflict
from palyra.runs.services.idempotency import IdempotencyKeyInvalid
from tests.integration.cast import ECHO, held, on_sqlite
from tests.integration.conftest import Begin
from tests.support.clock import MovableClock
from tests.support.world import BEN


async def test_the_same_request_twice_is_one_run(begin: Begin) -> None:
    world = await begin(ECHO)
    first = await world.say("Pay the rent.", idempotency_key="rent")
    again = await world.say("Pay the rent.", idempotency_key="rent")
    await world.ended(first)
    after = await world.say("Pay the rent.", idempotency_key="rent")
    assert [said.run_id for said in (again, after)] == [first.run_id] * 2
    assert [said.repeated for said in (first, again, after)] == [False, True, True]
    assert after.after_seq == first.after_seq
    assert len(world.prompts) == 1


async def test_the_same_request_twenty_times_at_once_is_one_run(begin: Begin) -> None:
    world = await begin(ECHO)
    async with asyncio.TaskGroup() as group:
        said = [group.create_task(world.say("Pay the rent.", idempotency_key="rent")) for _ in range(20)]
    answers = [one.result() for one in said]
    assert len({answer.run_id for answer in answers}) == 1
    assert sorted(answer.repeated for answer in answers) == [False] + [True] * 19
    await world.ended(answers[0])
    assert len(await world.runs()) == 1
    assert len(world.prompts) == 1


async def test_twenty_new_sessions_at_once_under_one_key_are_one_session(begin: Begin) -> None:
    """Without a session key each request would make a session of its own: only the winner's may be left."""
    world = await begin(ECHO)
    async with asyncio.TaskGroup() as group:
        said = [group.create_task(world.say("Pay.", key=None, idempotency_key="rent")) for _ in range(20)]
    assert len({one.result().session_id for one in said}) == 1
    await world.ended(said[0].result())
    (sessions,) = await world.engine.read(lambda conn: conn.fetch("SELECT COUNT(*) FROM sessions"))
    assert sessions == (1,)


async def test_twenty_messages_at_once_to_a_new_session_meet_in_it(begin: Begin) -> None:
    world = await begin(ECHO)
    async with asyncio.TaskGroup() as group:
        said = [group.create_task(world.say(f"Number {number}.", key="meeting")) for number in range(16)]
    answers = [one.result() for one in said]
    assert len({answer.session_id for answer in answers}) == 1
    assert len({answer.run_id for answer in answers}) == 16
    await world.all_ended(answers)


@pytest.mark.parametrize(
    "other",
    [{"text": "Pay it twice."}, {"key": "other"}, {"mode": InputMode.STEER}, {"session": SessionRef(label="main")}],
    ids=["text", "session", "mode", "label"],
)
@on_sqlite
async def test_the_same_key_with_other_content_is_a_conflict(begin: Begin, other: dict[str, object]) -> None:
    world = await begin(ECHO)
    first = await world.say("Pay the rent.", idempotency_key="rent")
    with pytest.raises(IdempotencyKeyConflict):
        await world.say(**{"text": "Pay the rent.", "idempotency_key": "rent", **other})  # type: ignore[arg-type]
    await world.ended(first)
    assert len(await world.runs()) == 1


async def test_a_key_holds_over_a_crash(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    first = await world.say("Pay the rent.", idempotency_key="rent")
    await world.seen(first, "model_text")
    await world.crash()
    again = await world.say("Pay the rent.", idempotency_key="rent")
    assert (again.run_id, again.repeated) == (first.run_id, True)
    with pytest.raises(IdempotencyKeyConflict):
        await world.say("Pay it twice.", idempotency_key="rent")
    gate.set()
    await world.ended(first)
    assert len(await world.runs()) == 1


async def test_a_key_belongs_to_its_principal(begin: Begin) -> None:
    world = await begin(ECHO)
    hers = await world.say("Pay the rent.", idempotency_key="rent")
    his = await world.say("Pay it twice.", idempotency_key="rent", who=BEN)
    assert not his.repeated
    assert his.run_id != hers.run_id
    await world.ended(hers)


async def test_a_steering_message_under_a_key_joins_once(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    first = await world.say("One.")
    await world.seen(first, "model_text")
    for repeated in (False, True):
        steer = await world.say("Two.", mode=InputMode.STEER, idempotency_key="two")
        assert (steer.run_id, steer.steered, steer.repeated) == (first.run_id, True, repeated)
    gate.set()
    await world.ended(first)
    assert [kind for kind in await world.kinds(first) if kind == "input_steered"] == ["input_steered"]


@on_sqlite
async def test_a_key_is_forgotten_after_seven_days(begin: Begin) -> None:
    clock = MovableClock()
    world = await begin(ECHO, clock=clock)
    first = await world.say("Pay the rent.", idempotency_key="rent")
    await world.ended(first)
    context = JobContext(world.engine, clock, world.ids)
    clock.advance(timedelta(days=6, hours=23))
    await cleanup.run({}, context)
    assert (await world.say("Pay the rent.", idempotency_key="rent")).repeated
    clock.advance(timedelta(hours=2))
    await cleanup.run({}, context)
    second = await world.say("Pay the rent.", idempotency_key="rent")
    assert not second.repeated
    await world.ended(second)


@on_sqlite
async def test_a_key_has_1_to_200_clean_characters(begin: Begin) -> None:
    world = await begin(ECHO)
    for key in ("", "k" * 201):
        with pytest.raises(IdempotencyKeyInvalid):
            await world.say("Hello.", idempotency_key=key)
    with pytest.raises(TextInvalid):
        await world.say("Hello.", idempotency_key="a\0b")
    await world.ended(await world.say("Hello.", idempotency_key="k" * 200))
