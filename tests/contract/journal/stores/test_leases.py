"""Leases: one holder at a time, and no word from those who were taken over."""

import asyncio
from dataclasses import replace

import pytest

from palyra.core.ids import TaskId
from palyra.core.task import NewTask
from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import leases, tasks
from palyra.journal.stores.leases import LENGTH_MS, RUNS, TASKS, Lease, LeasedTable, LeaseLost
from tests.contract.journal.builders import a_run_id, a_run_row, a_session_id, accept, an_id, later

ONE = "01234567:one"
TWO = "01234567:two"
NOW = 1_000_000

pytestmark = pytest.mark.parametrize("kind", [RUNS, TASKS], ids=["runs", "tasks"])


def some_work(conn: Connection, kind: LeasedTable, count: int = 1) -> list[str]:
    """Write down work that anybody may take, and return its ids, the longest waiting first."""
    if kind is RUNS:
        for place in range(count):
            accept(conn, a_run_row(place, a_session_id(place), at=later(place)))
        return [a_run_id(place) for place in range(count)]
    for place in range(count):
        task = NewTask(kind="test", key=str(place), payload={}, not_before_ms=place)
        assert tasks.add(conn, TaskId(an_id(place)), task, now_ms=NOW)
    return [an_id(place) for place in range(count)]


def claim(conn: Connection, kind: LeasedTable, owner: str = ONE, *, now_ms: int = NOW, limit: int = 10) -> list[Lease]:
    return leases.claim(conn, kind, owner=owner, now_ms=now_ms, limit=limit)


def holds(conn: Connection, kind: LeasedTable, lease: Lease) -> bool:
    try:
        leases.check(conn, kind, lease)
    except LeaseLost:
        return False
    return True


def test_work_is_taken_the_longest_waiting_first_up_to_a_limit(conn: Connection, kind: LeasedTable) -> None:
    work = some_work(conn, kind, 5)

    assert [lease.item_id for lease in claim(conn, kind, limit=3)] == work[:3]
    assert [lease.item_id for lease in claim(conn, kind, limit=3)] == work[3:]
    assert claim(conn, kind) == []


def test_work_that_is_held_is_not_taken_by_another(conn: Connection, kind: LeasedTable) -> None:
    some_work(conn, kind)
    (lease,) = claim(conn, kind, ONE)

    assert claim(conn, kind, TWO, now_ms=NOW + LENGTH_MS - 1) == []
    leases.check(conn, kind, lease)


def test_work_whose_lease_ran_out_is_taken_over_under_a_higher_epoch(conn: Connection, kind: LeasedTable) -> None:
    (item_id,) = some_work(conn, kind)
    (old,) = claim(conn, kind, ONE)

    (new,) = claim(conn, kind, TWO, now_ms=NOW + LENGTH_MS)

    assert old == Lease(item_id, ONE, 1)
    assert new == Lease(item_id, TWO, 2)
    leases.check(conn, kind, new)
    with pytest.raises(LeaseLost):
        leases.check(conn, kind, old)


def test_a_lease_that_was_taken_while_the_clock_was_ahead_is_void(conn: Connection, kind: LeasedTable) -> None:
    (item_id,) = some_work(conn, kind)
    claim(conn, kind, ONE, now_ms=NOW + 9 * 365 * 24 * 3_600_000)

    (new,) = claim(conn, kind, TWO)

    assert new == Lease(item_id, TWO, 2)


def test_a_holder_that_takes_its_work_again_can_not_use_its_earlier_lease(conn: Connection, kind: LeasedTable) -> None:
    some_work(conn, kind)
    (old,) = claim(conn, kind, ONE)
    (new,) = claim(conn, kind, ONE, now_ms=NOW + LENGTH_MS)

    assert [holds(conn, kind, lease) for lease in (old, new)] == [False, True]


def test_a_lease_of_nobody_or_of_nothing_is_lost(conn: Connection, kind: LeasedTable) -> None:
    some_work(conn, kind, 2)
    (lease,) = claim(conn, kind, limit=1)

    assert holds(conn, kind, lease)
    assert not holds(conn, kind, replace(lease, owner=TWO))
    assert not holds(conn, kind, replace(lease, epoch=2))
    assert not holds(conn, kind, replace(lease, item_id=an_id(99)))


