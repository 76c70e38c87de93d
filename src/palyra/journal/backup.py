"""Backups: a folder that holds what a home needs to go on elsewhere, and proves itself.

The folder is laid out like a home. `journal.db` is a consistent copy of the journal on SQLite, `journal.ndjson` the
rows of one on PostgreSQL. `manifest.json` names every other file with its digest. Whoever has a backup can read
all that was said, and sign as this journal: it is made for its owner's eyes only.
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
from palyra.journal import anchors, blobs, dump, integrity, meta, migrate, rotated, sqlite
from palyra.journal.anchors import Anchor
from palyra.journal.engine import Connection, StorageFull
from palyra.journal.signing import public_key
from palyra.journal.verify import NoJournal, Problem, Report, opened, verify
from palyra.journal.whole import (
    FileNotWritten,
    is_full,
    refuse_existing,
    sync_file,
    sync_folder,
    whole_file,
    written,
)
from palyra.settings import Settings

FORMAT = 1
MANIFEST = "manifest.json"
DUMP = "journal.ndjson"
COPIED_BYTES = 1024 * 1024
SQLITE_MAGIC = b"SQLite format 3\x00"


class NotABackup(Invalid):
    """This is no backup. Give it a folder that `palyra backup create` made, or a `journal-before-*.db`."""


class BackupNewer(Invalid):
    """The backup was made by a newer version of Palyra. Use that version, or a newer one."""


class Part(Struct, frozen=True, kw_only=True):
    """A file of a backup."""

    bytes: int
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True):
    """What a backup is of, and what it is made of."""

    format: int
    version: str
    made_at: datetime
    engine: str
    journal_id: str | None
    schema: int
    anchor: Anchor | None
    """The journal's last anchor at that time."""
    files: dict[str, Part]


class Checked(Struct, frozen=True):
    """Whether a backup holds."""

    manifest: Manifest | None
    """None for a bare copy of the journal file."""
    report: Report
    problems: tuple[Problem, ...]
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
) -> Manifest:
    """Make a backup beside a running daemon or without one; the folder is there as a whole or not at all.

    `plugins` are the files of each plugin by their names below the folder of plugins: what is a whole plugin, and what
    an upgrade is just replacing, only its own floor can tell.
    """
    fresh = target.with_name(f".{target.name}.{os.getpid()}.new")
    with written(target), ExitStack() as stack:
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
    """Remove what a backup to this target left when it was killed; in the home, what any backup left."""
    name = "*" if target.is_relative_to(home.path) else glob.escape(target.name)
    for fresh in target.parent.glob(f".{name}.*.new"):
        # One that is still being made is locked by its maker.
        with suppress(BlockingIOError, NotADirectoryError), _locked(fresh):
            shutil.rmtree(fresh)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; raise `BlockingIOError` if another process does. A kill releases it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def check(path: Path) -> Checked:
    """Check a backup: that its files are those that were written, that the journal in it is sound and holds."""
    if path.is_file() and _is_sqlite(path):
        return _check_bare(path)
    manifest = read_manifest(path)
    problems = [Problem(None, None, fault) for fault in _check_files(path, manifest)]
    if problems:
        return Checked(manifest, Report(0, 0, 0, 0, tuple(problems)), tuple(problems), manifest.schema)
    with journal_in(path, manifest) as conn:
        report = verify(conn, saved=manifest.anchor, key=public_key(Home(path).key))
        problems += [*_faults(conn), *report.problems, *integrity.check_archive(conn, path)]
        # A schema from before content was kept has none that could be damaged.
        if manifest.schema >= blobs.SINCE_SCHEMA:
            problems += [Problem(None, None, fault) for fault in blobs.check(conn)]
        if (meta.get(conn, "journal_id"), migrate.current(conn)) != (manifest.journal_id, manifest.schema):
            problems.append(Problem(None, None, "the journal is not the one that the manifest names"))
    return Checked(manifest, report, tuple(problems), manifest.schema)


def _check_bare(path: Path) -> Checked:
    with sqlite.reading(path) as conn:
        schema = migrate.current(conn)
        if schema == 0:
            raise NotABackup(f"{path} is a database, but no journal.")
        report = verify(conn)
        return Checked(None, report, (*_faults(conn), *report.problems), schema)


def read_manifest(path: Path) -> Manifest:
    """Read what a backup says it is."""
    try:
        manifest = msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise NotABackup(
            f"{path} is no backup. Give it a folder that `palyra backup create` made, or a `journal-before-*.db`."
        ) from error
    if manifest.format > FORMAT:
        raise BackupNewer(
            f"{path} has format {manifest.format}; this version of Palyra knows {FORMAT}. Use a newer version."
        )
    return manifest


