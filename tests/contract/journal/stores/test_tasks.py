"""Tasks: due in time, once for each kind and key, tried again, and parked in sight."""

from collections.abc import Callable

import pytest

from palyra.core.ids import TaskId
from palyra.core.task import NewTask, Task
from palyra.journal.engines.base import Connection, Fact, WorkAvailable
from palyra.journal.engines.postgres import PostgresConnection
from palyra.journal.engines.sqlite import SqliteConnection
from palyra.journal.stores import tasks
from palyra.journal.stores.leases import LENGTH_MS, Lease, LeaseLost
from tests.contract.journal.builders import an_id

ONE = "home:one"
TWO = "home:two"
NOW = 1_000_000


def a_task(key: str = "a", *, kind: str = "test", due: int = 0, payload: dict[str, object] | None = None) -> NewTask:
    return NewTask(kind=kind, key=key, payload=payload or {}, not_before_ms=due, max_attempts=3)


def add(conn: Connection, place: int, task: NewTask, *, now_ms: int = NOW) -> bool:
    return tasks.add(conn, TaskId(an_id(place)), task, now_ms=now_ms)


def claim(conn: Connection, owner: str = ONE, *, now_ms: int = NOW, limit: int = 10) -> list[tuple[Lease, Task]]:
    return tasks.claim(conn, owner=owner, now_ms=now_ms, limit=limit)


def facts(conn: Connection) -> list[Fact]:
    assert isinstance(conn, SqliteConnection | PostgresConnection)
    return conn.facts


def states(conn: Connection) -> list[tuple[object, ...]]:
    return conn.fetch("SELECT key, status, error, ended_ms FROM tasks ORDER BY task_id")


def test_a_task_is_taken_as_it_was_written(conn: Connection) -> None:
    payload: dict[str, object] = {"text": "it's ü", "numbers": [1, 2.5, None], "deep": {"er": True}}
    assert add(conn, 1, a_task(payload=payload))

    ((lease, task),) = claim(conn)

    assert lease == Lease(an_id(1), ONE, 1)
    assert task == Task(task_id=TaskId(an_id(1)), kind="test", payload=payload, attempts=1, max_attempts=3)


# -- one for each kind and key


def test_a_pending_task_stands_for_another_of_its_kind_and_key(conn: Connection) -> None:
    assert add(conn, 1, a_task("a", payload={"first": True}))
    assert not add(conn, 2, a_task("a", payload={"first": False}))
    assert add(conn, 3, a_task("b"))
    assert add(conn, 4, a_task("a", kind="other"))

    assert [task.task_id for _, task in claim(conn)] == [an_id(1), an_id(3), an_id(4)]


def test_a_task_that_is_being_carried_out_is_still_pending(conn: Connection) -> None:
    add(conn, 1, a_task("a"))
    claim(conn)

    assert not add(conn, 2, a_task("a"))


@pytest.mark.parametrize("end", ["finish", "park"])
def test_a_task_that_has_ended_makes_room_for_another(conn: Connection, end: str) -> None:
    add(conn, 1, a_task("a"))
    ((lease, _),) = claim(conn)
    if end == "finish":
        tasks.finish(conn, lease, now_ms=NOW)
    else:
        tasks.park(conn, lease, now_ms=NOW, error="no use")

    assert add(conn, 2, a_task("a"))


# -- in time


def test_a_task_is_not_taken_before_its_time(conn: Connection) -> None:
    add(conn, 1, a_task(due=NOW + 5))

    assert claim(conn, now_ms=NOW + 4) == []
    assert len(claim(conn, now_ms=NOW + 5)) == 1


def test_tasks_are_taken_by_the_time_they_are_due(conn: Connection) -> None:
    for place, due in enumerate([30, 10, 20]):
        add(conn, place, a_task(str(place), due=due))

    assert [task.task_id for _, task in claim(conn)] == [an_id(1), an_id(2), an_id(0)]


def test_the_next_time_is_that_of_the_first_task_that_can_be_taken(conn: Connection) -> None:
    assert tasks.next_due_ms(conn) is None
    for place, due in enumerate([30, 10, 20]):
        add(conn, place, a_task(str(place), due=due))
    assert tasks.next_due_ms(conn) == 10

    ((lease, _),) = claim(conn, now_ms=10)
    assert tasks.next_due_ms(conn) == 20
    tasks.finish(conn, lease, now_ms=NOW)
    assert tasks.next_due_ms(conn) == 20


