"""What follows from the tape: found when it is wrong, and made anew."""

from typing import TypeVar

import pytest

from palyra.core.projection.changes import RUN_COLUMNS
from palyra.journal import stats, table_dump
from palyra.journal.engines.base import Unit
from palyra.journal.offline import OfflineWriter, open_writer
from palyra.journal.projection import replay_check
from palyra.journal.projection.rebuild import RebuildReport, rebuild
from palyra.journal.projection.replay_check import JournalExamination
from palyra.journal.stores import search
from tests.contract.journal.builders import a_run_id, a_session_id
from tests.contract.journal.homes import KeptHome
from tests.support.builders import ANA, a_turn

T = TypeVar("T")

NOW_MS = 1_800_000_000_000

FIRST, SECOND, THIRD = a_session_id(1), a_session_id(2), a_session_id(3)
DERIVED = (
    "SELECT * FROM sessions",
    "SELECT * FROM messages",
    f"SELECT queue_position, {RUN_COLUMNS} FROM runs",
)


class Mortal:
    """Writes a few units, then dies."""

    def __init__(self, units: OfflineWriter, *, lives: int) -> None:
        self._units = units
        self._lives = lives

    def write(self, unit: Unit[T]) -> T:
        self._lives -= 1
        if self._lives < 0:
            raise KeyboardInterrupt
        return self._units.write(unit)


@pytest.fixture
def kept(fresh_home: KeptHome) -> KeptHome:
    return fresh_home.begin().live_a_little()


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_check, "SLICE", 2)
    monkeypatch.setattr(table_dump, "SLICE", 2)


def rebuilt(kept: KeptHome) -> RebuildReport:
    with open_writer(kept.home, kept.settings) as units:
        return rebuild(units, folder=kept.home.path, now_ms=NOW_MS)


def examined(kept: KeptHome) -> JournalExamination:
    return replay_check.examine(kept.home, kept.settings)


def contents(kept: KeptHome) -> dict[str, list[tuple[object, ...]]]:
    return {sql: sorted(map(tuple, kept.rows(sql)), key=str) for sql in DERIVED}


def test_a_journal_that_is_right_is_left_alone(kept: KeptHome) -> None:
    before = contents(kept)

    done = rebuilt(kept)

    assert (done.sessions, done.differed, done.problems) == (3, 0, [])
    assert contents(kept) == before
    assert examined(kept).ok


@pytest.mark.parametrize(
    ("harm", "what", "differed"),
    [
        ("DELETE FROM messages", "message", RebuildReport(sessions=3, conversations=3, search_index=9)),
        ("UPDATE messages SET text = 'No.' WHERE tape_seq = 4", "message", RebuildReport(sessions=3, conversations=3)),
        (
            "INSERT INTO messages (session_id, tape_seq, run_id, principal, role, text, calls, tokens, labels, at_ms)"
            f" VALUES ('{FIRST}', 1, 'x', 'user:ana', 'user', 'Hi', '[]', 1, '', 1)",
            "message",
            RebuildReport(sessions=3, conversations=1),
        ),
        ("UPDATE sessions SET message_count = 0", "counts", RebuildReport(sessions=3, counts=3)),
        ("UPDATE sessions SET reset_count = 9, reset_seq = 1", "counts", RebuildReport(sessions=3, counts=3)),
        ("UPDATE sessions SET active_run_id = NULL", "counts", RebuildReport(sessions=3, counts=1)),
        ("UPDATE sessions SET title = 'x'", "title", RebuildReport(sessions=3, counts=3)),
        ("UPDATE sessions SET agent_id = NULL", "agent_id", RebuildReport(sessions=3, counts=3)),
        ("UPDATE sessions SET key = session_id", "key", RebuildReport(sessions=3, counts=3)),
        ("UPDATE sessions SET label = session_id", "label", RebuildReport(sessions=3, counts=3)),
        ("UPDATE sessions SET archived_ms = 7", "archived_ms", RebuildReport(sessions=3, counts=3)),
        ("UPDATE sessions SET principal = 'user:ben'", "principal", RebuildReport(sessions=3, counts=3)),
        ("UPDATE sessions SET created_ms = 7", "created_ms", RebuildReport(sessions=3, counts=3)),
        (
            f"UPDATE sessions SET parent_session_id = '{FIRST}' WHERE session_id = '{SECOND}'",
            "parent_session_id",
            RebuildReport(sessions=3, counts=1),
        ),
        ("UPDATE runs SET status = 'failed', ended_ms = 3", "row of run", RebuildReport(sessions=3, runs=6)),
        (
            f"UPDATE runs SET last_seq = 1 WHERE run_id = '{a_run_id(1)}'",
            "row of run",
            RebuildReport(sessions=3, runs=1),
        ),
        (f"DELETE FROM runs WHERE session_id = '{FIRST}'", "row of run", RebuildReport(sessions=3, runs=3)),
        (
            f"UPDATE runs SET run_id = 'x' WHERE run_id = '{a_run_id(3)}'",
            "row of run",
            RebuildReport(sessions=3, runs=2),
        ),
        ("DELETE FROM message_words", "search index", RebuildReport(sessions=3)),
        ("INSERT INTO message_words (session_id, tape_seq, principal, text) VALUES ('x', 1, 'y', 'z')", "search", None),
    ],
)
def test_what_is_wrong_is_named_and_set_right(
    kept: KeptHome, harm: str, what: str, differed: RebuildReport | None
) -> None:
    before = contents(kept)
    kept.change(harm)

    found = examined(kept)
    done = rebuilt(kept)

    assert found.report.ok
    assert not found.ok
    assert any(what in problem.what for problem in found.rows)
    if differed is not None:
        assert (done.conversations, done.counts, done.runs) == (differed.conversations, differed.counts, differed.runs)
    assert done.differed > 0
    assert examined(kept).ok
    assert contents(kept) == before
    assert rebuilt(kept).differed == 0


