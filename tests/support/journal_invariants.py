"""Whether a journal keeps what it promises, whatever has happened to it: every row follows from the tapes."""

from palyra.core.events import RunAccepted, RunStarted
from palyra.core.ids import RunId, SessionId
from palyra.core.model.prompt import Message
from palyra.core.projection.session_rows import SessionRows
from palyra.core.projection.transcript import message_of_event
from palyra.core.run.machine import begin, evolve
from palyra.core.run.state import TERMINAL, RunState, RunStatus
from palyra.core.session_events import SessionEvent
from palyra.journal import tape
from palyra.journal.engines.base import Connection
from palyra.journal.projection import ledger_check
from palyra.journal.projection.replay_check import check_session
from palyra.journal.proof.journal_proof import entries_of, verify
from palyra.journal.stores import messages


def check_books(conn: Connection) -> None:
    """Raise unless the tapes hold, and every row is what they add up to."""
    report = verify(conn)
    assert report.ok, report.problems
    for session_id, active, counted in conn.fetch("SELECT session_id, active_run_id, message_count FROM sessions"):
        states, said = _fold(conn, session_id)
        kept = messages.following(conn, session_id, after_seq=0, limit=100_000)
        assert [(item.tape_seq, item.message) for item in kept] == said, "the conversation is not what the tape says"
        assert len(kept) == counted, "the messages of a session are counted wrongly"
        open_runs = [state.run_id for state in states.values() if state.started and state.status not in TERMINAL]
        assert open_runs == ([active] if active is not None else []), "a session has one active run, or none"
        for state in states.values():
            _check_run(conn, state)
        differences = list(check_session(conn, session_id))
        assert not differences, differences
        rows = SessionRows(session_id).fold_all(entry for entry, _, _ in entries_of(conn, session_id))
        assert not list(ledger_check.wrong_runs(conn, rows, complete=True)), "a turn is missing from the ledger"
    assert not ledger_check.orphaned_turns(conn), "the ledger has turns of runs that never were"
    assert not list(ledger_check.wrong_accounts(conn)), "an account is not the sum of its turns"


def _fold(conn: Connection, session_id: SessionId) -> tuple[dict[RunId, RunState], list[tuple[int, Message]]]:
    """Return what a session's tape adds up to: where each run stands, and what was said, each with its place."""
    states: dict[RunId, RunState] = {}
    accepted: dict[RunId, RunAccepted] = {}
    said: list[tuple[int, Message]] = []
    for (run_id,) in conn.fetch("SELECT DISTINCT run_id FROM tape WHERE session_id = :s", {"s": session_id}):
        for entry in tape.of_run(conn, run_id) if run_id is not None else ():
            event = entry.event
            assert not isinstance(event, SessionEvent)
            if isinstance(event, RunAccepted):
                states[run_id], accepted[run_id] = begin(run_id, session_id, event), event
            else:
                states[run_id] = evolve(states[run_id], event)
            assert entry.run_seq == states[run_id].run_seq, "a run's entries have a gap"
            # An input counts from the moment its run starts.
            spoken = accepted[run_id] if isinstance(event, RunStarted) else event
            message = None if isinstance(event, RunAccepted) else message_of_event(states[run_id], spoken)
            said += [(entry.tape_seq, message)] if message is not None else []
    return states, sorted(said, key=lambda item: item[0])


def _check_run(conn: Connection, state: RunState) -> None:
    row = conn.fetch_one(
        "SELECT status, run_seq, turns, tool_calls, cancel_requested, limit_reached, ready, ended_ms IS NOT NULL"
        " FROM runs WHERE run_id = :run_id",
        {"run_id": state.run_id},
    )
    assert row is not None
    ended = state.status in TERMINAL
    ready = state.started and not ended and state.status is not RunStatus.WAITING
    limit = state.limit.value if state.limit is not None else None
    cancelled = int(state.cancel is not None)
    follows = (state.status.value, state.run_seq, state.turns, state.executed, cancelled, limit, int(ready), ended)
    assert row == follows, "a run's row does not match its tape"