def test_a_task_whose_holder_died_is_due_when_its_lease_runs_out(conn: Connection) -> None:
    add(conn, 1, a_task(due=10))
    claim(conn, now_ms=NOW)

    due = tasks.next_due_ms(conn)

    assert due is not None
    assert due == NOW + LENGTH_MS
    assert len(claim(conn, TWO, now_ms=due)) == 1


def test_a_task_that_is_due_wakes_who_waits_and_one_for_later_does_not(conn: Connection) -> None:
    add(conn, 1, a_task("later", due=NOW + 1))
    assert facts(conn) == []
    add(conn, 2, a_task("now", due=NOW))
    assert facts(conn) == [WorkAvailable("tasks")]
    add(conn, 3, a_task("now", due=NOW))
    assert facts(conn) == [WorkAvailable("tasks")]


# -- how it ends


def test_a_task_that_is_finished_is_not_taken_again(conn: Connection) -> None:
    add(conn, 1, a_task())
    ((lease, _),) = claim(conn)

    tasks.finish(conn, lease, now_ms=NOW + 7)

    assert states(conn) == [("a", "done", None, NOW + 7)]
    assert claim(conn, now_ms=NOW * 2) == []


def test_a_task_that_failed_is_tried_again_in_time_and_counts_its_tries(conn: Connection) -> None:
    add(conn, 1, a_task())
    tries = []
    for now_ms in (NOW, NOW + 500, NOW + 1500):
        ((lease, task),) = claim(conn, now_ms=now_ms)
        tries.append(task.attempts)
        tasks.retry(conn, lease, at_ms=now_ms + 500, error=f"no luck at {now_ms}")
        assert claim(conn, now_ms=now_ms + 499) == []

    assert tries == [1, 2, 3]
    assert states(conn) == [("a", "pending", f"no luck at {NOW + 1500}", None)]


def test_a_try_that_was_cut_off_counts(conn: Connection) -> None:
    add(conn, 1, a_task())
    claim(conn, ONE)

    ((_, task),) = claim(conn, TWO, now_ms=NOW + LENGTH_MS)

    assert task.attempts == 2


def test_a_task_that_is_parked_stays_in_sight_and_is_not_taken(conn: Connection) -> None:
    add(conn, 1, a_task())
    ((lease, _),) = claim(conn)

    tasks.park(conn, lease, now_ms=NOW + 7, error="gave up")

    assert states(conn) == [("a", "parked", "gave up", NOW + 7)]
    assert tasks.counts(conn) == {"parked": 1}
    assert claim(conn, now_ms=NOW * 2) == []


@pytest.mark.parametrize("end", ["finish", "retry", "park"])
def test_a_holder_that_was_taken_over_can_not_settle_the_task(conn: Connection, end: str) -> None:
    add(conn, 1, a_task())
    ((old, _),) = claim(conn, ONE)
    ((new, _),) = claim(conn, TWO, now_ms=NOW + LENGTH_MS)
    settle: dict[str, Callable[[], None]] = {
        "finish": lambda: tasks.finish(conn, old, now_ms=NOW),
        "retry": lambda: tasks.retry(conn, old, at_ms=NOW, error=""),
        "park": lambda: tasks.park(conn, old, now_ms=NOW, error=""),
    }

    with pytest.raises(LeaseLost):
        settle[end]()

    assert states(conn) == [("a", "pending", None, None)]
    tasks.finish(conn, new, now_ms=NOW)


# -- what is left


def test_what_is_not_done_is_counted(conn: Connection) -> None:
    assert tasks.counts(conn) == {}
    for place in range(4):
        add(conn, place, a_task(str(place)))
    held = claim(conn, limit=2)
    tasks.finish(conn, held[0][0], now_ms=NOW)
    tasks.park(conn, held[1][0], now_ms=NOW, error="no use")

    assert tasks.counts(conn) == {"pending": 2, "parked": 1}


def test_finished_tasks_are_swept_in_slices_and_nothing_else_is(conn: Connection) -> None:
    for place in range(8):
        add(conn, place, a_task(str(place)))
    held = claim(conn, limit=6)
    for lease, _ in held[:4]:
        tasks.finish(conn, lease, now_ms=NOW)
    tasks.finish(conn, held[4][0], now_ms=NOW + 10)
    tasks.park(conn, held[5][0], now_ms=NOW, error="no use")

    assert [tasks.sweep(conn, before_ms=NOW + 10, limit=3) for _ in range(3)] == [3, 1, 0]

    assert [row[:2] for row in states(conn)] == [("4", "done"), ("5", "parked"), ("6", "pending"), ("7", "pending")]
