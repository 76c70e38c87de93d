"""Recorded tapes: what any release has written must be readable, and replay, for ever.

A tape is never edited. A release that stores something new adds one.
"""

from itertools import groupby
from pathlib import Path

import msgspec
import pytest

from palyra.core.events import Entry, RunAccepted, decode, encode
from palyra.core.ids import RunId, SessionId
from palyra.core.projection.changes import RUN_COLUMNS, SESSION_COLUMNS
from palyra.core.projection.session_rows import SessionRows
from palyra.core.run.machine import begin, evolve
from palyra.core.run.state import RunState, RunStatus
from palyra.core.session_events import SessionEvent
from palyra.core.upcast import TAGS as OLD_TAGS
from palyra.core.upcast import upcast
from tests.unit.core.test_events import TAGS

FOLDER = Path(__file__).parents[2] / "tapes"
TAPES = sorted(FOLDER.glob("*.jsonl"))
FIRST = FOLDER / "0001-first-release.jsonl"


class Line(msgspec.Struct, frozen=True):
    """An entry as clients see it, with the event as it is stored."""

    session_id: SessionId
    run_id: RunId | None
    tape_seq: int
    run_seq: int
    event: msgspec.Raw


def read(tape: Path) -> list[Line]:
    return [msgspec.json.decode(line, type=Line) for line in tape.read_bytes().splitlines()]


def contents(tape: Path) -> list[str]:
    return [bytes(line.event).decode() for line in read(tape)]


def today(content: str) -> str:
    """Return a stored event with its names of today."""
    return upcast(msgspec.json.decode(content)["kind"], content)[1]


def runs_of(tape: Path) -> list[list[Line]]:
    of_runs = sorted((line for line in read(tape) if line.run_id), key=lambda line: (str(line.run_id), line.run_seq))
    return [list(lines) for _, lines in groupby(of_runs, key=lambda line: line.run_id)]


def replay(lines: list[Line]) -> RunState:
    first, *rest = lines
    accepted = decode(bytes(first.event).decode())
    assert first.run_id
    assert isinstance(accepted, RunAccepted)
    state = begin(first.run_id, first.session_id, accepted)
    for line in rest:
        event = decode(bytes(line.event).decode())
        assert not isinstance(event, SessionEvent)
        state = evolve(state, event)
        assert state.run_seq == line.run_seq
    return state


@pytest.mark.parametrize("tape", TAPES, ids=lambda tape: tape.stem)
def test_every_line_decodes_and_is_written_again_as_an_equal_event(tape: Path) -> None:
    for content in contents(tape):
        event = decode(content)
        assert decode(encode(event)) == event


@pytest.mark.parametrize("tape", TAPES, ids=lambda tape: tape.stem)
def test_nothing_that_was_stored_is_lost_by_reading_it(tape: Path) -> None:
    for content in contents(tape):
        stored, written = (msgspec.json.decode(text) for text in (today(content), encode(decode(content))))
        assert holds(written, stored)


def holds(written: object, stored: object) -> bool:
    """Say whether all that is in the one is in the other, at any depth."""
    if isinstance(written, dict) and isinstance(stored, dict):
        return all(name in written and holds(written[name], stored[name]) for name in stored)
    return written == stored


@pytest.mark.parametrize("tape", TAPES, ids=lambda tape: tape.stem)
def test_every_run_replays_to_its_end(tape: Path) -> None:
    for lines in runs_of(tape):
        assert replay(lines).status in {RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED}


@pytest.mark.parametrize("tape", TAPES, ids=lambda tape: tape.stem)
def test_every_tape_folds_to_rows_that_know_their_session(tape: Path) -> None:
    lines = read(tape)
    for session_id in {line.session_id for line in lines}:
        entries = [
            Entry(session_id, line.tape_seq, line.run_id, line.run_seq, "", 0, bytes(line.event).decode())
            for line in lines
            if line.session_id == session_id
        ]
        rows = SessionRows(session_id).fold_all(entries)
        assert set(rows.session) == set(SESSION_COLUMNS.split(", "))
        assert set(rows.runs) == {entry.run_id for entry in entries if entry.run_id}
        assert all(set(row) == set(RUN_COLUMNS.split(", ")) for row in rows.runs.values())


@pytest.mark.parametrize("tape", TAPES, ids=lambda tape: tape.stem)
def test_a_tape_is_counted_without_gaps(tape: Path) -> None:
    lines = read(tape)
    assert [line.tape_seq for line in lines] == list(range(1, len(lines) + 1))


def test_the_tapes_have_every_kind_of_event() -> None:
    kinds = {msgspec.json.decode(content)["kind"] for tape in TAPES for content in contents(tape)}
    assert kinds == set(TAGS.values()) | set(OLD_TAGS)


def test_the_runs_of_the_first_tape_ended_as_they_did_then() -> None:
    ended = [(state.status, state.turns, state.executed, state.limit) for state in map(replay, runs_of(FIRST))]
    assert ended == [
        (RunStatus.DONE, 3, 2, None),
        (RunStatus.DONE, 2, 1, "model_turns"),
        (RunStatus.FAILED, 0, 0, None),
        (RunStatus.CANCELLED, 0, 0, None),
    ]
