"""Backups: a folder with everything that a home needs to continue elsewhere, and the digests to verify it.

The folder is laid out like a home. `journal.db` is a consistent copy of the journal on SQLite, `journal.ndjson` the
rows of one on PostgreSQL. `manifest.json` names every other file with its digest. A person who has a backup can read
all messages, and sign as this journal: so only its owner can read the folder.
"""

import fcntl
import glob
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct

from palyra.core.errors import Invalid
from palyra.core.version import VERSION
from palyra.home import Home
from palyra.journal import migrate, table_dump
from palyra.journal.atomic_file import (
    FileNotWritable,
    atomic_file,
    explain_write_errors,
    is_full,
    refuse_existing,
    sync_file,
    sync_folder,
)
from palyra.journal.content import blobs
from palyra.journal.engines import sqlite
from palyra.journal.engines.base import Connection, StorageFull
from palyra.journal.projection import replay_check
from palyra.journal.proof import anchors
from palyra.journal.proof.anchors import Anchor
from palyra.journal.proof.journal_proof import verify
from palyra.journal.proof.signing_key import public_key
from palyra.journal.proof.tape_proof import ProofProblem, ProofReport
from palyra.journal.snapshot import JournalNotFound, open_snapshot
from palyra.journal.stores import meta, rotated_tapes
from palyra.settings import Settings

FORMAT = 1
MANIFEST = "manifest.json"
DUMP = "journal.ndjson"
COPIED_BYTES = 1024 * 1024
SQLITE_MAGIC = b"SQLite format 3\x00"


class BackupInvalid(Invalid):
    """This is not a backup. Give a folder that `palyra backup create` wrote, or a `journal-before-*.db`."""


class BackupVersionUnsupported(Invalid):
    """A newer version of Palyra made the backup. Use that version, or a newer one."""


class BackupFile(Struct, frozen=True, kw_only=True):
    """A file of a backup."""

    bytes: int
    sha256: str


class BackupManifest(Struct, frozen=True, kw_only=True):
    """The source and the files of a backup."""

    format: int
    version: str
    made_at: datetime
    engine: str
    journal_id: str | None
    schema: int
    anchor: Anchor | None
    """The journal's last anchor at that time."""
    files: dict[str, BackupFile]


class BackupReport(Struct, frozen=True):
    """Whether a backup is valid."""

    manifest: BackupManifest | None
    """None for a bare copy of the journal file."""
    report: ProofReport
    problems: tuple[ProofProblem, ...]
    schema: int

    @property
    def ok(self) -> bool:
        return not self.problems


def create(
    home: Home,
    settings: Settings,
    *,
    target: Path,
    made_at: datetime,
    with_token: bool = False,
    plugins: Iterable[Mapping[str, bytes]] = (),
) -> BackupManifest:
    """Make a backup, with or without a running daemon; the folder appears complete or not at all.

    `plugins` are the files of each plugin by their names below the folder of plugins: only the plugin package knows
    which plugins are complete, and which ones an upgrade is replacing.
    """
    fresh = target.with_name(f".{target.name}.{os.getpid()}.new")
    with explain_write_errors(target), ExitStack() as stack:
        refuse_existing(target)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_unfinished(target, home)
        fresh.mkdir(mode=0o700)
        try:
            stack.enter_context(_locked(fresh))
            _copy_plugins(plugins, Home(fresh))
            manifest = _fill(Home(fresh), home, settings, made_at=made_at, with_token=with_token)
            fresh.rename(target)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        sync_folder(target.parent)
    return manifest


