"""Work for later: tried again when it fails, put aside when it fails too often, never done by two at once."""

import asyncio
from datetime import timedelta

import pytest

from palyra.background import queue
from palyra.background.jobs import cleanup
from palyra.background.queue import Job, JobContext
from palyra.core.clock import to_ms
from palyra.core.ids import TaskId
from palyra.core.task import NewTask
from palyra.core.tool import JsonObject
from palyra.journal.engines.base import Connection, StorageFull, StorageUnavailable
from palyra.journal.stores import leases, tasks
from palyra.journal.stores.leases import LeaseLost
from tests.integration.cast import ECHO, on_postgres
from tests.integration.conftest import Begin
from tests.support.eventually import eventually
from tests.support.world import World

KIND = "test.job"


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "SWEEP_SECONDS", 0.02)


class Work:
    """A job that does what the test says, and knows what it was given."""

    def __init__(self, *failures: Exception) -> None:
        self.done: list[JsonObject] = []
        self.begun = 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self._failures = [*failures]
        self.jobs: dict[str, Job] = {KIND: self._run}

    async def _run(self, payload: JsonObject, context: JobContext) -> None:
        self.begun += 1
        await self.may_end.wait()
        if self._failures:
            raise self._failures.pop(0)
        self.done.append(payload)


async def add(world: World, *, key: str = "k", kind: str = KIND, in_ms: int = 0, max_attempts: int = 8) -> bool:
    now_ms = to_ms(world.clock.now())
    task = NewTask(
        kind=kind,
        key=key,
        payload={"key": key},
        not_before_ms=now_ms + in_ms if in_ms else 0,
        max_attempts=max_attempts,
    )
    return await world.engine.write(lambda conn: tasks.add(conn, TaskId(world.ids.new()), task, now_ms=now_ms))


async def row(world: World, key: str = "k") -> dict[str, object]:
    names = ("status", "attempts", "error", "not_before_ms", "lease_owner")

    def query(conn: Connection) -> dict[str, object]:
        found = conn.fetch_one(f"SELECT {', '.join(names)} FROM tasks WHERE key = :key", {"key": key})
        assert found is not None
        return dict(zip(names, found, strict=True))

    return await world.engine.read(query)


async def becomes(world: World, status: str, key: str = "k") -> dict[str, object]:
    async def look() -> dict[str, object]:
        found = await row(world, key)
        assert found["status"] == status, found
        return found

    return await eventually(look)


async def is_put_back(world: World, attempts: int) -> dict[str, object]:
    async def look() -> dict[str, object]:
        found = await row(world)
        assert (found["status"], found["attempts"], found["lease_owner"]) == ("pending", attempts, None)
        return found

    return await eventually(look)


async def test_a_task_is_done_once(begin: Begin) -> None:
    work = Work()
    world = await begin(ECHO, jobs=work.jobs)
    assert await add(world)
    found = await becomes(world, "done")
    assert (found["attempts"], found["error"], found["lease_owner"]) == (1, None, None)
    assert work.done == [{"key": "k"}]


async def test_a_task_of_the_same_kind_and_key_that_is_pending_stands_for_both(begin: Begin) -> None:
    work = Work()
    world = await begin(ECHO, jobs=work.jobs)
    assert await add(world, in_ms=60_000)
    assert not await add(world, in_ms=60_000)
    world.clock.advance(timedelta(minutes=2))
    await becomes(world, "done")
    assert await add(world, key="another")
    await world.quiet()
    assert len(work.done) == 2


async def test_a_task_is_not_done_before_its_time(begin: Begin) -> None:
    work = Work()
    world = await begin(ECHO, jobs=work.jobs)
    await add(world, key="later", in_ms=60_000)
    await add(world, key="now")
    await becomes(world, "done", "now")
    assert [payload["key"] for payload in work.done] == ["now"]
    world.clock.advance(timedelta(minutes=2))
    await becomes(world, "done", "later")


