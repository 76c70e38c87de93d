"""Restores a backup: after a loss, or to undo a migration.

A restored journal gets a new id, so that nothing takes it for the one that it was copied from; the anchors of the
earlier id stay valid, and the first anchor of the new one is chained to them. The files that a home had before are
never deleted but moved to a folder with a dated name.
"""

import os
import shutil
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from palyra.config import load
from palyra.core.clock import to_ms
from palyra.core.errors import Conflict
from palyra.core.ids import IdSource
from palyra.home import Home
from palyra.journal import migrate, table_dump
from palyra.journal.archive import backup
from palyra.journal.atomic_file import explain_write_errors, sync_folder
from palyra.journal.engines import sqlite
from palyra.journal.engines.base import Connection
from palyra.journal.migrate import SchemaVersionUnsupported
from palyra.journal.offline import hold_home, open_writer
from palyra.journal.proof import anchors, signing_key
from palyra.journal.proof.signing_key import JournalKeyMissing
from palyra.journal.snapshot import open_snapshot
from palyra.journal.stores import meta
from palyra.journal.stores.rotated_tapes import ARCHIVE

REPLACED_NAME = "replaced-{:%Y%m%d-%H%M%S}"
STAGED = ".restore."


class HomeNotEmpty(Conflict):
    """The home folder is not empty."""


