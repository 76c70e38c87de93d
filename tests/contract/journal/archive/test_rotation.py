"""Rotation: tapes of long archived sessions move to files, and the whole stays provable at every moment."""

import asyncio
from datetime import timedelta

import msgspec
import pytest

from palyra.background.jobs import retention as job
from palyra.background.queue import JobContext
from palyra.core.artifact import Artifact, FileCheckpoint
from palyra.journal import stats
from palyra.journal.archive import backup, rotation
from palyra.journal.atomic_file import atomic_file
from palyra.journal.content import artifacts, file_checkpoints
from palyra.journal.content.blobs import pack
from palyra.journal.engines.base import Connection
from palyra.journal.engines.postgres_engine import PostgresEngine
from palyra.journal.engines.sqlite_engine import SqliteEngine
from palyra.journal.projection import replay_check
from palyra.journal.projection.replay_check import JournalExamination
from palyra.journal.proof import export, export_proof
from palyra.journal.proof.export import SessionRotated
from palyra.journal.proof.tape_proof import ProofProblem
from palyra.journal.stores import search, sessions
from palyra.journal.stores.rotated_tapes import RotatedTape
from tests.contract.journal.builders import a_session_id
from tests.contract.journal.content.test_blobs import a_checkpoint, an_artifact
from tests.contract.journal.homes import DONE, KeptHome
from tests.support.builders import ANA, AT, a_turn
from tests.support.clock import FakeClock

OLD, YOUNG, CHILD = a_session_id(11), a_session_id(12), a_session_id(13)
LATER = timedelta(days=40)


@pytest.fixture
def kept(fresh_home: KeptHome) -> KeptHome:
    """Three living sessions, one that was archived, a child of it, and one that was archived just now."""
    kept = fresh_home.begin().live_a_little()
    for place, session_id, at in ((11, OLD, AT), (12, YOUNG, AT + LATER)):
        assert kept.session(place) == session_id
        kept.run(100 + place, session_id, *DONE)
        kept.archive(session_id, at=at)
    kept.session(13, parent=OLD)
    kept.run(113, CHILD, a_turn(1))
    kept.anchor()
    return kept


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "SLICE", 3)


def rotate(kept: KeptHome, *, days: int = 30) -> None:
    """Have the job run once, as the daemon would."""
    clock = FakeClock()
    clock.advance(LATER)

    async def work() -> None:
        engine = SqliteEngine(kept.home.journal) if kept.url is None else PostgresEngine(kept.url)
        await job.jobs(kept.home.path, archived_days=days)[job.KIND]({}, JobContext(engine, clock, kept.ids))
        await engine.close()

    asyncio.run(work())


def archived(kept: KeptHome) -> RotatedTape:
    with kept.reading() as conn:
        return rotation.write_archive(conn, OLD, folder=kept.home.path, at=AT + LATER)


def examined(kept: KeptHome) -> JournalExamination:
    return replay_check.examine(kept.home, kept.settings)


def left(kept: KeptHome, session_id: str) -> list[int]:
    tables = ("sessions", "tape", "messages", "message_words", "runs")
    return [len(kept.rows(f"SELECT 1 FROM {table} WHERE session_id = '{session_id}'")) for table in tables]


def test_a_tape_moves_to_a_file_and_the_journal_still_holds(kept: KeptHome) -> None:
    before, young = kept.verify(), left(kept, YOUNG)

    rotate(kept)

    after = examined(kept)
    assert after.ok
    assert after.report.rotated == 2
    assert after.report.anchors == before.anchors
    assert left(kept, OLD) == left(kept, CHILD) == [0, 0, 0, 0, 0]
    assert left(kept, YOUNG) == young
    for session_id, head_seq, file in kept.rows("SELECT session_id, tape_seq, file FROM rotated"):
        proof = export_proof.verify_file(kept.home.path / file)
        assert proof.report.ok
        assert (proof.report.entries, proof.report.after_anchor) == (head_seq, 0)
        assert file == f"archive/2026/{session_id}.ndjson"
        assert (kept.home.path / file).stat().st_mode & 0o777 == 0o600


def test_what_is_rotated_is_no_longer_shown_or_found(kept: KeptHome) -> None:
    def look(conn: Connection) -> tuple[object, list[str]]:
        return sessions.get(conn, OLD, ANA), [hit.session_id for hit in search.find(conn, ANA, "well", limit=99)]

    with kept.reading() as conn:
        assert OLD in look(conn)[1]

    rotate(kept)

    with kept.reading() as conn:
        session, found = look(conn)
    assert session is None
    assert found
    assert OLD not in found


def test_what_a_killed_export_left_is_removed_by_the_next(kept: KeptHome) -> None:
    left = kept.home.path / "archive" / f"{AT + LATER:%Y}" / f".{OLD}.ndjson.4711.new"
    left.parent.mkdir(parents=True)
    left.write_text("half")

    rotate(kept)

    assert [path.name for path in left.parent.glob(".*")] == []


def test_with_no_days_everything_is_kept(kept: KeptHome) -> None:
    before = kept.verify()

    rotate(kept, days=0)

    assert kept.verify() == before
    assert kept.rows("SELECT 1 FROM tasks WHERE kind = 'journal.retention'") == []


def test_the_next_rotation_is_planned_before_anything_else(kept: KeptHome) -> None:
    rotate(kept)

    assert len(kept.rows("SELECT 1 FROM tasks WHERE kind = 'journal.retention' AND status = 'pending'")) == 1