def _remove_unfinished(target: Path, home: Home) -> None:
    """Remove leftovers of a killed backup to this target; in the home, those of any backup."""
    name = "*" if target.is_relative_to(home.path) else glob.escape(target.name)
    for fresh in target.parent.glob(f".{name}.*.new"):
        # A backup that is still being made is locked by its process.
        with suppress(BlockingIOError, NotADirectoryError), _locked(fresh):
            shutil.rmtree(fresh)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder; raise `BlockingIOError` if another process has locked it. A kill releases the lock."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def check(path: Path) -> BackupReport:
    """Check a backup: its files match the manifest, and its journal is undamaged and verified."""
    if path.is_file() and _is_sqlite(path):
        return _check_bare(path)
    manifest = read_manifest(path)
    problems = [ProofProblem(None, None, fault) for fault in _check_files(path, manifest)]
    if problems:
        return BackupReport(manifest, ProofReport(0, 0, 0, 0, tuple(problems)), tuple(problems), manifest.schema)
    with journal_in(path, manifest) as conn:
        report = verify(conn, saved=manifest.anchor, key=public_key(Home(path).key))
        problems += [*_faults(conn), *report.problems, *replay_check.check_archive(conn, path)]
        # A schema from before content was stored has none that could be damaged.
        if manifest.schema >= blobs.SINCE_SCHEMA:
            problems += [ProofProblem(None, None, fault) for fault in blobs.check(conn)]
        if (meta.get(conn, "journal_id"), migrate.current(conn)) != (manifest.journal_id, manifest.schema):
            problems.append(ProofProblem(None, None, "the journal is not the one named in the manifest"))
    return BackupReport(manifest, report, tuple(problems), manifest.schema)


def _check_bare(path: Path) -> BackupReport:
    with sqlite.open_snapshot(path) as conn:
        schema = migrate.current(conn)
        if schema == 0:
            raise BackupInvalid(f"{path} is a database, but not a journal.")
        report = verify(conn)
        return BackupReport(None, report, (*_faults(conn), *report.problems), schema)


def read_manifest(path: Path) -> BackupManifest:
    """Read the manifest of a backup."""
    try:
        manifest = msgspec.json.decode((path / MANIFEST).read_bytes(), type=BackupManifest)
    except (OSError, msgspec.DecodeError) as error:
        raise BackupInvalid(
            f"{path} is not a backup. Give a folder that `palyra backup create` wrote, or a `journal-before-*.db`."
        ) from error
    if manifest.format > FORMAT:
        raise BackupVersionUnsupported(
            f"{path} has backup format {manifest.format}; this version of Palyra supports format "
            f"{FORMAT}. Use a newer version."
        )
    return manifest


@contextmanager
def journal_in(path: Path, manifest: BackupManifest) -> Iterator[Connection]:
    """Open the journal of a backup; the rows of a database are loaded into a temporary file."""
    if manifest.engine == "sqlite":
        with sqlite.open_snapshot(path / Home(path).journal.name) as conn:
            yield conn
        return
    with TemporaryDirectory(prefix="palyra-backup-") as folder:
        file = Path(folder) / "journal.db"
        with closing(sqlite.open_for_writing(file)) as raw:
            parts = table_dump.parts_in(path / DUMP)
            sqlite.SqliteWriter(raw).write(lambda conn: table_dump.load(conn, parts, schema=manifest.schema, now_ms=0))
        with sqlite.open_snapshot(file) as conn:
            yield conn


def before_migration(home: Home, settings: Settings, *, made_at: datetime) -> Path | None:
    """Back up the journal before migrations; return the path, None if there is nothing to back up.

    The daemon calls it while it holds the home's lock, before it opens the engine. On SQLite the copy is one file, on
    PostgreSQL a backup folder; an older one of the same name, from a failed attempt, is replaced.
    """
    try:
        with open_snapshot(home, settings) as conn:
            migrations, at, missing = migrate.steps(conn.dialect.name), migrate.current(conn), migrate.missing(conn)
    except JournalNotFound:
        return None
    if at == 0 or at > migrations[-1].number or not missing:
        return None
    target = home.path / f"journal-before-{missing[0].number:04}"
    target = target.with_suffix(".db") if settings.journal.database_url is None else target
    try:
        _keep_before(home, settings, target=target, made_at=made_at)
    except FileNotWritable as error:
        if not is_full(error):
            raise
        raise StorageFull(
            f"The journal has schema {at} and must be migrated to {migrations[-1].number}, but the disk of "
            f"{home.path} has no room for a copy of it. Free as much space as the journal uses; the "
            "migration then starts by itself."
        ) from error
    return target


