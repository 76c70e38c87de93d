"""Changes to the files of a workspace: several at once, all of them or none.

Each new content is first written to a file without a name and made durable. Only then do the names change, each in one
step, so that a reader sees the old file or the new one. If there are several, the files that they replace are kept
under other names until all are changed: when one cannot be changed any more, those before it are put back. Folders are
held open from the walk that checked them to the last step, so what was checked is what is changed.

A process that is killed while it writes leaves nothing behind, since a file without a name ends with the process. File
systems that lack such files get one with a name of ours beside the place, which a kill may leave there.

A file is replaced only if it still is what was looked at. Changes by this process are made one after the other. What
another program writes in the very moment of the replacement cannot be noticed; a file checkpoint holds what was there
when it was looked at.

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
from palyra.core.errors import Broken, Conflict, Denied, Invalid
from palyra.sandbox.root import FilesUnavailable
from palyra.sandbox.workspace import (
    NotAFile,
    OutsideWorkspace,
    PathMalformed,
    Reached,
    Workspace,
    open_file,
)

MAX_CHANGES = 100
NEW_FILE_MODE = 0o666
"""Before the daemon's own mask is applied."""

_committing = threading.Lock()
"""Runs work on the same files at once, each in a thread of its own."""

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_DESCRIPTORS = "/proc/self/fd"


class FileTooLarge(Invalid):
    """The file is larger than what can be kept to be brought back: 8 MiB. Change a smaller one."""


class FileChangedMeanwhile(Conflict):
    """The file is not what it was when the change was worked out. Nothing was changed; read it and try again."""


class PathUnwritable(Denied):
    """The file system does not let Palyra write there. Change the permissions, or use another path."""