@contextmanager
def journal_in(path: Path, manifest: Manifest) -> Iterator[Connection]:
    """Open the journal of a backup; the rows of a database are put into a file that is gone afterwards."""
    if manifest.engine == "sqlite":
        with sqlite.reading(path / Home(path).journal.name) as conn:
            yield conn
        return
    with TemporaryDirectory(prefix="palyra-backup-") as folder:
        file = Path(folder) / "journal.db"
        with closing(sqlite.open_for_writing(file)) as raw:
            parts = dump.parts_in(path / DUMP)
            sqlite.SqliteWriter(raw).write(lambda conn: dump.load(conn, parts, schema=manifest.schema, now_ms=0))
        with sqlite.reading(file) as conn:
            yield conn


def before_migration(home: Home, settings: Settings, *, made_at: datetime) -> Path | None:
    """Keep the journal as it is before steps are taken on it; return where, None if there is nothing to keep.

    The daemon calls it while it holds the home, before it opens the engine. On SQLite the copy is one file, on
    PostgreSQL a backup folder; an older one of the same name, of an attempt that failed, is replaced.
    """
    try:
        with opened(home, settings) as conn:
            known, at, missing = migrate.steps(conn.dialect.name), migrate.current(conn), migrate.missing(conn)
    except NoJournal:
        return None
    if at == 0 or at > known[-1].number or not missing:
        return None
    target = home.path / f"journal-before-{missing[0].number:04}"
    target = target.with_suffix(".db") if settings.journal.database_url is None else target
    try:
        _keep_before(home, settings, target=target, made_at=made_at)
    except FileNotWritten as error:
        if not is_full(error):
            raise
        raise StorageFull(
            f"The journal has schema {at} and must be migrated to {known[-1].number}, but the disk that holds"
            f" {home.path} has no room for a copy of it. Free as much space as the journal takes; it goes on then."
        ) from error
    return target


def _keep_before(home: Home, settings: Settings, *, target: Path, made_at: datetime) -> None:
    fresh = target.with_name(f".{target.name}.new")
    with written(target):
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


def _fill(folder: Home, home: Home, settings: Settings, *, made_at: datetime, with_token: bool) -> Manifest:
    if settings.journal.database_url is None:
        if not home.journal.exists():
            raise NoJournal(f"There is no journal at {home.journal} yet. `palyra chat` starts one.")
        _copy_journal(home, folder.journal)
        # What the manifest says is read from the copy: the daemon goes on writing to the journal meanwhile.
        with sqlite.reading(folder.journal) as conn:
            _copy_archive(conn, home, folder)
            manifest = _describe(conn, made_at)
    else:
        with opened(home, settings) as conn:
            with whole_file(folder.path / DUMP) as out:
                dump.write(conn, out.write)
            _copy_archive(conn, home, folder)
            manifest = _describe(conn, made_at)
    for source in (home.key, home.config, *home.policy.glob("*.cedar"), *((home.token,) if with_token else ())):
        if source.is_file():
            copy_file(source, folder.path / source.relative_to(home.path))
    manifest = msgspec.structs.replace(manifest, files=dict(sorted(_parts(folder.path))))
    with whole_file(folder.path / MANIFEST) as out:
        out.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    return manifest


def _copy_journal(home: Home, target: Path) -> None:
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        sqlite.copy(home.journal, target)
    except StorageFull as error:
        raise FileNotWritten(f"The disk that holds {target.parent} is full. Nothing was left behind.") from error
    sync_file(target)


def _describe(conn: Connection, made_at: datetime) -> Manifest:
    return Manifest(
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
    for record in rotated.all_of(conn).values():
        if (home.path / record.file).is_file():
            copy_file(home.path / record.file, folder.path / record.file)


def _copy_plugins(plugins: Iterable[Mapping[str, bytes]], folder: Home) -> None:
    for files in plugins:
        for name, content in files.items():
            target = folder.plugins / name
            _make_folders(target)
            with whole_file(target) as out:
                out.write(content)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file durably, for its owner only."""
    _make_folders(target)
    with source.open("rb") as read, whole_file(target) as out:
        shutil.copyfileobj(read, out, COPIED_BYTES)


def _make_folders(target: Path) -> None:
    # One by one: the mode is for the last folder only, not for those above it.
    for folder in (target.parent.parent, target.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _parts(folder: Path) -> Iterator[tuple[str, Part]]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name != MANIFEST:
            yield str(path.relative_to(folder)), Part(bytes=path.stat().st_size, sha256=digest_of(path))


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_files(folder: Path, manifest: Manifest) -> Iterator[str]:
    for name, part in manifest.files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            yield f"the file {name} is missing"
        elif path.stat().st_size != part.bytes:
            yield f"the file {name} has {path.stat().st_size} bytes instead of {part.bytes}"
        elif digest_of(path) != part.sha256:
            yield f"the file {name} was changed"
    wanted = Home(folder).journal.name if manifest.engine == "sqlite" else DUMP
    if wanted not in manifest.files:
        yield f"the file {wanted} is missing"


def _faults(conn: Connection) -> list[Problem]:
    return [Problem(None, None, f"the journal file is damaged: {fault}") for fault in sqlite.faults(conn)]


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
