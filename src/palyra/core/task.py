"""Tasks: background work, stored as a row with a kind, a payload and a time."""

from enum import StrEnum

from msgspec import Struct

from palyra.core.ids import TaskId
from palyra.core.tool import JsonObject


class TaskStatus(StrEnum):
    """The status of a task."""

    PENDING = "pending"
    DONE = "done"
    PARKED = "parked"
    """It failed as often as allowed; a person must check it."""


class NewTask(Struct, frozen=True, kw_only=True):
    """A task to be stored. If one of the same kind and key is still pending, no second one is created."""

    kind: str
    key: str
    payload: JsonObject
    not_before_ms: int = 0
    max_attempts: int = 8


class Task(Struct, frozen=True, kw_only=True):
    """A leased task."""

    task_id: TaskId
    kind: str
    payload: JsonObject
    attempts: int
    """The number of attempts, including this one."""
    max_attempts: int