def test_renewing_prolongs_all_that_the_owner_holds_and_names_it(conn: Connection, kind: LeasedTable) -> None:
    work = some_work(conn, kind, 3)
    held = claim(conn, kind, ONE, limit=2)
    claim(conn, kind, TWO, limit=1)

    assert leases.renew(conn, kind, owner=ONE, now_ms=NOW + LENGTH_MS - 1) == set(work[:2])

    taken = claim(conn, kind, "01234567:three", now_ms=NOW + LENGTH_MS)
    assert [lease.item_id for lease in taken] == work[2:]
    assert all(holds(conn, kind, lease) for lease in held)


def test_renewing_does_not_take_back_what_was_taken_over(conn: Connection, kind: LeasedTable) -> None:
    some_work(conn, kind)
    claim(conn, kind, ONE)
    claim(conn, kind, TWO, now_ms=NOW + LENGTH_MS)

    assert leases.renew(conn, kind, owner=ONE, now_ms=NOW + LENGTH_MS) == set()


def test_work_that_is_given_back_can_be_taken_at_once(conn: Connection, kind: LeasedTable) -> None:
    (item_id,) = some_work(conn, kind)
    (lease,) = claim(conn, kind, ONE)

    leases.release(conn, kind, lease)

    assert not holds(conn, kind, lease)
    assert claim(conn, kind, TWO) == [Lease(item_id, TWO, 2)]


def test_giving_back_what_was_taken_over_changes_nothing(conn: Connection, kind: LeasedTable) -> None:
    some_work(conn, kind)
    (old,) = claim(conn, kind, ONE)
    (new,) = claim(conn, kind, TWO, now_ms=NOW + LENGTH_MS)

    leases.release(conn, kind, old)

    leases.check(conn, kind, new)


def test_an_owner_can_give_back_everything_at_once(conn: Connection, kind: LeasedTable) -> None:
    work = some_work(conn, kind, 3)
    claim(conn, kind, ONE, limit=2)
    (other,) = claim(conn, kind, TWO)

    leases.release_all(conn, kind, owner=ONE)

    leases.check(conn, kind, other)
    assert [lease.item_id for lease in claim(conn, kind, TWO)] == work[:2]


def test_the_leases_of_a_dead_daemon_are_void_and_those_of_other_homes_are_not(
    conn: Connection, kind: LeasedTable
) -> None:
    work = some_work(conn, kind, 4)
    for owner in (ONE, TWO, "0123456:three", "76543210:one"):
        claim(conn, kind, owner, limit=1)

    assert leases.release_dead_owners(conn, kind, home="01234567") == 2

    assert [lease.item_id for lease in claim(conn, kind, "new")] == work[:2]


def test_voiding_reads_no_pattern_into_the_name_of_a_home(conn: Connection, kind: LeasedTable) -> None:
    some_work(conn, kind, 3)
    for owner in ("abcd:one", "ABCD:one", "a_cd:one"):
        claim(conn, kind, owner, limit=1)

    assert leases.release_dead_owners(conn, kind, home="%") == 0
    assert leases.release_dead_owners(conn, kind, home="a_cd") == 1
    assert leases.release_dead_owners(conn, kind, home="abcd") == 1


async def test_two_owners_that_take_work_at_once_never_hold_the_same(engine: Engine, kind: LeasedTable) -> None:
    work = await engine.write(lambda conn: some_work(conn, kind, 60))
    taken: dict[str, list[str]] = {}

    async def worker(owner: str) -> None:
        while held := await engine.write(lambda conn: claim(conn, kind, owner, limit=3)):
            taken.setdefault(owner, []).extend(lease.item_id for lease in held)

    owners = [f"01234567:{number}" for number in range(6)]
    await asyncio.gather(*map(worker, owners))

    assert sorted(item for held in taken.values() for item in held) == sorted(work)


async def test_only_one_of_many_takes_over_a_lease_that_ran_out(engine: Engine, kind: LeasedTable) -> None:
    await engine.write(lambda conn: some_work(conn, kind))
    await engine.write(lambda conn: claim(conn, kind, ONE))

    taken = await asyncio.gather(
        *(
            engine.write(lambda conn, owner=str(place): claim(conn, kind, owner, now_ms=NOW + LENGTH_MS))  # type: ignore[misc]
            for place in range(8)
        )
    )

    assert [lease.epoch for held in taken for lease in held] == [2]


def test_an_owner_can_ask_what_it_holds(conn: Connection, kind: LeasedTable) -> None:
    some_work(conn, kind, 3)
    mine = claim(conn, kind, ONE, limit=2)
    claim(conn, kind, TWO)

    assert sorted(leases.held(conn, kind, owner=ONE, now_ms=NOW), key=lambda lease: lease.item_id) == mine
    assert leases.held(conn, kind, owner="01234567:three", now_ms=NOW) == []
