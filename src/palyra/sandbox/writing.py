"""Changes to the files of a workspace: several at once, all of them or none.

Each new content is first written to a file of its own beside its place and made durable; so is the way back, if there
are several. Only then do the names change, each in one step, so that a reader sees the old file or the new one. When
one of them can not be changed any more, those before it are put back. Folders are held open from the walk that checked
them to the last step, so what was checked is what is changed.

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


def carry_out(workspace: Workspace, changes: Sequence[Change]) -> None:
    """Make all changes or none of them."""
    if len(changes) > MAX_CHANGES:
        raise PathMalformed(f"More than {MAX_CHANGES} files are changed at once. Change fewer.")
    with ExitStack() as stack:
        several = len(changes) > 1
        prepared = [stack.enter_context(_prepared(workspace, change, several=several)) for change in changes]
        # Between the last look at a file and its new name nobody else of this process changes one.
        with _committing:
            _commit(prepared)
        for one in prepared:
            one.make_durable()


def _commit(prepared: list["_Prepared"]) -> None:
    done: list[_Prepared] = []
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


class _Prepared:
    """A change that is ready: its content beside its place, and the way back."""

    def __init__(self, at: Reached, change: Change, *, several: bool) -> None:
        assert at.name is not None
        self.folder = at.folder
        self.path = at.path
        self._name = at.name
        self._before = change.found.content
        self._fresh: str | None = None
        self._back: str | None = None
        try:
            if change.after is not None:
                self._fresh = self._write(change.after, self._mode(change))
            if several and self._before is not None:
                self._back = self._way_back(self._before)
        except BaseException:
            self.tidy()
            raise

    def commit(self) -> None:
        """Change the name in one step, if it still stands for what was looked at."""
        if self._before is not None:
            self._require_same(self._before)
        if self._fresh is None:
            os.unlink(self._name, dir_fd=self.folder)
        elif self._before is None:
            self._appear(self._fresh)
        else:
            os.rename(self._fresh, self._name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            self._fresh = None

    def undo(self) -> None:
        """Take the change back."""
        if self._back is not None:
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
        for name in (self._fresh, self._back):
            if name is not None:
                with suppress(OSError):
                    os.unlink(name, dir_fd=self.folder)

    def _require_same(self, before: Content) -> None:
        try:
            now = os.stat(self._name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            raise FileChangedMeanwhile from None
        if _seen(now) != before.seen or not stat.S_ISREG(now.st_mode):
            raise FileChangedMeanwhile

    def _appear(self, fresh: str) -> None:
        """Give a new file its name, and never take another's place."""
        try:
            os.link(fresh, self._name, src_dir_fd=self.folder, dst_dir_fd=self.folder, follow_symlinks=False)
        except FileExistsError:
            raise FileChangedMeanwhile from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # A file system without links: looked at right before, which is all that it offers.
            with suppress(FileNotFoundError):
                os.stat(self._name, dir_fd=self.folder, follow_symlinks=False)
                raise FileChangedMeanwhile from None
            os.rename(fresh, self._name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            self._fresh = None

    def _mode(self, change: Change) -> int | None:
        if change.mode is not None:
            return change.mode
        return self._before.mode if self._before is not None else None

    def _write(self, data: bytes, mode: int | None) -> str:
        name = f".palyra-{os.urandom(8).hex()}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, NEW_FILE_MODE if mode is None else 0o600, dir_fd=self.folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                os.unlink(name, dir_fd=self.folder)
            raise
        return name

    def _way_back(self, before: Content) -> str:
        """Keep the file under another name: the file itself, which needs no room, or a copy where that can not be."""
        name = f".palyra-{os.urandom(8).hex()}.old"
        try:
            os.link(self._name, name, src_dir_fd=self.folder, dst_dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            raise FileChangedMeanwhile from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._write(before.data, before.mode)
        return name


@contextmanager
def _prepared(workspace: Workspace, change: Change, *, several: bool) -> Iterator[_Prepared]:
    path = change.found.path
    if change.after is not None and len(change.after) > MAX_KEPT_BYTES:
        raise FileTooLarge
    made = _folders_to_make(workspace, path) if change.after is not None else []
    try:
        with workspace.reach(path, absent=True, make=change.after is not None) as at:
            # Another path than the one that was shown and allowed: a folder was replaced by a link since.
            if at.path != path or at.name is None or at.missing != (change.found.content is None):
                raise FileChangedMeanwhile
            with _told(path):
                one = _Prepared(at, change, several=several)
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
