"""Tasks as rows: deferred work, leased, retried, and parked where a person can see it."""

import msgspec

from palyra.core.ids import TaskId
from palyra.core.task import NewTask, Task, TaskStatus
from palyra.core.tool import JsonObject
from palyra.journal.engines.base import Connection, WorkAvailable
from palyra.journal.stores import leases
from palyra.journal.stores.leases import Lease

_encode = msgspec.json.Encoder()
_decode: msgspec.json.Decoder[JsonObject] = msgspec.json.Decoder(JsonObject)


def add(conn: Connection, task_id: TaskId, task: NewTask, *, now_ms: int) -> bool:
    """Add a task; False if one of its kind and key is already pending."""
    row = conn.fetch_one(
        "INSERT INTO tasks (task_id, kind, key, payload, status, not_before_ms, max_attempts, created_ms)"
        " VALUES (:task_id, :kind, :key, :payload, 'pending', :not_before_ms, :max_attempts, :now_ms)"
        " ON CONFLICT DO NOTHING RETURNING task_id",
        {
            "task_id": task_id,
            "kind": task.kind,
            "key": task.key,
            "payload": _encode.encode(task.payload).decode(),
            "not_before_ms": task.not_before_ms,
            "max_attempts": task.max_attempts,
            "now_ms": now_ms,
        },
    )
    if row is not None and task.not_before_ms <= now_ms:
        conn.publish(WorkAvailable("tasks"))
    return row is not None


def plan(conn: Connection, task_id: TaskId, kind: str, *, now_ms: int, at_ms: int) -> None:
    """Schedule the next round of a task that repeats. One round waits at most, and of two times the earlier holds.

    A round that is running does not count: it is the one that plans the next.
    """
    waiting = conn.fetch_one(
        "SELECT task_id, not_before_ms FROM tasks WHERE kind = :kind AND status = 'pending' AND lease_owner IS NULL"
        " ORDER BY not_before_ms LIMIT 1",
        {"kind": kind},
    )
    if waiting is None:
        add(conn, task_id, NewTask(kind=kind, key=task_id, payload={}, not_before_ms=at_ms), now_ms=now_ms)
    elif waiting[1] > at_ms:
        conn.execute(
            "UPDATE tasks SET not_before_ms = :at_ms, created_ms = :now_ms WHERE task_id = :task_id",
            {"task_id": waiting[0], "at_ms": at_ms, "now_ms": now_ms},
        )


def claim(conn: Connection, *, owner: str, now_ms: int, limit: int) -> list[tuple[Lease, Task]]:
    """Take up to `limit` tasks that are due."""
    return [
        (lease, _count(conn, lease))
        for lease in leases.claim(conn, leases.TASKS, owner=owner, now_ms=now_ms, limit=limit)
    ]


def _count(conn: Connection, lease: Lease) -> Task:
    row = conn.fetch_one(
        "UPDATE tasks SET attempts = attempts + 1 WHERE task_id = :task_id"
        " RETURNING task_id, kind, payload, attempts, max_attempts",
        {"task_id": lease.item_id},
    )
    assert row is not None
    return Task(
        task_id=TaskId(row[0]), kind=row[1], payload=_decode.decode(row[2]), attempts=row[3], max_attempts=row[4]
    )


def finish(conn: Connection, lease: Lease, *, now_ms: int) -> None:
    """Mark the task as done."""
    _settle(conn, lease, status=TaskStatus.DONE, not_before_ms=0, ended_ms=now_ms, error=None)


def retry(conn: Connection, lease: Lease, *, at_ms: int, error: str) -> None:
    """Schedule the task for another attempt."""
    _settle(conn, lease, status=TaskStatus.PENDING, not_before_ms=at_ms, ended_ms=None, error=error)


def park(conn: Connection, lease: Lease, *, now_ms: int, error: str) -> None:
    """Park the task after its last attempt."""
    _settle(conn, lease, status=TaskStatus.PARKED, not_before_ms=0, ended_ms=now_ms, error=error)


def next_due_ms(conn: Connection) -> int | None:
    """Return when the next pending task can be claimed: a leased one when its lease has expired."""
    row = conn.fetch_one(
        "SELECT MIN(CASE WHEN lease_owner IS NULL THEN not_before_ms ELSE lease_until_ms END) FROM tasks"
        " WHERE status = 'pending'"
    )
    return row[0] if row else None


def hasten(conn: Connection, *, now_ms: int, longest_ms: int) -> None:
    """Correct the times of tasks that were set while the clock was ahead.

    A task that was added then waits from now on for as long as it was meant to. One that failed then is retried now:
    its delay would be longer than the maximum.
    """
    conn.execute(
        "UPDATE tasks SET not_before_ms = :now_ms + not_before_ms - created_ms, created_ms = :now_ms"
        " WHERE status = 'pending' AND attempts = 0 AND created_ms > :now_ms AND not_before_ms >= created_ms",
        {"now_ms": now_ms},
    )
    conn.execute(
        "UPDATE tasks SET not_before_ms = :now_ms WHERE status = 'pending' AND attempts > 0"
        " AND not_before_ms > :now_ms + :longest_ms",
        {"now_ms": now_ms, "longest_ms": longest_ms},
    )


def counts(conn: Connection) -> dict[str, int]:
    """Return how many tasks are not done, by status."""
    rows = conn.fetch("SELECT status, COUNT(*) FROM tasks WHERE status <> 'done' GROUP BY status")
    return {row[0]: row[1] for row in rows}


def sweep(conn: Connection, *, before_ms: int, limit: int) -> int:
    """Delete a slice of the tasks that were done before a time; return how many."""
    return conn.execute(
        "DELETE FROM tasks WHERE task_id IN (SELECT task_id FROM tasks WHERE status = 'done'"
        " AND ended_ms < :before_ms LIMIT :limit)",
        {"before_ms": before_ms, "limit": limit},
    )


def _settle(
    conn: Connection, lease: Lease, *, status: TaskStatus, not_before_ms: int, ended_ms: int | None, error: str | None
) -> None:
    leases.check(conn, leases.TASKS, lease)
    conn.execute(
        "UPDATE tasks SET status = :status, not_before_ms = :not_before_ms, ended_ms = :ended_ms, error = :error,"
        " lease_owner = NULL, lease_until_ms = 0 WHERE task_id = :task_id",
        {
            "task_id": lease.item_id,
            "status": status.value,
            "not_before_ms": not_before_ms,
            "ended_ms": ended_ms,
            "error": error,
        },
    )