class BackupDamaged(Conflict):
    """The backup is damaged. Nothing was restored."""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What was restored, under which id, and where the earlier journal is kept."""

    journal_id: str
    restored_from: str | None
    schema: int
    aside: Path | None


def restore(path: Path, home: Home, *, replace: bool, ids: IdSource, at: datetime) -> RestoreReport:
    """Restore a backup, or a bare copy of the journal file, into a home without a running daemon."""
    checked = backup.check(path)
    if not checked.ok:
        raise BackupDamaged(
            f"The backup {path} is damaged: {checked.problems[0].what}. Nothing was restored. `palyra "
            "backup verify` shows the details."
        )
    known_count = migrate.steps("sqlite")[-1].number
    if checked.schema > known_count:
        raise SchemaVersionUnsupported(
            f"The backup has schema {checked.schema}; this version of Palyra supports schemas up to {known_count}."
        )
    made_here = not home.path.exists()
    with hold_home(home):
        # No other process restores here now, so these are left from a restore that was killed.
        for staged in home.path.glob(f"{STAGED}*"):
            shutil.rmtree(staged)
        try:
            if not replace:
                _refuse_used(home)
            return _Restoration(path, checked, home, replace=replace, ids=ids, at=at).run()
        except BaseException:
            if made_here:
                shutil.rmtree(home.path, ignore_errors=True)
            raise


class _Restoration:
    """The restore of one backup into one home."""

    def __init__(
        self, path: Path, checked: backup.BackupReport, home: Home, *, replace: bool, ids: IdSource, at: datetime
    ) -> None:
        self._path = path
        self._folder = Home(path) if path.is_dir() else None
        self._checked = checked
        self._home = home
        self._replace = replace
        self._at = at
        self._aside = home.path / REPLACED_NAME.format(at)
        self._staged = Home(home.path / f"{STAGED}{os.getpid()}")
        self._journal_id = ids.new()
        self._settings = load(self._folder if self._folder and self._folder.config.exists() else home)
        key = self._folder.key if self._folder and self._folder.key.exists() else home.key
        if not key.exists():
            raise JournalKeyMissing
        self._signer = signing_key.load(key)

    def run(self) -> RestoreReport:
        with explain_write_errors(self._home.path):
            self._staged.path.mkdir(mode=0o700)
            try:
                self._stage_files()
                if self._settings.journal.database_url is None:
                    earlier = self._stage_journal()
                else:
                    earlier = self._fill_database()
                self._swap()
            finally:
                shutil.rmtree(self._staged.path, ignore_errors=True)
            sync_folder(self._home.path)
        aside = self._aside if self._aside.exists() else None
        return RestoreReport(self._journal_id, earlier, self._checked.schema, aside)

    def _stage_files(self) -> None:
        """Copy the files that the manifest lists, and nothing else from the folder."""
        if self._folder is None or self._checked.manifest is None:
            return
        home = self._folder
        small = {home.key.name, home.config.name, home.token.name}
        folders = {ARCHIVE, home.plugins.name, home.policy.name}
        for name in self._checked.manifest.files:
            if name in small or Path(name).parts[0] in folders:
                backup.copy_file(self._folder.path / name, self._staged.path / name)

    def _stage_journal(self) -> str | None:
        """Write the journal file next to its final path; return the id that it had."""
        target = self._staged.journal
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        if not self._is_dump:
            shutil.copyfile(self._file, target)
        with closing(sqlite.open_for_writing(target)) as raw:
            units = sqlite.SqliteWriter(raw)
            if self._is_dump:
                units.write(self._load)
            return units.write(self._renew)

    def _fill_database(self) -> str | None:
        """Fill the database in one unit; return the id that the journal had."""
        with open_snapshot(self._home, self._settings) as conn:
            used = bool(migrate.tables(conn))
        if used and not self._replace:
            raise HomeNotEmpty(
                "The database that `journal.database_url` names already contains a journal. Name "
                "another database, or pass --replace to move that journal aside as a backup."
            )
        if used:
            backup.create(self._home, self._settings, target=self._aside / "database", made_at=self._at)

        def unit(conn: Connection) -> str | None:
            table_dump.drop(conn)
            self._load(conn)
            return self._renew(conn)

        with open_writer(self._home, self._settings) as units:
            return units.write(unit)

    def _load(self, conn: Connection) -> None:
        schema, now_ms = self._checked.schema, to_ms(self._at)
        if self._is_dump:
            table_dump.load(conn, table_dump.parts_in(self._path / backup.DUMP), schema=schema, now_ms=now_ms)
            return
        with sqlite.open_snapshot(self._file) as source:
            table_dump.load(conn, table_dump.parts_of(source), schema=schema, now_ms=now_ms)

    def _renew(self, conn: Connection) -> str | None:
        """Give the journal a new id, with an anchor that records it and is chained to the earlier ones."""
        earlier = meta.renew_id(conn, self._journal_id)
        tapes = anchors.moved_tapes(conn)
        while True:
            anchors.write_anchor(conn, tapes, journal_id=self._journal_id, now_ms=to_ms(self._at), signer=self._signer)
            if not (tapes := anchors.moved_tapes(conn)):
                return earlier

    def _swap(self) -> None:
        """Move the home's version of each restored file aside, and move the restored one to its path.

        The journal is moved aside first and restored last, and the key is restored before all others: a daemon refuses
        a home that has a key and no journal, so that none starts on a home that a kill left half restored.
        """
        journal, key = self._home.journal.name, self._home.key.name
        fresh = sorted(
            self._staged.path.iterdir(), key=lambda path: (path.name == journal, path.name != key, path.name)
        )
        if self._staged.journal in fresh:
            # Commits that are only in the write-ahead log move with the file, and never before it: a file
            # without its log would be an earlier journal.
            for suffix in ("", "-wal", "-shm"):
                self._put_aside(self._home.journal.with_name(journal + suffix))
        for one in fresh:
            target_path = self._home.path / one.name
            if target_path == self._home.key and target_path.exists():
                # Replaced in one step: with neither journal nor key the home would look like a new one.
                self._aside.mkdir(mode=0o700, exist_ok=True)
                backup.copy_file(target_path, self._aside / target_path.name)
            else:
                self._put_aside(target_path)
            one.rename(target_path)

    def _put_aside(self, path: Path) -> None:
        if path.exists():
            self._aside.mkdir(mode=0o700, exist_ok=True)
            path.rename(self._aside / path.name)

    @property
    def _is_dump(self) -> bool:
        return self._checked.manifest is not None and self._checked.manifest.engine != "sqlite"

    @property
    def _file(self) -> Path:
        return self._folder.journal if self._folder is not None else self._path


def _refuse_used(home: Home) -> None:
    used = sorted(path.name for path in home.path.iterdir() if path != home.lock)
    if used:
        raise HomeNotEmpty(
            f"{home.path} is not empty: it contains {used[0]}. Name another home with --home, or pass "
            "--replace to move its journal aside."
        )
