"""Changes files of a workspace: several at once, all of them or none.

Each new content is first written to a file without a name and made durable. Only then do the names change, each in one
step, so that a reader sees the old file or the new one. If there are several, the files that they replace are kept
under other names until all are changed: if one can no longer be changed, those before it are put back. Folders are
held open from the walk that checked them to the last step, so what was checked is what is changed.

A file is replaced only if it is still the one that was read. Changes by this process are made one after the other. What
another program writes at the exact moment of the replacement cannot be noticed; a file checkpoint holds the content
that was read before.

Everything here blocks; async code calls it through `asyncio.to_thread`.
"""

import errno
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from palyra.core.artifact import MAX_KEPT_BYTES
from palyra.core.errors import Denied, FileChanged, Internal, Invalid
from palyra.sandbox.files.root import FileSystemError
from palyra.sandbox.files.staged_file import NO_LINKS, StagedFile, spare_name
from palyra.sandbox.files.workspace import (
    PathInvalid,
    PathNotFile,
    PathOutsideWorkspace,
    ResolvedPath,
    Workspace,
    open_file,
)

MAX_CHANGES = 100

_committing = threading.Lock()
"""Several runs may work on the same files at once, each in its own thread."""


class FileTooLarge(Invalid):
    """The file is larger than 8 MiB, so its previous version cannot be stored. Change a smaller file."""


class PathNotWritable(Denied):
    """The permissions do not allow Palyra to write there. Change them, or use another path."""


class FileChangeIncomplete(Internal):
    """Only some of the files were changed, and the change could not be undone. `palyra files history` lists all of
    them.
    """


@dataclass(frozen=True, slots=True)
class FileContent:
    """The content of a file, its permissions, and what distinguishes it from another that replaces it."""

    data: bytes
    mode: int
    identity: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class ExistingFile:
    """What exists at a path: a plain file, or nothing yet."""

    root: str
    path: str
    """Absolute, with links resolved."""
    content: FileContent | None


@dataclass(frozen=True, slots=True)
class FileChange:
    """The new content of a file, or None to delete it."""

    existing: ExistingFile
    after: bytes | None
    mode: int | None = None
    """The new permissions; None to keep those it has."""


def read_existing(workspace: Workspace, path: str) -> ExistingFile:
    """Return the current state of a file, before a change. Nothing is changed."""
    if path.endswith(("/", "/.")):
        raise PathNotFile(f"{path[:200]!r} names a folder. Name a file in it.")
    if path.split("/", 1)[0] == "~":
        # Meant as in a shell. A folder of that name would one day be deleted with a command that deletes a home.
        raise PathOutsideWorkspace(
            f"{path[:200]!r} is in a home folder, which is not part of the workspace. Remove the ~."
        )
    with workspace.reach(path, absent=True) as at:
        _require_text(at.path)
        if at.missing:
            return ExistingFile(str(at.root.real_path()), at.path, None)
        if at.name is None:
            raise PathNotFile(f"{at.path} is a folder. Name a file in it.")
        with open_file(at.folder, at.name, path=path, banned=workspace.forbidden.marks()) as file:
            data = file.read(MAX_KEPT_BYTES + 1)
            matching_stat = os.fstat(file.fileno())
        if len(data) > MAX_KEPT_BYTES:
            raise FileTooLarge
        return ExistingFile(
            str(at.root.real_path()),
            at.path,
            FileContent(data, stat.S_IMODE(matching_stat.st_mode) & 0o777, _identity(matching_stat)),
        )


def check_possible(changes: Sequence[FileChange]) -> None:
    """Raise the error that would keep `apply_changes` from making the changes, as far as it can be seen."""
    if len(changes) > MAX_CHANGES:
        raise PathInvalid(f"More than {MAX_CHANGES} files would be changed at once. Change fewer.")
    if any(change.after is not None and len(change.after) > MAX_KEPT_BYTES for change in changes):
        raise FileTooLarge
    for change in changes:
        folder = os.path.dirname(change.existing.path)
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PathNotWritable(
                f"{change.existing.path} cannot be written: the permissions of {folder} do not allow "
                "it, or its file system is read-only. Change that, or use another path."
            )


def apply_changes(workspace: Workspace, changes: Sequence[FileChange]) -> None:
    """Make all changes or none of them."""
    check_possible(changes)
    with ExitStack() as stack:
        prepared = [stack.enter_context(_prepared(workspace, change)) for change in changes]
        # Between the last check of a file and its new name, no other thread of this process changes one.
        with _committing:
            _commit(prepared)
        for one in prepared:
            one.make_durable()


def _commit(prepared: list["_PreparedChange"]) -> None:
    done: list[_PreparedChange] = []
    if len(prepared) > 1:
        for one in prepared:
            with _explain_os_errors(one.path):
                one.keep_way_back()
    try:
        for one in prepared:
            with _explain_os_errors(one.path):
                one.commit()
            done.append(one)
    except BaseException:
        _put_back(done)
        raise