async def test_a_task_that_fails_is_tried_again_each_time_later(begin: Begin) -> None:
    work = Work(ValueError("first"), ValueError("second"), ValueError("third"))
    world = await begin(ECHO, jobs=work.jobs)
    await add(world)
    waits = []
    for attempt in (1, 2, 3):
        found = await is_put_back(world, attempt)
        assert found["error"] == f"ValueError: {('first', 'second', 'third')[attempt - 1]}"
        waits.append(int(str(found["not_before_ms"])) - to_ms(world.clock.now()))
        world.clock.advance(timedelta(milliseconds=waits[-1] + 1))
    assert waits == pytest.approx([500, 1000, 2000], abs=400)
    found = await becomes(world, "done")
    assert found["attempts"] == 4


async def test_a_task_that_fails_as_often_as_it_may_is_parked_with_its_error(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "FIRST_WAIT_MS", 1)
    work = Work(*[ValueError("the pot is broken")] * 3)
    world = await begin(ECHO, jobs=work.jobs)
    await add(world, max_attempts=3)
    found = await becomes(world, "parked")
    assert (found["attempts"], found["error"]) == (3, "ValueError: the pot is broken")
    assert await world.engine.read(tasks.counts) == {"parked": 1}
    await add(world, key="next")
    await becomes(world, "done", "next")
    assert work.begun == 4


async def test_a_task_of_a_kind_that_nobody_knows_is_parked(begin: Begin) -> None:
    world = await begin(ECHO)
    await add(world, kind="no.such", max_attempts=1)
    found = await becomes(world, "parked")
    assert found["error"] == "TaskKindUnknown: there is no job for no.such"


