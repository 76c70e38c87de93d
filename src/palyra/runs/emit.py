"""What a step is given to record what it does."""

from collections.abc import Callable, Sequence
from typing import Protocol

from palyra.core.events import RunEvent
from palyra.core.run import RunState
from palyra.journal.engine import Connection

Guard = Callable[[Connection], Sequence[RunEvent]]
"""Looks at the rows in the unit that records the events of a step, before they are: while it looks nobody else can
write to the run. It may change rows. What it returns is recorded first; if it raises, nothing is recorded."""


class Emit(Protocol):
    """Records events of the run and returns where it stands then.

    Returns when they are durable. Raises `Overtaken` if somebody else wrote to the run so that they no longer fit; then
    none of them is recorded. May be called by several tasks of one step; their events follow one another.
    """

    async def __call__(self, events: Sequence[RunEvent], /, *, also: Guard | None = None) -> RunState: ...

    def fence(self, conn: Connection) -> None:
        """Raise `LeaseLost` unless the run is still this worker's, and hold it until the unit ends.

        For units of a step that write no events: one that was frozen may not write when it wakes.
        """
        ...