def _keep_before(home: Home, settings: Settings, *, target: Path, made_at: datetime) -> None:
    fresh = target.with_name(f".{target.name}.new")
    with explain_write_errors(target):
        _remove(fresh)
        try:
            if settings.journal.database_url is None:
                _copy_journal(home, fresh)
            else:
                create(home, settings, target=fresh, made_at=made_at)
        except BaseException:
            _remove(fresh)
            raise
        _remove(target)
        fresh.rename(target)
        sync_folder(home.path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _fill(folder: Home, home: Home, settings: Settings, *, made_at: datetime, with_token: bool) -> BackupManifest:
    if settings.journal.database_url is None:
        if not home.journal.exists():
            raise JournalNotFound(f"There is no journal at {home.journal} yet. `palyra chat` starts one.")
        _copy_journal(home, folder.journal)
        # The manifest is made from the copy: the daemon keeps writing to the journal meanwhile.
        with sqlite.open_snapshot(folder.journal) as conn:
            _copy_archive(conn, home, folder)
            manifest = _describe(conn, made_at)
    else:
        with open_snapshot(home, settings) as conn:
            with atomic_file(folder.path / DUMP) as out:
                table_dump.write(conn, out.write)
            _copy_archive(conn, home, folder)
            manifest = _describe(conn, made_at)
    for source in (home.key, home.config, *home.policy.glob("*.cedar"), *((home.token,) if with_token else ())):
        if source.is_file():
            copy_file(source, folder.path / source.relative_to(home.path))
    manifest = msgspec.structs.replace(manifest, files=dict(sorted(_parts(folder.path))))
    with atomic_file(folder.path / MANIFEST) as out:
        out.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return manifest


def _copy_journal(home: Home, target: Path) -> None:
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        sqlite.copy(home.journal, target)
    except StorageFull as error:
        raise FileNotWritable(f"The disk of {target.parent} is full. Nothing was written.") from error
    sync_file(target)


def _describe(conn: Connection, made_at: datetime) -> BackupManifest:
    return BackupManifest(
        format=FORMAT,
        version=VERSION,
        made_at=made_at,
        engine=conn.dialect.name,
        journal_id=meta.get(conn, "journal_id"),
        schema=migrate.current(conn),
        anchor=anchors.latest(conn),
        files={},
    )


def _copy_archive(conn: Connection, home: Home, folder: Home) -> None:
    for record in rotated_tapes.all_of(conn).values():
        if (home.path / record.file).is_file():
            copy_file(home.path / record.file, folder.path / record.file)


def _copy_plugins(plugins: Iterable[Mapping[str, bytes]], folder: Home) -> None:
    for files in plugins:
        for name, content in files.items():
            target = folder.plugins / name
            _make_folders(target)
            with atomic_file(target) as out:
                out.write(content)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file and flush it to disk, for its owner only."""
    _make_folders(target)
    with source.open("rb") as read, atomic_file(target) as out:
        shutil.copyfileobj(read, out, COPIED_BYTES)


def _make_folders(target: Path) -> None:
    # One by one: the mode applies to the last folder only, not to its parents.
    for folder in (target.parent.parent, target.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _parts(folder: Path) -> Iterator[tuple[str, BackupFile]]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name != MANIFEST:
            yield str(path.relative_to(folder)), BackupFile(bytes=path.stat().st_size, sha256=digest_of(path))


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_files(folder: Path, manifest: BackupManifest) -> Iterator[str]:
    for name, part in manifest.files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            yield f"the file {name} is missing"
        elif path.stat().st_size != part.bytes:
            yield f"the file {name} has {path.stat().st_size} bytes, not {part.bytes}"
        elif digest_of(path) != part.sha256:
            yield f"the file {name} was changed"
    requested = Home(folder).journal.name if manifest.engine == "sqlite" else DUMP
    if requested not in manifest.files:
        yield f"the file {requested} is missing"


def _faults(conn: Connection) -> list[ProofProblem]:
    return [ProofProblem(None, None, f"the journal file is damaged: {fault}") for fault in sqlite.file_problems(conn)]


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