async def test_a_task_that_could_not_reach_the_journal_is_never_parked(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may wait for it."""
    monkeypatch.setattr(queue, "FIRST_WAIT_MS", 1)
    monkeypatch.setattr(queue, "MAX_WAIT_MS", 1)
    work = Work(*[StorageUnavailable()] * 5)
    world = await begin(ECHO, jobs=work.jobs)
    await add(world, max_attempts=2)
    found = await becomes(world, "done")
    assert found["attempts"] == 6


async def test_a_task_that_takes_too_long_is_stopped_and_tried_again(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "TASK_SECONDS", 0.05)
    monkeypatch.setattr(queue, "FIRST_WAIT_MS", 1)
    work = Work()
    work.may_end.clear()
    world = await begin(ECHO, jobs=work.jobs)
    await add(world)
    await eventually(lambda: work.begun >= 2)
    work.may_end.set()
    await becomes(world, "done")
    assert len(work.done) == 1


async def test_a_task_under_way_at_a_crash_is_done_in_the_next_life(begin: Begin) -> None:
    work = Work()
    work.may_end.clear()
    world = await begin(ECHO, jobs=work.jobs)
    await add(world)
    await eventually(lambda: work.begun)
    await world.crash()
    work.may_end.set()
    found = await becomes(world, "done")
    assert (found["attempts"], len(work.done)) == (2, 1)


async def test_a_task_that_takes_longer_than_a_lease_is_not_begun_again(begin: Begin) -> None:
    work = Work()
    work.may_end.clear()
    world = await begin(ECHO, jobs=work.jobs)
    await add(world, key="long")
    await eventually(lambda: work.begun)
    for number in range(4):
        world.clock.advance(timedelta(milliseconds=leases.LENGTH_MS * 2 // 3))
        await _sweeps(world, number)
    assert work.begun == 1
    work.may_end.set()
    found = await becomes(world, "done", "long")
    assert found["attempts"] == 1


async def _sweeps(world: World, number: int) -> None:
    """Wait until the queue has looked again: it has done something that it could not know of before."""
    await add(world, kind="session.title", key=f"no such session {number}", max_attempts=1)

    async def look() -> bool:
        return (await row(world, f"no such session {number}"))["status"] == "parked"

    _: bool = await eventually(look)


async def test_a_task_whose_end_could_not_be_recorded_is_taken_up_again_by_itself(begin: Begin) -> None:
    work = Work()
    work.may_end.clear()
    world = await begin(ECHO, jobs=work.jobs)
    await add(world)
    await eventually(lambda: work.begun)

    async def refuse() -> None:
        raise StorageFull

    async def nothing() -> None:
        pass

    world.line.before_write = refuse
    work.may_end.set()
    await eventually(lambda: work.done)
    assert (await row(world))["status"] == "pending"
    world.line.before_write = nothing
    await becomes(world, "done")


@on_postgres
async def test_a_task_whose_worker_died_is_taken_over_by_another_daemon(begin: Begin) -> None:
    work = Work()
    work.may_end.clear()
    here = await begin(ECHO, jobs=work.jobs)
    await add(here)
    await eventually(lambda: work.begun)
    there = await begin(ECHO, jobs=work.jobs, clock=here.clock, ids=here.ids, house="next door")
    await here.die()
    work.may_end.set()
    here.clock.advance(timedelta(milliseconds=leases.LENGTH_MS + 1))
    await becomes(there, "done")


async def test_a_worker_that_was_taken_over_can_not_settle_a_task(begin: Begin) -> None:
    world = await begin(ECHO)
    await world.stop_queue()
    await add(world)
    now_ms = to_ms(world.clock.now())
    ((old, _),) = await world.engine.write(lambda conn: tasks.claim(conn, owner="a:1", now_ms=now_ms, limit=1))
    later_ms = now_ms + leases.LENGTH_MS + 1
    ((new, _),) = await world.engine.write(lambda conn: tasks.claim(conn, owner="b:1", now_ms=later_ms, limit=1))
    with pytest.raises(LeaseLost):
        await world.engine.write(lambda conn: tasks.finish(conn, old, now_ms=later_ms))
    await world.engine.write(lambda conn: tasks.finish(conn, new, now_ms=later_ms))
    assert (await row(world))["status"] == "done"


async def test_no_more_tasks_are_under_way_at_once_than_allowed(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "CONCURRENCY", 2)
    work = Work()
    work.may_end.clear()
    world = await begin(ECHO, jobs=work.jobs)
    for number in range(5):
        await add(world, key=f"k{number}")
    await eventually(lambda: work.begun == 2)
    work.may_end.set()
    await world.quiet()
    assert len(work.done) == 5


async def test_upkeep_forgets_what_was_done_long_ago_and_plans_itself_anew(begin: Begin) -> None:
    work = Work(ValueError("no"))
    world = await begin(ECHO, jobs=work.jobs)
    await add(world, key="parked", max_attempts=1)
    await becomes(world, "parked", "parked")
    await add(world, key="old")
    await becomes(world, "done", "old")
    world.clock.advance(timedelta(hours=25))
    await add(world, key="new")
    await becomes(world, "done", "new")
    now_ms = to_ms(world.clock.now())
    for _ in range(2):  # as each start of a daemon does
        await world.engine.write(
            lambda conn: tasks.plan(conn, TaskId(world.ids.new()), cleanup.KIND, now_ms=now_ms, at_ms=now_ms)
        )

    async def cleaned() -> bool:
        done = "SELECT attempts FROM tasks WHERE kind = :kind AND status = 'done'"
        return (1,) in await world.engine.read(lambda conn: conn.fetch(done, {"kind": cleanup.KIND}))

    done: bool = await eventually(cleaned)
    assert done

    def left(conn: Connection) -> list[tuple[object, ...]]:
        return conn.fetch("SELECT key, status FROM tasks WHERE kind <> :kind ORDER BY key", {"kind": cleanup.KIND})

    assert await world.engine.read(left) == [("new", "done"), ("parked", "parked")]
    next_due = await world.engine.read(tasks.next_due_ms)
    assert next_due is not None
    assert next_due >= now_ms + cleanup.EVERY_MS