def test_keys_and_labels_that_were_exchanged_come_back(kept: KeptHome) -> None:
    for place in (11, 12, 13):
        kept.session(place, key=f"key {place}", label=f"label {place}")
    before = contents(kept)
    assert examined(kept).ok
    for old, new in (("11", "x"), ("12", "11"), ("x", "12")):
        kept.change(f"UPDATE sessions SET key = 'key {new}', label = 'label {new}' WHERE key = 'key {old}'")
    kept.change("UPDATE sessions SET archived_ms = 7 WHERE key = 'key 13'")

    assert {problem.session_id for problem in examined(kept).rows} == {a_session_id(place) for place in (11, 12, 13)}
    assert rebuilt(kept).counts == 3

    assert contents(kept) == before
    assert examined(kept).ok


def test_messages_are_found_again_after_a_rebuild(kept: KeptHome) -> None:
    kept.change("DELETE FROM message_words")
    with kept.reading() as conn:
        assert search.find(conn, ANA, "hello", limit=9) == []

    rebuilt(kept)

    with kept.reading() as conn:
        assert len(search.find(conn, ANA, "hello", limit=9)) == 5


def test_a_queued_run_keeps_its_place_and_a_held_one_its_lease(kept: KeptHome) -> None:
    kept.change(f"UPDATE runs SET queue_position = -7, turns = 99 WHERE run_id = '{a_run_id(5)}'")
    kept.change(f"UPDATE runs SET lease_owner = 'somebody', turns = 99 WHERE run_id = '{a_run_id(4)}'")

    assert rebuilt(kept).runs == 2

    rows = kept.rows(
        f"SELECT run_id, queue_position, turns, lease_owner FROM runs WHERE session_id = '{THIRD}' ORDER BY run_id"
    )
    assert [tuple(row) for row in rows if row[0] == a_run_id(5)] == [(a_run_id(5), -7, 0, None)]
    assert [row[3] for row in rows if row[0] == a_run_id(4)] == ["somebody"]


def test_a_run_goes_on_after_a_rebuild(kept: KeptHome) -> None:
    kept.change("DELETE FROM runs")
    rebuilt(kept)

    kept.run(7, FIRST, a_turn(1))

    assert kept.verify().ok
    assert examined(kept).ok


def test_a_tape_that_can_not_be_replayed_keeps_its_rows(kept: KeptHome) -> None:
    kept.change(f"DELETE FROM tape WHERE session_id = '{SECOND}' AND tape_seq = 4")
    kept.change(f"UPDATE messages SET text = 'Kept.' WHERE session_id = '{SECOND}'")
    before = contents(kept)

    (problem,) = rebuilt(kept).problems

    assert problem.session_id == SECOND
    assert contents(kept) == before
    assert not examined(kept).report.ok
    assert examined(kept).rows == ()


def test_a_rebuild_that_is_broken_off_is_finished_by_the_next(kept: KeptHome) -> None:
    before = contents(kept)
    kept.change("DELETE FROM messages")
    kept.change("DELETE FROM message_words")

    with open_writer(kept.home, kept.settings) as units, pytest.raises(KeyboardInterrupt):
        rebuild(Mortal(units, lives=3), folder=kept.home.path, now_ms=NOW_MS)
    assert not examined(kept).ok

    rebuilt(kept)

    assert examined(kept).ok
    assert contents(kept) == before


def test_a_session_without_its_row_is_named(kept: KeptHome) -> None:
    kept.change(f"DELETE FROM sessions WHERE session_id = '{SECOND}'")

    assert ("the session has a tape but no row", SECOND) in [
        (problem.what, problem.session_id) for problem in examined(kept).rows
    ]


def test_the_statistics_count_everything(kept: KeptHome) -> None:
    with kept.reading() as conn:
        found = stats.gather(conn, kept.home)

    assert found.engine == ("sqlite" if kept.url is None else "postgres")
    assert (found.sessions, found.archived, found.anchors, found.rotated) == (3, 0, 2, 0)
    assert found.entries == kept.verify().entries
    assert sum(found.runs.values()) == 6
    assert found.runs["done"] == 3
    assert found.messages == len(kept.rows("SELECT 1 FROM messages"))
    assert found.bytes > 10_000
    assert found.oldest is not None
