"""The function with which a step records what it does."""

from collections.abc import Callable, Sequence
from typing import Protocol

from palyra.core.events import RunEvent
from palyra.core.run.state import RunState
from palyra.journal.engines.base import Connection

Guard = Callable[[Connection], Sequence[RunEvent]]
"""Reads rows in the unit of work that records a step's events, before they are recorded; nothing else can write to the
run meanwhile. It may change rows. What it returns is recorded first; if it raises, nothing is recorded."""


class Emit(Protocol):
    """Records events of the run and returns its new state.

    Returns when they are durable. Raises `RunChanged` if another writer changed the run and they no longer fit; then
    none of them is recorded. Several tasks of one step may call it; their events follow one another.
    """

    async def __call__(self, events: Sequence[RunEvent], /, *, also: Guard | None = None) -> RunState: ...

    def fence(self, conn: Connection) -> None:
        """Raise `LeaseLost` unless this worker still holds the run's lease, and lock the run until the unit ends.

        For units of a step that write no events: a worker that was frozen may not write when it wakes.
        """
        ...
