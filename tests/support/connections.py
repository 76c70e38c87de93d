"""Connections without sockets, and a budget for those that have one."""

from dataclasses import dataclass

from palyra.gateway.connections import ConnectionBudget, ConnectionLimits, ConnectionSlot
from tests.support.clock import FakeClock


@dataclass(eq=False)
class Peer:
    """The server's side of a connection, which does what a test says."""

    busy: bool = False
    late: bool = False
    left: int = 0
    aborted: bool = False

    def overdue(self, now: float, seconds: float) -> bool:
        return self.late

    def leave(self) -> None:
        self.left += 1

    def abort(self) -> None:
        self.aborted = True


def a_budget(connections: int = 1_000, seconds: float = 10, *, clock: FakeClock | None = None) -> ConnectionBudget:
    """Return a budget in which time stands still unless a clock is given."""
    return ConnectionBudget(ConnectionLimits(connections, seconds), clock=clock or FakeClock())


def a_slot() -> ConnectionSlot:
    """Return a share of a budget that has room."""
    return a_budget().admit("127.0.0.1", Peer())
