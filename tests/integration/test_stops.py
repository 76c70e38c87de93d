"""Who pulls the brake is obeyed: what runs ends, what waits is held, what is new is refused, until it is let go."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from palyra.core.events import CancelRequested, InputMode, RunCancelled
from palyra.core.message import AcceptedMessage
from palyra.core.model.prompt import ModelEvent, Prompt, TextDelta
from palyra.core.policy.approval import ApprovalScope
from palyra.core.run.state import RunStatus
from palyra.daemon.process.stop_file import HomeStopFile
from palyra.journal.engines.base import Connection
from palyra.journal.stores import runs, stops
from palyra.providers.scripted import Script, ScriptCall, ScriptEndless
from palyra.runs.services.approvals import ApprovalAnswered
from palyra.runs.services.emergency_stops import (
    BY_FILE,
    PrincipalNotFound,
    StopFileExists,
    StopNotAllowed,
    StopNotFound,
    WorkStopped,
)
from tests.integration.cast import DONE, ECHO, Door, a_call, first_calls, held, inputs, on_postgres, said_by
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.eventually import eventually
from tests.support.world import BEN, Model, World

SOON = 2.0
"""Seconds; the promise is one, but this machine may be busy with something else."""
ENDLESS = Script(default=(ScriptEndless(text="la ", delay_ms=1),))


async def stop(world: World, **asked: Any) -> int:
    """Stop everything, or what is asked for, as Ben, who is the administrator here."""
    halted = await world.stops.stop(BEN, **{"principal": None, "reason": "smoke in the kitchen", **asked})
    return halted.runs


async def resume(world: World, **asked: Any) -> None:
    await world.stops.resume(BEN, **{"principal": None, "admin": True, **asked})


async def assert_stopped(world: World, said: AcceptedMessage) -> None:
    run = await world.ended(said, seconds=SOON)
    assert (run.status, run.reason) == (RunStatus.CANCELLED, "stopped by user:ben: smoke in the kitchen")
    # By the stop itself, or by the carrier that heard of it first: either way the tape knows who it was.
    ends = [event for event in await world.events(said) if isinstance(event, CancelRequested | RunCancelled)]
    assert BEN in {event.actor for event in ends}
    assert {event.reason for event in ends} == {run.reason}


# -- what is active ends


async def test_a_model_that_would_speak_for_ever_is_ended(begin: Begin) -> None:
    world = await begin(ENDLESS)
    said = await world.say("Sing.")
    await world.seen(said, "model_text", times=2)
    assert await stop(world) == 1
    await assert_stopped(world, said)
    await eventually(lambda: world.worker.active_runs == 0)


async def test_a_tool_at_work_is_ended_and_the_next_one_is_never_begun(begin: Begin) -> None:
    door, second = Door(), Door("door.second")
    calls = first_calls(ScriptCall(tool="door.wait"), ScriptCall(tool="door.second"))
    world = await begin(calls, tools=[door.tool, second.tool])
    said = await world.say("Go.")
    await eventually(lambda: door.came)
    await stop(world)
    await assert_stopped(world, said)
    assert (door.sent_away, second.came) == (1, 0)


async def test_every_run_of_everybody_ends(begin: Begin) -> None:
    world = await begin(ENDLESS)
    said = [await world.say("Sing.", key=f"s{number}", who=who) for number in range(20) for who in (ANA, BEN)]
    for one in said:
        await world.seen(one, "model_text")
    assert await stop(world) == 40
    for place, one in enumerate(said):
        await becomes(partial(_is_cancelled, world, one, BEN if place % 2 else ANA))


async def becomes(condition: Callable[[], Awaitable[bool]]) -> None:
    _: bool = await eventually(condition, timeout=SOON)


async def _is_cancelled(world: World, said: AcceptedMessage, who: Any) -> bool:
    return (await world.run(said, who=who)).status is RunStatus.CANCELLED


async def test_one_person_is_stopped_and_the_others_go_on(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    hers, his = await world.say("One."), await world.say("Two.", who=BEN)
    await world.seen(hers, "model_text")
    await world.seen(his, "model_text")
    assert await stop(world, principal=ANA) == 1
    await assert_stopped(world, hers)
    with pytest.raises(
        WorkStopped, match=r"All work of user:ana has been stopped since .* by user:ben: smoke in the kitchen"
    ):
        await world.say("Again.")
    gate.set()
    await becomes(lambda: _is_done(world, his))
    # Its turn was not begun anew: nothing of it was touched.
    assert (await world.kinds(his)).count("model_turn_started") == 1


async def _is_done(world: World, said: AcceptedMessage) -> bool:
    return (await world.run(said, who=BEN)).status is RunStatus.DONE


async def test_a_question_of_a_stopped_run_is_withdrawn(begin: Begin) -> None:
    world = await begin(said_by(lambda _: [a_call("files.write", {"path": "a.txt", "text": "hello"}), DONE]))
    world.inbox = True
    said = await world.say("Write.")
    await world.reaches(said, RunStatus.WAITING)
    (asked,) = await world.approvals.page(ANA, only_open=True, before=None, limit=10)
    await stop(world)
    await assert_stopped(world, said)
    assert (await world.approvals.get(ANA, asked.approval_id)).decision == "withdrawn"
    with pytest.raises(ApprovalAnswered):
        await world.approvals.resolve(ANA, asked.approval_id, allow=True, scope=ApprovalScope.ONCE)


async def test_a_child_ends_with_its_parent(begin: Begin) -> None:
    async def speak(prompt: Prompt) -> AsyncIterator[ModelEvent]:
        if inputs(prompt)[-1] == "Delegate.":
            yield a_call("agent.delegate", {"task": "Sing."})
            yield DONE
        while True:
            yield TextDelta("la ")
            await asyncio.sleep(0.001)

    world = await begin(Model(speak))
    parent = await world.say("Delegate.")
    child = await world.child_of(parent)
    await world.seen(child, "model_text")
    assert await stop(world) == 2
    for run in (parent, child):
        assert (await world.ended(run, seconds=SOON)).status is RunStatus.CANCELLED
    await world.quiet()
    assert "child_ended" not in await world.kinds(parent)


async def test_a_child_that_was_asked_for_but_not_begun_never_begins(begin: Begin) -> None:
    world = await begin(said_by(lambda _: [a_call("agent.delegate", {"task": "Sing."}), DONE]))
    await world.stop_queue()
    parent = await world.say("Delegate.")
    await world.reaches(parent, RunStatus.WAITING)
    await stop(world)
    await assert_stopped(world, parent)
    await world.crash()
    await world.quiet()
    assert [run.run_id for run in await world.runs()] == [parent.run_id]


# -- what is new is refused, what is queued is held


async def test_nothing_new_is_taken_in_until_it_is_let_go_on(begin: Begin) -> None:
    world = await begin(ECHO)
    await stop(world)
    for mode in InputMode:
        with pytest.raises(WorkStopped, match=r"Everything has been stopped since .* `palyra resume` ends the stop\."):
            await world.say("Hello.", mode=mode)
    assert not world.prompts
    await resume(world)
    assert await world.ask("Hello.") == "You said: Hello."


async def test_who_asks_again_about_a_message_of_before_gets_its_answer(begin: Begin) -> None:
    world = await begin(ECHO)
    said = await world.say("Hello.", idempotency_key="k1")
    await world.ended(said)
    await stop(world)
    again = await world.say("Hello.", idempotency_key="k1")
    assert (again.run_id, again.repeated) == (said.run_id, True)
    with pytest.raises(WorkStopped):
        await world.say("Hello.", idempotency_key="k2")


async def test_queued_runs_are_held_and_start_in_their_order_when_it_goes_on(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    first, second, third = await world.say("One."), await world.say("Two."), await world.say("Three.")
    other = await world.say("Four.", key="other")
    await world.seen(first, "model_text")
    await stop(world)
    await assert_stopped(world, first)
    await assert_stopped(world, other)
    assert await world.kinds(second) == await world.kinds(third) == ["run_accepted"]
    gate.set()
    await resume(world)
    ended = await world.all_ended([second, third])
    assert [run.status for run in ended] == [RunStatus.DONE] * 2
    assert [inputs(prompt)[-1] for prompt in world.prompts][-2:] == ["Two.", "Three."]


async def test_a_held_run_can_be_cancelled_and_the_next_one_starts_instead(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    first, second, third = await world.say("One."), await world.say("Two."), await world.say("Three.")
    await world.seen(first, "model_text")
    await stop(world)
    await assert_stopped(world, first)
    assert (await world.cancel(second)).status is RunStatus.CANCELLED
    gate.set()
    await resume(world)
    assert (await world.ended(third)).status is RunStatus.DONE


# -- over a death, and for several daemons


async def test_it_holds_over_a_death(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    first, second = await world.say("One."), await world.say("Two.")
    await world.seen(first, "model_text")
    await stop(world)
    await assert_stopped(world, first)
    await world.crash()
    with pytest.raises(WorkStopped):
        await world.say("Hello.")
    assert await world.kinds(second) == ["run_accepted"]
    gate.set()
    await resume(world)
    assert (await world.ended(second)).status is RunStatus.DONE


@pytest.mark.parametrize("commits", [1, 2, 3, 4, 5])
async def test_death_in_the_middle_of_stopping_leaves_nothing_going(begin: Begin, commits: int) -> None:
    door = Door()
    world = await begin(first_calls(ScriptCall(tool="door.wait")), tools=[door.tool])
    world.inbox = True
    said = [await world.say("Go.", key=f"s{number}") for number in range(3)]
    queued = await world.say("Later.", key="s0")
    await eventually(lambda: door.came == 3)
    world.dies_after(commits)
    stopping = asyncio.create_task(stop(world))
    await asyncio.wait([stopping], timeout=SOON)
    await world.crash()
    await asyncio.gather(stopping, return_exceptions=True)
    for one in said:
        await assert_stopped(world, one)
    assert await world.kinds(queued) == ["run_accepted"]
    assert door.came == 3
    door.open.set()
    await resume(world)
    assert (await world.ended(queued)).status is RunStatus.DONE


async def test_death_between_letting_go_and_starting_loses_no_queued_run(begin: Begin) -> None:
    gate = asyncio.Event()
    world = await begin(held(gate))
    first, second = await world.say("One."), await world.say("Two.")
    await world.seen(first, "model_text")
    await stop(world)
    await assert_stopped(world, first)
    gate.set()

    def lift(conn: Connection) -> None:
        stops.lift(conn, [row.stop_id for row in stops.in_force(conn)], by=BEN, at_ms=1)

    # All that a daemon wrote which died right behind its first commit.
    world.line.deaf = True
    await world.engine.write(lift)
    await world.crash()
    assert (await world.ended(second)).status is RunStatus.DONE


@on_postgres
async def test_another_daemon_on_the_same_journal_obeys_within_a_second(begin: Begin) -> None:
    gate = asyncio.Event()
    here, there = await begin(ECHO, house="here"), await begin(held(gate), house="there", ids=Offset())
    said = await there.say("Hello.", key="there")
    waiting = await there.say("Later.", key="there")
    await there.seen(said, "model_text")
    before = asyncio.get_running_loop().time()
    await stop(here)
    await assert_stopped(there, said)
    await becomes(lambda: _refuses(there))
    assert asyncio.get_running_loop().time() - before < SOON
    assert await there.kinds(waiting) == ["run_accepted"]
    gate.set()
    await resume(here)
    assert (await there.ended(waiting)).status is RunStatus.DONE
    await becomes(lambda: _takes_in(there))


class Offset:
    """Ids for a second world on the same journal."""

    def __init__(self) -> None:
        from palyra.core.ids import RANDOM_BYTES, ulid

        self._numbers = iter(range(10**6, 10**7))
        self._ulid, self._bytes = ulid, RANDOM_BYTES

    def new(self) -> str:
        return self._ulid(1_767_323_045_678, next(self._numbers).to_bytes(self._bytes, "big"))


async def _refuses(world: World) -> bool:
    try:
        await world.say("Hello.", key=None)
    except WorkStopped:
        return True
    return False


async def _takes_in(world: World) -> bool:
    return not await _refuses(world)


# -- races


async def test_a_message_that_races_with_a_stop_is_refused_or_ended(begin: Begin) -> None:
    world = await begin(ENDLESS)
    for round_ in range(10):
        sending = [asyncio.create_task(world.say("Sing.", key=f"{round_}-{number}")) for number in range(8)]
        await asyncio.sleep(0)
        stopping = asyncio.create_task(stop(world))
        said = await asyncio.gather(*sending, return_exceptions=True)
        await stopping
        for one in said:
            assert isinstance(one, AcceptedMessage | WorkStopped)
            if isinstance(one, AcceptedMessage):
                assert (await world.ended(one, seconds=SOON)).status is RunStatus.CANCELLED
        await resume(world)
    assert await world.engine.read(runs.counts) == {}


async def test_what_a_stop_found_active_ends_however_soon_it_is_lifted(begin: Begin) -> None:
    world = await begin(ENDLESS)
    for round_ in range(5):
        said = [await world.say("Sing.", key=f"{round_}-{number}") for number in range(4)]
        await asyncio.gather(stop(world), asyncio.sleep(0))
        await resume(world)
        for one in said:
            assert (await world.ended(one, seconds=SOON)).status is RunStatus.CANCELLED
    assert await world.engine.read(stops.in_force) == ()


async def test_a_commit_of_the_carrier_that_races_with_a_stop_changes_nothing(begin: Begin) -> None:
    world = await begin(ENDLESS)
    said = await world.say("Sing.")
    await world.seen(said, "model_text")
    # The stop is recorded right before each of the carrier's writes, and no word of it is heard.
    world.line.deaf = True
    stopped = asyncio.Event()

    async def first() -> None:
        if not stopped.is_set():
            stopped.set()
            stop_ = (await world.engine.read(stops.in_force)) or None
            assert stop_ is None
            await world.engine.write(lambda conn: stops.insert(conn, _row(world)))

    world.line.before_write = first
    await stopped.wait()
    world.line.deaf = False
    await world.stops.load()
    assert (await world.ended(said, seconds=SOON)).status is RunStatus.CANCELLED


def _row(world: World) -> Any:
    from palyra.core.stop import EmergencyStop

    return EmergencyStop(
        stop_id=world.ids.new(), principal=None, by=BEN, at=world.clock.now(), reason="smoke in the kitchen"
    )


# -- who may


async def test_a_person_lets_go_on_what_it_stopped_itself_and_nothing_else(begin: Begin) -> None:
    world = await begin(ECHO)
    await world.stops.stop(ANA, principal=ANA)
    await stop(world, principal=ANA)
    lifted = await world.stops.resume(ANA, principal=ANA, admin=False)
    assert [one.by for one in lifted] == [ANA]
    with pytest.raises(WorkStopped):
        await world.say("Hello.")
    with pytest.raises(StopNotAllowed, match="user:ben: smoke in the kitchen"):
        await world.stops.resume(ANA, principal=ANA, admin=False)
    await resume(world, principal=ANA)
    assert await world.ask("Hello.") == "You said: Hello."


async def test_letting_everything_go_on_leaves_alone_what_people_stopped_of_their_own(begin: Begin) -> None:
    world = await begin(ECHO)
    await world.stops.stop(ANA, principal=ANA)
    await stop(world)
    await resume(world)
    with pytest.raises(WorkStopped, match="user:ana"):
        await world.say("Hello.")
    his = await world.say("Hello.", who=BEN)
    await becomes(lambda: _is_done(world, his))


async def test_a_second_stop_of_the_same_kind_is_the_first(begin: Begin) -> None:
    world = await begin(ECHO)
    first = await world.stops.stop(BEN, principal=None, reason="one")
    second = await world.stops.stop(BEN, principal=None, reason="two")
    assert second.stop == first.stop
    await resume(world)
    with pytest.raises(StopNotFound):
        await resume(world)


async def test_a_name_that_nobody_has_stops_nobody_and_says_so(begin: Begin) -> None:
    world = await begin(ECHO)
    with pytest.raises(PrincipalNotFound):
        await stop(world, principal="user:anna")
    assert await world.ask("Hello.") == "You said: Hello."


async def test_the_brake_is_not_refused_for_its_words(begin: Begin) -> None:
    world = await begin(ECHO)
    await stop(world, reason="a\0b\ud800" + "c" * 5000)
    with pytest.raises(WorkStopped, match="by user:ben: a\ufffdb\\?ccc"):
        await world.ask("Hello.")


# -- the file


async def test_a_file_stops_everything_and_holds_when_it_is_gone(begin: Begin, tmp_path: Path) -> None:
    path = tmp_path / "STOP"
    world = await begin(ENDLESS, stop_file=HomeStopFile(path))
    said = await world.say("Sing.")
    await world.seen(said, "model_text")
    path.write_text("  the cat\nis on the keyboard\n")
    run = await world.ended(said, seconds=SOON)
    assert (run.status, run.reason) == (RunStatus.CANCELLED, f"stopped by {BY_FILE}: the cat is on the keyboard")
    with pytest.raises(StopFileExists):
        await resume(world)
    await becomes(lambda: _is_kept(world))
    path.unlink()
    await world.crash()
    with pytest.raises(WorkStopped, match="the cat is on the keyboard"):
        await world.say("Hello.")
    await resume(world)
    await world.say("Hello.")


async def _is_kept(world: World) -> bool:
    return any(row.by == BY_FILE for row in await world.engine.read(stops.in_force))


async def test_a_file_is_honoured_before_anything_begins(begin: Begin, tmp_path: Path) -> None:
    path = tmp_path / "STOP"
    world = await begin(ENDLESS, stop_file=HomeStopFile(path))
    said = await world.say("Sing.")
    await world.seen(said, "model_text")
    await world.die()
    path.touch()
    asked = len(world.prompts)
    await world.start()
    with pytest.raises(WorkStopped, match="by file:STOP"):
        await world.say("Hello.")
    assert (await world.ended(said, seconds=SOON)).status is RunStatus.CANCELLED
    assert len(world.prompts) == asked


async def test_the_file_goes_with_the_stop_if_that_is_asked_for(begin: Begin, tmp_path: Path) -> None:
    path = tmp_path / "STOP"
    path.touch()
    world = await begin(ECHO, stop_file=HomeStopFile(path))
    await resume(world, remove_file=True)
    assert not path.exists()
    assert await world.ask("Hello.") == "You said: Hello."
    assert await world.engine.read(stops.in_force) == ()


async def test_a_file_stops_also_while_the_journal_can_not_be_written(begin: Begin, tmp_path: Path) -> None:
    path = tmp_path / "STOP"
    door = Door()
    world = await begin(first_calls(ScriptCall(tool="door.wait")), tools=[door.tool], stop_file=HomeStopFile(path))
    said = await world.say("Go.")
    await eventually(lambda: door.came)
    may_write = asyncio.Event()
    world.line.before_write = may_write.wait  # type: ignore[assignment]
    path.touch()
    await eventually(lambda: door.sent_away == 1, timeout=SOON)
    with pytest.raises(WorkStopped):
        await world.say("Hello.")
    may_write.set()
    assert (await world.ended(said, seconds=SOON)).status is RunStatus.CANCELLED
