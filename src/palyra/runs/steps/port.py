"""What a step is given to record what it does."""

from collections.abc import Sequence
from typing import Protocol

from palyra.core.events import RunEvent
from palyra.core.run import RunState


class Emit(Protocol):
    """Records events of the run and returns where it stands then.

    Returns when they are durable. Raises `Overtaken` if somebody else wrote to the run so that they no longer fit; then
    none of them is recorded. May be called by several tasks of one step; their events follow one another.
    """

    async def __call__(self, events: Sequence[RunEvent], /) -> RunState: ...