class ChangeHalfDone(Broken):
    """Some files were changed, others not, and those could not be put back. `palyra files history` has all of them."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a file holds, its permissions, and what tells it from another that takes its place."""

    data: bytes
    mode: int
    seen: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Found:
    """What stands at a path: a plain file, or nothing yet."""

    root: str
    path: str
    """Absolute, links followed."""
    content: Content | None


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of a file: other content, or None for no file any more."""

    found: Found
    after: bytes | None
    mode: int | None = None
    """The permissions it gets; None for those it has."""


def look(workspace: Workspace, path: str) -> Found:
    """Return what a change would begin with. Nothing is changed."""
    if path.endswith(("/", "/.")):
        raise NotAFile(f"{path[:200]!r} names a folder. Name a file in it.")
    if path.split("/", 1)[0] == "~":
        # Meant as shells mean it. A folder of that name would be deleted one day with a command that deletes a home.
        raise OutsideWorkspace(
            f"{path[:200]!r} is meant in a home, which is no part of the workspace. Leave out the ~."
        )
    with workspace.reach(path, absent=True) as at:
        _require_text(at.path)
        if at.missing:
            return Found(str(at.root.real_path()), at.path, None)
        if at.name is None:
            raise NotAFile(f"{at.path} is a folder. Name a file in it.")
        with open_file(at.folder, at.name, path=path, banned=workspace.forbidden.marks()) as file:
            data = file.read(MAX_KEPT_BYTES + 1)
            found = os.fstat(file.fileno())
        if len(data) > MAX_KEPT_BYTES:
            raise FileTooLarge
        return Found(
            str(at.root.real_path()), at.path, Content(data, stat.S_IMODE(found.st_mode) & 0o777, _seen(found))
        )


def check_possible(changes: Sequence[Change]) -> None:
    """Raise what would keep `carry_out` from making the changes, as far as it can be seen."""
    if len(changes) > MAX_CHANGES:
        raise PathMalformed(f"More than {MAX_CHANGES} files are changed at once. Change fewer.")
    if any(change.after is not None and len(change.after) > MAX_KEPT_BYTES for change in changes):
        raise FileTooLarge
    for change in changes:
        folder = os.path.dirname(change.found.path)
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PathUnwritable(
                f"{change.found.path} may not be written: the permissions of {folder} forbid it, or its file system is"
                " read-only. Change that, or use another path."
            )


def carry_out(workspace: Workspace, changes: Sequence[Change]) -> None:
    """Make all changes or none of them."""
    check_possible(changes)
    with ExitStack() as stack:
        prepared = [stack.enter_context(_prepared(workspace, change)) for change in changes]
        # Between the last look at a file and its new name nobody else of this process changes one.
        with _committing:
            _commit(prepared)
        for one in prepared:
            one.make_durable()


def _commit(prepared: list["_Prepared"]) -> None:
    done: list[_Prepared] = []
    if len(prepared) > 1:
        for one in prepared:
            with _told(one.path):
                one.keep_way_back()
    try:
        for one in prepared:
            with _told(one.path):
                one.commit()
            done.append(one)
    except BaseException:
        _put_back(done)
        raise


def _put_back(done: list["_Prepared"]) -> None:
    try:
        for one in reversed(done):
            one.undo()
    except OSError as error:
        raise ChangeHalfDone from error


class _Written:
    """Content that is on the disk, and has no name yet."""

    def __init__(self, folder: int, data: bytes, mode: int | None) -> None:
        self._folder = folder
        self._data = data
        self._mode = mode
        self._name: str | None = None
        self._unnamed = _open_unnamed(folder, _first_mode(mode))
        try:
            if self._unnamed is not None:
                self._fill(self._unnamed)
            else:
                self._write_named()
        except BaseException:
            self.drop()
            raise

    def appear(self, name: str) -> None:
        """Take a name, and never another's place."""
        try:
            self._link(name)
        except FileExistsError:
            raise FileChangedMeanwhile from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # A file system without links: looked at right before, which is all that it offers.
            with suppress(FileNotFoundError):
                os.stat(name, dir_fd=self._folder, follow_symlinks=False)
                raise FileChangedMeanwhile from None
            self.replace(name)

    def replace(self, name: str) -> None:
        """Take the place of the file of that name."""
        if self._name is None:
            self._take_spare_name()
        os.rename(self._name or "", name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._name = None

    def drop(self) -> None:
        """Remove what has not taken a place."""
        if self._unnamed is not None:
            os.close(self._unnamed)
            self._unnamed = None
        if self._name is not None:
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder)
            self._name = None

    def _take_spare_name(self) -> None:
        """Take a name for the moment until the rename, which needs one."""
        spare = _spare_name("new")
        try:
            self._link(spare)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._write_named()
        else:
            self._name = spare

    def _link(self, name: str) -> None:
        source = f"{_DESCRIPTORS}/{self._unnamed}" if self._name is None else self._name
        how = self._name is None
        os.link(source, name, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=how)

    def _write_named(self) -> None:
        self._name = _spare_name("new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._name, flags, _first_mode(self._mode), dir_fd=self._folder)
        try:
            self._fill(descriptor)
        finally:
            os.close(descriptor)

    def _fill(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(self._data)
        if self._mode is not None:
            os.fchmod(descriptor, self._mode)
        os.fsync(descriptor)


class _Prepared:
    """A change that is ready: its content on the disk, and the way back."""

    def __init__(self, at: Reached, change: Change) -> None:
        assert at.name is not None
        self.folder = at.folder
        self.path = at.path
        self._name = at.name
        self._before = change.found.content
        self._fresh = _Written(at.folder, change.after, self._mode(change)) if change.after is not None else None
        self._back: str | _Written | None = None

    def commit(self) -> None:
        """Change the name in one step, if it still stands for what was looked at."""
        if self._before is not None:
            self._require_same(self._before)
        if self._fresh is None:
            os.unlink(self._name, dir_fd=self.folder)
        elif self._before is None:
            self._fresh.appear(self._name)
        else:
            self._fresh.replace(self._name)

    def keep_way_back(self) -> None:
        """Keep the file under another name: the file itself, which needs no room, or a copy where that cannot be."""
        if self._before is None:
            return
        name = _spare_name("old")
        try:
            os.link(self._name, name, src_dir_fd=self.folder, dst_dir_fd=self.folder, follow_symlinks=False)
            self._back = name
        except FileNotFoundError:
            raise FileChangedMeanwhile from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self._back = _Written(self.folder, self._before.data, self._before.mode)

    def undo(self) -> None:
        """Take the change back."""
        if isinstance(self._back, _Written):
            self._back.replace(self._name)
        elif self._back is not None:
            os.rename(self._back, self._name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            self._back = None
        elif self._before is None:
            os.unlink(self._name, dir_fd=self.folder)

    def make_durable(self) -> None:
        """See to it that the new name outlives a power failure."""
        try:
            os.fsync(self.folder)
        except OSError as error:
            raise FilesUnavailable(f"{self.path} is changed, but the disk gave an error: {error.strerror}.") from error

    def tidy(self) -> None:
        """Remove what was only there to get ready."""
        for one in (self._fresh, self._back):
            if isinstance(one, _Written):
                one.drop()
            elif one is not None:
                with suppress(OSError):
                    os.unlink(one, dir_fd=self.folder)

    def _require_same(self, before: Content) -> None:
        try:
            now = os.stat(self._name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            raise FileChangedMeanwhile from None
        if _seen(now) != before.seen or not stat.S_ISREG(now.st_mode):
            raise FileChangedMeanwhile

    def _mode(self, change: Change) -> int | None:
        if change.mode is not None:
            return change.mode
        return self._before.mode if self._before is not None else None


def _first_mode(mode: int | None) -> int:
    return NEW_FILE_MODE if mode is None else 0o600


def _spare_name(ending: str) -> str:
    return f".palyra-{os.urandom(8).hex()}.{ending}"


def _open_unnamed(folder: int, mode: int) -> int | None:
    """Open a file that has no name, and is gone with the process unless it is given one; None where there is none."""
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir(_DESCRIPTORS):
        return None
    try:
        return os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, mode, dir_fd=folder)
    except OSError as error:
        if error.errno in _NO_UNNAMED_FILES:
            return None
        raise


@contextmanager
def _prepared(workspace: Workspace, change: Change) -> Iterator[_Prepared]:
    path = change.found.path
    made = _folders_to_make(workspace, path) if change.after is not None else []
    try:
        with workspace.reach(path, absent=True, make=change.after is not None) as at:
            # Another path than the one that was shown and allowed: a folder was replaced by a link since.
            if at.path != path or at.name is None or at.missing != (change.found.content is None):
                raise FileChangedMeanwhile
            with _told(path):
                one = _Prepared(at, change)
            try:
                yield one
            finally:
                one.tidy()
    except BaseException:
        _remove_folders(workspace, made)
        raise


def _folders_to_make(workspace: Workspace, path: str) -> list[str]:
    """Return the folders above a path that are not there yet, the innermost first."""
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
        # One that is not empty, or was replaced, is somebody else's by now.
        with suppress(OSError, Denied, Invalid), workspace.reach(os.path.dirname(folder)) as at:
            os.rmdir(os.path.basename(folder), dir_fd=at.folder)


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Turn what the system says into what a person or a model can act on."""
    try:
        yield
    except PermissionError:
        raise PathUnwritable(f"{path} may not be written: its permissions, or its folder's, forbid it.") from None
    except OSError as error:
        if error.errno == errno.EROFS:
            raise PathUnwritable(f"{path} lies on a file system that can not be written.") from None
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FilesUnavailable(f"The disk that holds {path} is full. Free some space, then try again.") from error
        if error.errno == errno.ENAMETOOLONG:
            raise PathMalformed(f"{path} has a name that is too long.") from None
        raise FilesUnavailable(f"{path} could not be written: {error.strerror}. Nothing was changed.") from error


def _require_text(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise PathMalformed("The path holds bytes that are no valid text. Rename the file first.") from None


def _seen(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
