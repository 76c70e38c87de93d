"""A run from its tape: all that was recorded of it, in order, taken into its state."""

from collections.abc import Iterable

from palyra.core.errors import Broken
from palyra.core.events import Entry, RunAccepted, SessionEvent
from palyra.core.ids import RunId
from palyra.core.machine import begin, evolve
from palyra.core.run import RunState
from palyra.journal import tape
from palyra.journal.engine import Connection


class TapeUnreadable(Broken):
    """The tape of the run does not begin with its acceptance."""


def replay(conn: Connection, run_id: RunId) -> RunState:
    """Return the state of a run: all that is on its tape, in order."""
    entries = tape.of_run(conn, run_id)
    accepted = entries[0].event if entries else None
    if not isinstance(accepted, RunAccepted):
        raise TapeUnreadable(f"The tape of run {run_id} does not begin with its acceptance.")
    return fold(begin(run_id, entries[0].session_id, accepted), entries[1:])


def fold(state: RunState, entries: Iterable[Entry]) -> RunState:
    """Take stored entries of the run into the state."""
    for entry in entries:
        event = entry.event
        assert not isinstance(event, SessionEvent)
        state = evolve(state, event)
    return state