def test_a_session_that_is_not_anchored_or_not_at_rest_stays(kept: KeptHome) -> None:
    kept.archive(a_session_id(3))  # two of its runs are open
    kept.anchor()
    kept.archive(a_session_id(2))  # no anchor knows of it

    rotate(kept)

    assert {row[0] for row in kept.rows("SELECT session_id FROM rotated")} == {OLD, CHILD}


def test_a_session_that_was_taken_up_in_the_same_moment_stays(kept: KeptHome) -> None:
    record = archived(kept)
    kept.run(120, OLD, a_turn(1))

    assert not kept.write(lambda conn: rotation.detach_session(conn, OLD, record))

    assert kept.verify().ok
    assert left(kept, OLD)[0] == 1


def test_a_removal_that_is_broken_off_holds_and_is_finished_later(kept: KeptHome) -> None:
    record = archived(kept)
    assert kept.write(lambda conn: rotation.detach_session(conn, OLD, record))
    with kept.reading() as conn:
        words = rotation.index_rows_of(conn, OLD)
    steps = 0
    while kept.write(lambda conn: rotation.remove_slice(conn, OLD, words)):
        steps += 1
        assert kept.verify().ok, f"after {steps} slices"
        if steps == 7:
            break
    assert left(kept, OLD)[1] > 0
    assert examined(kept).ok

    rotate(kept)

    assert left(kept, OLD) == [0, 0, 0, 0, 0]
    assert examined(kept).ok


def test_a_tape_that_does_not_hold_stays_and_the_others_go(kept: KeptHome, caplog: pytest.LogCaptureFixture) -> None:
    kept.archive(a_session_id(2))
    kept.anchor()
    kept.change(f"UPDATE tape SET content = '{{}}' WHERE session_id = '{OLD}' AND tape_seq = 2")

    rotate(kept)

    assert {row[0] for row in kept.rows("SELECT session_id FROM rotated")} == {a_session_id(2)}
    assert left(kept, OLD)[0] == 1
    assert "is not rotated" in caplog.text


# -- what was changed afterwards


def problems(kept: KeptHome) -> list[ProofProblem]:
    found = examined(kept)
    return [*found.report.problems, *found.archive]


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        ("UPDATE heads SET hash = 'f' WHERE session_id = '{}'", "the head differs"),
        ("DELETE FROM heads WHERE session_id = '{}'", "the head differs"),
        ("UPDATE rotated SET hash = 'f' WHERE session_id = '{}'", "the head differs"),
        ("DELETE FROM rotated WHERE session_id = '{}'", "the whole tape of this session was removed"),
        (
            "UPDATE rotated SET tape_seq = 3, hash = 'f'; UPDATE heads SET tape_seq = 3, hash = 'f'",
            "was cut off before it was moved to the archive",
        ),
    ],
)
def test_a_tombstone_that_was_changed_is_named(kept: KeptHome, harm: str, what: str) -> None:
    rotate(kept)

    for statement in harm.format(OLD).split(";"):
        kept.change(statement)

    assert any(problem.session_id == OLD and what in problem.what for problem in kept.verify().problems)


def test_an_archive_that_was_changed_or_lost_is_named_by_the_deep_check(kept: KeptHome) -> None:
    rotate(kept)
    old, child = (kept.home.path / f"archive/2026/{name}.ndjson" for name in (OLD, CHILD))
    data = old.read_bytes()
    old.write_bytes(data.replace(b"Hello", b"Hullo"))
    child.unlink()

    assert kept.verify().ok
    assert sorted((problem.session_id or "", problem.what.split(", ")[1]) for problem in problems(kept)) == [
        (OLD, "and this file was changed"),
        (CHILD, "which cannot be read"),
    ]


# -- with the rest of the house


def test_an_export_names_what_was_rotated_and_holds(kept: KeptHome) -> None:
    rotate(kept)
    path = kept.home.path / "all.ndjson"

    with kept.reading() as conn, atomic_file(path) as file:
        assert export.write(conn, file.write, made_at=AT).rotated == 2
    assert export_proof.verify_file(path).report.ok
    assert export_proof.verify_file(path).report.rotated == 2
    with kept.reading() as conn, pytest.raises(SessionRotated, match="archive/2026"):
        export.write(conn, lambda data: None, made_at=AT, session_id=OLD)


def test_a_backup_takes_the_archive_along(kept: KeptHome) -> None:
    rotate(kept)
    target = kept.home.path / "copy"

    manifest = backup.create(kept.home, kept.settings, target=target, made_at=AT)

    assert f"archive/2026/{OLD}.ndjson" in manifest.files
    assert backup.check(target).ok


def test_the_statistics_count_what_was_rotated(kept: KeptHome) -> None:
    rotate(kept)

    with kept.reading() as conn:
        assert stats.gather(conn, kept.home).rotated == 2


def test_what_was_kept_for_a_session_goes_with_it(kept: KeptHome) -> None:
    for place, session_id in enumerate((OLD, YOUNG), 1):
        artifact = msgspec.structs.replace(an_artifact(b"long", place), session_id=session_id)
        checkpoint = msgspec.structs.replace(a_checkpoint(place=place), session_id=session_id)

        def unit(conn: Connection, artifact: Artifact = artifact, checkpoint: FileCheckpoint = checkpoint) -> None:
            artifacts.add(conn, artifact, pack(b"long"))
            file_checkpoints.add(conn, checkpoint, pack(b"old"))

        kept.write(unit)

    rotate(kept)

    for table in ("artifacts", "checkpoints"):
        assert kept.rows(f"SELECT session_id FROM {table}") == [(YOUNG,)]
