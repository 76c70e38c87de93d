"""Rebuilds the state of a run from its tape: folds all recorded events, in order."""

from collections.abc import Iterable

import msgspec

from palyra.core.errors import Internal
from palyra.core.events import Entry, RunAccepted
from palyra.core.ids import RunId
from palyra.core.run.machine import begin, evolve
from palyra.core.run.state import RunState
from palyra.core.session_events import SessionEvent
from palyra.journal import tape
from palyra.journal.engines.base import Connection


class TapeEntryInvalid(Internal):
    """An entry of the run is damaged or of an unknown kind. `palyra journal verify` checks whether it was altered."""


def replay(conn: Connection, run_id: RunId) -> RunState:
    """Return the state of a run, folded from its tape. Raise `TapeEntryInvalid` if the tape cannot be read."""
    try:
        entries = tape.of_run(conn, run_id)
    except UnicodeDecodeError as error:
        raise TapeEntryInvalid(f"An entry of run {run_id} is not valid text.") from error
    if not entries:
        raise TapeEntryInvalid(f"Run {run_id} has no entries.")
    first = entries[0]
    try:
        accepted = first.event
    except msgspec.DecodeError as error:
        raise _unreadable(first, error) from error
    if not isinstance(accepted, RunAccepted):
        raise TapeEntryInvalid(f"The entries of run {run_id} do not begin with its acceptance.")
    return fold(begin(run_id, first.session_id, accepted), entries[1:])


def fold(state: RunState, entries: Iterable[Entry]) -> RunState:
    """Fold stored entries of the run into the state."""
    for entry in entries:
        try:
            event = entry.event
            assert not isinstance(event, SessionEvent), "an event of a session does not belong to a run"
            state = evolve(state, event)
        except Exception as error:
            # Whatever damage the entry has, it must not end more than this run.
            raise _unreadable(entry, error) from error
    return state


def _unreadable(entry: Entry, error: Exception) -> TapeEntryInvalid:
    return TapeEntryInvalid(
        f"Entry {entry.tape_seq} of session {entry.session_id} ({entry.kind[:60]!r}) cannot be read:"
        f" {str(error)[:200]}. It is damaged, or a newer version of Palyra wrote it. Other sessions are not affected."
    )