def _put_back(done: list["_PreparedChange"]) -> None:
    try:
        for one in reversed(done):
            one.undo()
    except OSError as error:
        raise FileChangeIncomplete from error


class _PreparedChange:
    """A prepared change: its content on the disk, and the way to undo it."""

    def __init__(self, at: ResolvedPath, change: FileChange) -> None:
        assert at.name is not None
        self.folder = at.folder
        self.path = at.path
        self._name = at.name
        self._before = change.existing.content
        self._fresh = StagedFile(at.folder, change.after, self._mode(change)) if change.after is not None else None
        self._back: str | StagedFile | None = None

    def commit(self) -> None:
        """Change the name in one step, if it still refers to the file that was checked."""
        if self._before is not None:
            self._require_same(self._before)
        if self._fresh is None:
            os.unlink(self._name, dir_fd=self.folder)
        elif self._before is None:
            self._fresh.appear(self._name)
        else:
            self._fresh.replace(self._name)

    def keep_way_back(self) -> None:
        """Keep the old file under another name: itself, which needs no space, or a copy where that is impossible."""
        if self._before is None:
            return
        name = spare_name("old")
        try:
            os.link(self._name, name, src_dir_fd=self.folder, dst_dir_fd=self.folder, follow_symlinks=False)
            self._back = name
        except FileNotFoundError:
            raise FileChanged from None
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            self._back = StagedFile(self.folder, self._before.data, self._before.mode)

    def undo(self) -> None:
        """Undo the change."""
        if isinstance(self._back, StagedFile):
            self._back.replace(self._name)
        elif self._back is not None:
            os.rename(self._back, self._name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            self._back = None
        elif self._before is None:
            os.unlink(self._name, dir_fd=self.folder)

    def make_durable(self) -> None:
        """Make the new name survive a power failure."""
        try:
            os.fsync(self.folder)
        except OSError as error:
            raise FileSystemError(
                f"{self.path} was changed, but the disk reported an error: {error.strerror}."
            ) from error

    def tidy(self) -> None:
        """Remove temporary files."""
        for one in (self._fresh, self._back):
            if isinstance(one, StagedFile):
                one.drop()
            elif one is not None:
                with suppress(OSError):
                    os.unlink(one, dir_fd=self.folder)

    def _require_same(self, before: FileContent) -> None:
        try:
            now = os.stat(self._name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            raise FileChanged from None
        if _identity(now) != before.identity or not stat.S_ISREG(now.st_mode):
            raise FileChanged

    def _mode(self, change: FileChange) -> int | None:
        if change.mode is not None:
            return change.mode
        return self._before.mode if self._before is not None else None


@contextmanager
def _prepared(workspace: Workspace, change: FileChange) -> Iterator[_PreparedChange]:
    path = change.existing.path
    made = _folders_to_make(workspace, path) if change.after is not None else []
    try:
        with workspace.reach(path, absent=True, make=change.after is not None) as at:
            # Not the path that was shown and allowed: a folder was replaced by a link since.
            if at.path != path or at.name is None or at.missing != (change.existing.content is None):
                raise FileChanged
            with _explain_os_errors(path):
                one = _PreparedChange(at, change)
            try:
                yield one
            finally:
                one.tidy()
    except BaseException:
        _remove_folders(workspace, made)
        raise


def _folders_to_make(workspace: Workspace, path: str) -> list[str]:
    """Return the folders above a path that do not exist yet, the innermost first."""
    missing: list[str] = []
    above = os.path.dirname(path)
    while above != "/":
        with workspace.reach(above, absent=True) as at:
            if not at.missing:
                break
        missing.append(above)
        above = os.path.dirname(above)
    return missing


def _remove_folders(workspace: Workspace, folders: list[str]) -> None:
    for folder in folders:
        # A folder that is not empty, or was replaced, belongs to another program by now.
        with suppress(OSError, Denied, Invalid), workspace.reach(os.path.dirname(folder)) as at:
            os.rmdir(os.path.basename(folder), dir_fd=at.folder)


@contextmanager
def _explain_os_errors(path: str) -> Iterator[None]:
    """Turn a system error into one that a person or a model can act on."""
    try:
        yield
    except PermissionError:
        raise PathNotWritable(
            f"{path} cannot be written: its permissions, or those of its folder, do not allow it."
        ) from None
    except OSError as error:
        if error.errno == errno.EROFS:
            raise PathNotWritable(f"{path} is on a read-only file system.") from None
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FileSystemError(f"The disk of {path} is full. Free some space, then try again.") from error
        if error.errno == errno.ENAMETOOLONG:
            raise PathInvalid(f"The name of {path} is too long.") from None
        raise FileSystemError(f"{path} could not be written: {error.strerror}. Nothing was changed.") from error


def _require_text(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise PathInvalid("The path contains bytes that are not valid text. Rename the file first.") from None


def _identity(matching_stat: os.stat_result) -> tuple[int, int, int, int]:
    return matching_stat.st_dev, matching_stat.st_ino, matching_stat.st_size, matching_stat.st_mtime_ns
