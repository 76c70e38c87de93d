"""Backups and the way back: on either engine, from one to the other, and from an older schema."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from palyra.core.errors import FileExists
from palyra.home import DaemonRunning, Home
from palyra.journal import migrate
from palyra.journal.archive import backup
from palyra.journal.archive.backup import BackupInvalid, BackupManifest, BackupVersionUnsupported
from palyra.journal.archive.restore import BackupDamaged, HomeNotEmpty, RestoreReport, restore
from palyra.journal.engines.base import JournalError
from palyra.journal.offline import hold_home
from palyra.journal.projection import replay_check
from palyra.journal.proof.signing_key import JournalKeyMissing
from palyra.journal.snapshot import JournalNotFound
from palyra.journal.stores import meta
from palyra.settings import JournalSettings, Settings
from tests.contract.journal.builders import CountedIds, a_session_id
from tests.contract.journal.homes import JOURNAL, KeptHome
from tests.support.builders import AT, a_turn
from tests.support.postgres import drop_schema, new_schema

TABLES = ("sessions", "heads", "tape", "runs", "messages", "agents", "tokens", "tasks", "anchored")


@pytest.fixture
def kept(fresh_home: KeptHome) -> KeptHome:
    return fresh_home.begin().live_a_little()


@pytest.fixture
def another(
    kept: KeptHome, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KeptHome]:
    """Another home that is not there yet, on the same kind of engine; the settings in the environment lead to it."""
    url = new_schema(request.getfixturevalue("postgres_server")) if kept.url is not None else None
    if url is not None:
        monkeypatch.setenv("PALYRA_JOURNAL_DATABASE_URL", url)
    yield KeptHome(tmp_path / "another", database_url=url)
    if url is not None:
        drop_schema(url)


def create(kept: KeptHome, target: Path, *, with_token: bool = False) -> BackupManifest:
    return backup.create(kept.home, kept.settings, target=target, made_at=AT, with_token=with_token)


def bring_back(path: Path, kept: KeptHome, *, replace: bool = False) -> RestoreReport:
    kept.let_go()
    return restore(path, kept.home, replace=replace, ids=CountedIds(5_000_000), at=AT + timedelta(days=1))


def contents(kept: KeptHome) -> dict[str, list[tuple[object, ...]]]:
    return {table: sorted(map(tuple, kept.rows(f"SELECT * FROM {table}")), key=str) for table in TABLES}


def sound(kept: KeptHome) -> bool:
    return replay_check.examine(kept.home, kept.settings).ok


# -- making one


def test_a_backup_holds_the_journal_the_key_and_the_settings_but_no_token(kept: KeptHome, tmp_path: Path) -> None:
    kept.home.config.write_text("[runs]\nmax_concurrent = 3\n")
    kept.home.token.write_text("palyra_secret\n")

    manifest = create(kept, tmp_path / "copy")

    journal = "journal.db" if kept.url is None else "journal.ndjson"
    assert set(manifest.files) == {journal, "journal.key", "config.toml"}
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {*manifest.files, "manifest.json"}
    assert manifest.journal_id == JOURNAL
    assert manifest.anchor is not None
    assert manifest.anchor.number == 2
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "copy").iterdir()} == {0o600}
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o700
    assert backup.check(tmp_path / "copy").ok


def test_the_token_is_included_only_when_asked_for(kept: KeptHome, tmp_path: Path) -> None:
    kept.home.token.write_text("palyra_secret\n")

    assert "token" in create(kept, tmp_path / "copy", with_token=True).files


def test_a_backup_is_of_one_moment_while_others_write(kept: KeptHome, tmp_path: Path) -> None:
    before = len(kept.rows("SELECT 1 FROM tape"))
    create(kept, tmp_path / "copy")
    kept.run(7, a_session_id(1), a_turn(1))

    checked = backup.check(tmp_path / "copy")

    assert checked.ok
    assert checked.report.entries == before


def test_a_backup_is_never_written_over_another(kept: KeptHome, tmp_path: Path) -> None:
    create(kept, tmp_path / "copy")

    with pytest.raises(FileExists):
        create(kept, tmp_path / "copy")


def test_a_backup_that_fails_leaves_nothing_behind(
    kept: KeptHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "copy_file", _fail)

    with pytest.raises(ZeroDivisionError):
        create(kept, tmp_path / "copies" / "copy")

    assert list((tmp_path / "copies").iterdir()) == []


def test_what_a_killed_backup_left_is_removed_by_the_next(kept: KeptHome, tmp_path: Path) -> None:
    for left in (tmp_path / ".copy.4711.new", kept.home.path / "backups" / ".palyra-monday.4711.new"):
        left.mkdir(parents=True)
        (left / "journal.db").write_bytes(b"half")
        create(kept, left.parent / "copy")
        assert [path.name for path in left.parent.glob(".*.new")] == []


def test_what_another_backup_is_making_is_left_alone(kept: KeptHome, tmp_path: Path) -> None:
    others = [tmp_path / ".copy.4711.new", tmp_path / ".else.4711.new"]
    for other in others:
        other.mkdir()
    lock = os.open(others[0], os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    create(kept, tmp_path / "copy")
    os.close(lock)
    # The second is not of this target, and not in the home: it may be anybody's.
    assert all(other.exists() for other in others)


def _fail(source: Path, target: Path) -> None:
    raise ZeroDivisionError


def test_a_home_without_a_journal_has_nothing_to_back_up(tmp_path: Path) -> None:
    with pytest.raises(JournalNotFound):
        backup.create(Home(tmp_path / "home"), Settings(), target=tmp_path / "copy", made_at=AT)

    assert not (tmp_path / "copy").exists()


# -- checking one


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
def test_a_backup_that_was_harmed_says_which_file(
    kept: KeptHome, tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    for name in create(kept, tmp_path / "whole").files:
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        harm(tmp_path / name / name)

        checked = backup.check(tmp_path / name)

        assert not checked.ok
        assert name in checked.problems[0].what
        with pytest.raises(BackupDamaged, match=name):
            restore(tmp_path / name, Home(tmp_path / "another"), replace=False, ids=CountedIds(), at=AT)
        assert not (tmp_path / "another").exists()


def test_a_journal_that_was_changed_before_the_backup_is_found_in_it(kept: KeptHome, tmp_path: Path) -> None:
    kept.change(f"UPDATE tape SET content = '{{}}' WHERE session_id = '{a_session_id(2)}' AND tape_seq = 2")
    create(kept, tmp_path / "copy")

    (problem,) = backup.check(tmp_path / "copy").problems

    assert (problem.session_id, problem.tape_seq) == (a_session_id(2), 2)


def test_what_is_no_backup_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    (tmp_path / "folder").mkdir()

    apsw.Connection(str(tmp_path / "other.db")).execute("CREATE TABLE mine (name TEXT)")

    for path in (tmp_path / "file", tmp_path / "folder", tmp_path / "nowhere", tmp_path / "other.db"):
        with pytest.raises(BackupInvalid):
            backup.check(path)


def test_a_backup_of_a_newer_version_is_refused(kept: KeptHome, tmp_path: Path) -> None:
    create(kept, tmp_path / "copy")
    manifest = tmp_path / "copy" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 2}))

    with pytest.raises(BackupVersionUnsupported):
        backup.check(tmp_path / "copy")


# -- the way back


def test_a_restored_home_has_everything_under_a_new_id(kept: KeptHome, another: KeptHome, tmp_path: Path) -> None:
    create(kept, tmp_path / "copy")
    (tmp_path / "copy" / "archive").mkdir()
    (tmp_path / "copy" / "archive" / "gift.ndjson").touch()
    before = {**contents(kept), "anchored": []}

    done = bring_back(tmp_path / "copy", another)

    # What the manifest does not vouch for stays where it is.
    assert not (another.home.path / "archive").exists()

    assert {**contents(another), "anchored": []} == before
    assert sound(another)
    with another.reading() as conn:
        assert meta.get(conn, "journal_id") == done.journal_id != JOURNAL
        assert meta.get(conn, "restored_from") == done.restored_from == JOURNAL
        assert meta.journal_ids(conn) == (JOURNAL, done.journal_id)
    assert another.home.key.stat().st_mode & 0o777 == 0o600
    assert done.aside is None


def test_anchors_of_the_earlier_id_still_prove_the_restored_journal(
    kept: KeptHome, another: KeptHome, tmp_path: Path
) -> None:
    saved = kept.anchor()
    create(kept, tmp_path / "copy")
    later = kept.anchor()
    bring_back(tmp_path / "copy", another)

    another.run(7, a_session_id(1), a_turn(1))
    another.anchor()

    assert another.verify(saved).ok
    assert not another.verify(later).ok


def test_a_journal_restored_twice_keeps_all_its_ids_in_order(kept: KeptHome, another: KeptHome, tmp_path: Path) -> None:
    create(kept, tmp_path / "copy")
    first = bring_back(tmp_path / "copy", another)
    create(another, tmp_path / "second")
    kept_aside = bring_back(tmp_path / "second", another, replace=True)

    with another.reading() as conn:
        assert meta.journal_ids(conn)[:2] == (JOURNAL, first.journal_id)
        assert len(meta.journal_ids(conn)) == 3
    assert another.verify().ok
    assert kept_aside.aside is not None
    another.write(lambda conn: meta.put(conn, "journal_ids", json.dumps([first.journal_id, JOURNAL, "x"])))
    assert not another.verify().ok


def test_a_home_in_use_is_refused_and_not_touched(
    kept: KeptHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kept.url is not None:
        monkeypatch.setenv("PALYRA_JOURNAL_DATABASE_URL", kept.url)
    create(kept, tmp_path / "copy")
    before = contents(kept)

    with pytest.raises(HomeNotEmpty):
        bring_back(tmp_path / "copy", kept)
    with hold_home(kept.home), pytest.raises(DaemonRunning):
        bring_back(tmp_path / "copy", kept, replace=True)

    assert contents(kept) == before


def test_a_database_in_use_is_refused(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptHome(tmp_path / "home", database_url=postgres_url).begin().live_a_little()
    create(kept, tmp_path / "copy")
    monkeypatch.setenv("PALYRA_JOURNAL_DATABASE_URL", postgres_url)
    kept.let_go()

    with pytest.raises(HomeNotEmpty, match="database"):
        restore(tmp_path / "copy", Home(tmp_path / "another"), replace=False, ids=CountedIds(), at=AT)

    assert not (tmp_path / "another").exists()
    assert kept.verify().ok


def test_what_is_replaced_is_kept_under_a_dated_name(
    kept: KeptHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kept.url is not None:
        monkeypatch.setenv("PALYRA_JOURNAL_DATABASE_URL", kept.url)
    create(kept, tmp_path / "copy")
    old = contents(kept)
    kept.run(7, a_session_id(1), a_turn(1))
    newer = len(kept.rows("SELECT 1 FROM tape"))

    done = bring_back(tmp_path / "copy", kept, replace=True)

    assert {**contents(kept), "anchored": []} == {**old, "anchored": []}
    assert sound(kept)
    assert done.aside is not None
    assert done.aside.name.startswith("replaced-2")
    aside = done.aside if kept.url is None else done.aside / "database"
    if kept.url is None:
        bare = KeptHome(aside, database_url=None)
        assert len(bare.rows("SELECT 1 FROM tape")) == newer
    else:
        assert backup.check(aside).report.entries == newer


def test_a_killed_restore_into_an_empty_home_can_be_made_again(
    kept: KeptHome, another: KeptHome, tmp_path: Path
) -> None:
    create(kept, tmp_path / "copy")
    (another.home.path / ".restore.4711").mkdir(parents=True)
    (another.home.path / ".restore.4711" / "journal.db").write_bytes(b"half")

    bring_back(tmp_path / "copy", another)

    assert sound(another)
    assert not list(another.home.path.glob(".restore.*"))


class Killed(BaseException):
    """Ends everything, as a kill would."""


def killed_after(renames: int, folder: Path) -> Callable[[Path, Path], Path]:
    """Return a rename that ends everything after so many renames in a folder."""
    left, rename = iter(range(renames)), Path.rename

    def killed(self: Path, target: Path) -> Path:
        if self.is_relative_to(folder) and next(left, None) is None:
            raise Killed
        return rename(self, target)

    return killed


@pytest.mark.parametrize("renames", range(10))
def test_a_killed_replacement_leaves_the_old_home_the_new_one_or_none_that_starts(
    tmp_path: Path, renames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptHome(tmp_path / "home", database_url=None).begin().live_a_little()
    kept.home.config.write_text("[runs]\nmax_concurrent = 3\n")
    create(kept, tmp_path / "copy")
    kept.home.config.write_text("[runs]\nmax_concurrent = 4\n")
    kept.run(7, a_session_id(1), a_turn(1))
    old = len(kept.rows("SELECT 1 FROM tape"))
    assert kept.home.journal.with_name("journal.db-wal").stat().st_size > 0

    monkeypatch.setattr(Path, "rename", killed_after(renames, kept.home.path))
    with suppress(Killed):
        # The journal stays open, as if the daemon had been killed: closing it would empty its log.
        restore(tmp_path / "copy", kept.home, replace=True, ids=CountedIds(5_000_000), at=AT + timedelta(days=1))
    monkeypatch.undo()

    if not kept.home.journal.exists():
        # With its key there and no journal, a daemon refuses the home.
        assert kept.home.key.exists()
        return
    found = KeptHome(kept.home.path, database_url=None)
    with found.reading() as conn:
        is_restored = meta.get(conn, "restored_from") is not None
    assert is_restored or len(found.rows("SELECT 1 FROM tape")) == old
    assert ("concurrency = 3" in kept.home.config.read_text()) is is_restored


@pytest.mark.parametrize("renames", range(4))
def test_a_killed_restore_into_an_empty_home_is_complete_or_none_that_starts(
    tmp_path: Path, renames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptHome(tmp_path / "home", database_url=None).begin().live_a_little()
    kept.home.config.write_text("[runs]\nmax_concurrent = 3\n")
    create(kept, tmp_path / "copy")
    home = Home(tmp_path / "another")
    home.path.mkdir(mode=0o700)

    monkeypatch.setattr(Path, "rename", killed_after(renames, home.path))
    with suppress(Killed):
        restore(tmp_path / "copy", home, replace=False, ids=CountedIds(5_000_000), at=AT + timedelta(days=1))
    monkeypatch.undo()

    there = {path.name for path in home.path.iterdir()} - {home.lock.name}
    assert not there or home.key.name in there
    assert (home.journal.name in there) == (there == {"journal.db", "journal.key", "config.toml"})


def test_a_backup_comes_back_on_the_other_engine(
    kept: KeptHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    create(kept, tmp_path / "copy")
    url = postgres_url if kept.url is None else None
    if url is not None:
        monkeypatch.setenv("PALYRA_JOURNAL_DATABASE_URL", url)
    other = KeptHome(tmp_path / "another", database_url=url)

    bring_back(tmp_path / "copy", other)

    assert sound(other)
    assert {**contents(other), "anchored": []} == {**contents(kept), "anchored": []}
    other.let_go()


def test_a_bare_copy_of_the_journal_needs_the_key_of_the_home(tmp_path: Path) -> None:
    kept = KeptHome(tmp_path / "home", database_url=None).begin().live_a_little()
    kept.let_go()
    shutil.copy(kept.home.journal, tmp_path / "bare.db")

    with pytest.raises(JournalKeyMissing):
        restore(tmp_path / "bare.db", Home(tmp_path / "another"), replace=False, ids=CountedIds(), at=AT)

    assert bring_back(tmp_path / "bare.db", kept, replace=True).restored_from == JOURNAL
    assert kept.verify().ok


# -- before a migration, and back


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the migrations, to which a test adds its own."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrate.FOLDER, folder)
    monkeypatch.setattr(migrate, "FOLDER", folder)
    return folder


def before_migration(kept: KeptHome) -> Path | None:
    return backup.before_migration(kept.home, kept.settings, made_at=AT)


def test_nothing_is_kept_when_no_step_is_missing(kept: KeptHome, tmp_path: Path) -> None:
    assert before_migration(kept) is None
    assert before_migration(KeptHome(tmp_path / "nowhere", database_url=None)) is None


def test_an_old_schema_is_migrated_and_brought_back(
    kept: KeptHome, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kept.url is not None:
        monkeypatch.setenv("PALYRA_JOURNAL_DATABASE_URL", kept.url)
    last = migrate.steps("sqlite")[-1].number
    old = contents(kept)
    (folder / f"{last + 1:04}_further.sql").write_text(
        "CREATE TABLE further (name TEXT PRIMARY KEY); ALTER TABLE sessions ADD COLUMN mood TEXT;"
    )

    saved = before_migration(kept)
    kept.write(lambda conn: migrate.migrate(conn, now_ms=2))
    assert kept.rows("SELECT MAX(number) FROM migrations") == [(last + 1,)]

    assert saved is not None
    assert saved.name == f"journal-before-{last + 1:04}" + (".db" if kept.url is None else "")
    if kept.url is None:
        assert saved.stat().st_mode & 0o777 == 0o600
    done = bring_back(saved, kept, replace=True)
    assert done.schema == last
    assert {**contents(kept), "anchored": []} == {**old, "anchored": []}
    assert kept.verify().ok
    kept.write(lambda conn: migrate.migrate(conn, now_ms=3))
    assert sound(kept)


def test_a_migration_that_fails_leaves_the_old_state_working(kept: KeptHome, folder: Path) -> None:
    last = migrate.steps("sqlite")[-1].number
    (folder / f"{last + 1:04}_broken.sql").write_text("CREATE TABLE half (name TEXT); CREATE NONSENSE;")
    old = contents(kept)

    assert before_migration(kept) is not None
    with pytest.raises(JournalError):
        kept.write(lambda conn: migrate.migrate(conn, now_ms=2))

    assert contents(kept) == old
    kept.run(7, a_session_id(1), a_turn(1))
    assert sound(kept)
    # The next attempt keeps what is there by then.
    again = before_migration(kept)
    assert again is not None
    assert backup.check(again).report.entries == kept.verify().entries


@pytest.mark.parametrize("schema", [1, 2])
def test_a_journal_of_an_early_schema_can_be_backed_up_and_checked(
    fresh_home: KeptHome, tmp_path: Path, schema: int
) -> None:
    fresh_home.begin(schema=schema)

    create(fresh_home, tmp_path / "copy")

    checked = backup.check(tmp_path / "copy")
    assert checked.ok
    assert checked.schema == schema


def test_a_copy_before_a_migration_that_fails_leaves_the_earlier_one(
    kept: KeptHome, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = migrate.steps("sqlite")[-1].number
    (folder / f"{last + 1:04}_further.sql").write_text("CREATE TABLE further (name TEXT PRIMARY KEY);")
    saved = before_migration(kept)
    assert saved is not None
    names = sorted(os.listdir(kept.home.path))

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(backup, "sync_file", fail)
    monkeypatch.setattr(backup, "_describe", fail)
    with pytest.raises(ZeroDivisionError):
        before_migration(kept)

    assert sorted(os.listdir(kept.home.path)) == names


def test_settings_in_the_backup_lead_to_its_journal(tmp_path: Path, postgres_url: str) -> None:
    kept = KeptHome(tmp_path / "home", database_url=None).begin().live_a_little()
    kept.home.config.write_text(f'[journal]\ndatabase_url = "{postgres_url}"\n')
    create(kept, tmp_path / "copy")
    kept.let_go()

    restore(tmp_path / "copy", Home(tmp_path / "another"), replace=False, ids=CountedIds(), at=AT)

    there = KeptHome(tmp_path / "another", database_url=postgres_url)
    assert there.settings == Settings(journal=JournalSettings(database_url=postgres_url))
    assert sound(there)
    assert not there.home.journal.exists()
