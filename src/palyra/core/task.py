"""Work to be done later: a row with a kind, a payload and a time."""

from enum import StrEnum

from msgspec import Struct

from palyra.core.ids import TaskId
from palyra.core.tool import JsonObject


class TaskStatus(StrEnum):
    """Where a task stands."""

    PENDING = "pending"
    DONE = "done"
    PARKED = "parked"
    """It failed as often as it may; a person must look at it."""


class NewTask(Struct, frozen=True, kw_only=True):
    """A task to be written down. One of the same kind and key that is still pending stands for both."""

    kind: str
    key: str
    payload: JsonObject
    not_before_ms: int = 0
    max_attempts: int = 8


class Task(Struct, frozen=True, kw_only=True):
    """A task that somebody has leased."""

    task_id: TaskId
    kind: str
    payload: JsonObject
    attempts: int
    """How often it has been tried, this time included."""
    max_attempts: int
