"""What must hold of a journal, whatever happened to the daemon that wrote it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from palyra.core.ids import SessionId
from palyra.core.run.record import RunRecord
from palyra.daemon.parts.journal_setup import OWNER
from palyra.journal import tape
from palyra.journal.engines.base import Connection
from palyra.journal.stores import runs
from palyra.runs.engine.steps.tools import MAX_ATTEMPTS
from tests.support.daemon import FINAL, Daemon, Line, line_of


@dataclass(frozen=True, slots=True)
class Kept:
    """What a journal holds: its runs in the order in which they were accepted, and its tapes by session."""

    runs: tuple[RunRecord, ...]
    tapes: dict[str, list[Line]]

    def tape_of(self, run: RunRecord) -> list[Line]:
        """Return the entries of one run."""
        return [line for line in self.tapes[run.session_id] if line.run_id == run.run_id]


def prove(daemon: Daemon) -> Kept:
    """Check a journal from end to end, without asking the daemon, and return what it holds."""
    report = daemon.verify()
    assert report.ok, report.problems
    with daemon.journal() as conn:
        found = runs.page(conn, OWNER, session_id=None, before=None, limit=10_000, now_ms=2**53)
        kept = Kept(
            tuple(reversed(found)),
            {row[0]: read_tape(conn, SessionId(row[0])) for row in conn.fetch("SELECT session_id FROM heads")},
        )
    for lines in kept.tapes.values():
        assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    for run in kept.runs:
        lines = kept.tape_of(run)
        assert [line.run_seq for line in lines] == list(range(1, len(lines) + 1))
        check_end(run, lines)
        check_calls(lines)
    return kept


def read_tape(conn: Connection, session_id: SessionId) -> list[Line]:
    """Return a whole tape as it is stored."""
    lines: list[Line] = []
    while page := tape.page(conn, session_id, after_seq=len(lines)):
        lines += [line_of(entry.to_json()) for entry in page]
    return lines


def check_end(run: RunRecord, lines: Sequence[Line]) -> None:
    """A run that has ended has one final entry, its last; one that has not has none."""
    finals = [line for line in lines if line.kind in FINAL]
    assert finals == (list(lines[-1:]) if run.ended_at is not None else [])


def check_calls(lines: Sequence[Line]) -> None:
    """No call starts again unless it was interrupted in between, nor too often, nor once it has a result."""
    attempts: Counter[str] = Counter()
    running: set[str] = set()
    settled: set[str] = set()
    for line in lines:
        event = line.event
        match line.kind:
            case "run_resumed":
                running.clear()
            case "tool_started":
                call_id = event["call_id"]
                assert call_id not in running | settled
                attempts[call_id] += 1
                assert event.get("attempt", 1) == attempts[call_id] <= MAX_ATTEMPTS
                running.add(call_id)
            case "tool_finished" | "child_ended":
                call_id = event["call_id"]
                assert call_id not in settled
                # All tools of these tests may be repeated, so none is given up before it was tried so often.
                assert event["outcome"] != "interrupted" or attempts[call_id] == MAX_ATTEMPTS
                running.discard(call_id)
                settled.add(call_id)
            case _:
                pass


def calls_of(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """Return the calls of all turns that came to their end: each tool, and how the call ended."""
    ended = {line.event["turn"] for line in lines if line.kind == "model_turn_ended"}
    outcomes = {
        line.event["call_id"]: line.event["outcome"] for line in lines if line.kind in ("tool_finished", "child_ended")
    }
    return [
        (line.event["tool"], outcomes[line.event["call_id"]])
        for line in lines
        if line.kind == "tool_proposed" and line.event["turn"] in ended
    ]


def answer_of(lines: Sequence[Line]) -> str:
    """Return what the model said in the last turn of a run."""
    turn = max(line.event["turn"] for line in lines if line.kind == "model_text")
    return "".join(line.event["text"] for line in lines if line.kind == "model_text" and line.event["turn"] == turn)
