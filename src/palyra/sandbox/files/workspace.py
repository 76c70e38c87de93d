"""The folders in which an agent works, opened so that no path leads out of them.

A path is walked one name at a time, each opened relative to the folder before it and never through a link: a link is
read, and its target is walked by the same rules. So what was checked is what is opened, whatever is moved or
replaced meanwhile. `..` goes back to a folder that was passed, and never above the root. Only plain files and folders
are opened; a pipe or a device could hang or act. What is forbidden (`reserved_files.py`) is refused wherever it occurs.
The roots themselves are opened as `root.py` says.

Not covered: a hard link is the file itself, and what the owner mounts inside a root is inside.

Everything here blocks; async code calls it through `asyncio.to_thread`.
"""

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from palyra.core.errors import Denied, Invalid, NotFound, Unavailable
from palyra.sandbox.files.listing import EntryKind, FolderListing, entries_of
from palyra.sandbox.files.reserved_files import NOTHING, FileIdentity, ReservedFiles, file_identity
from palyra.sandbox.files.root import (
    FOLDER_FLAGS,
    LINK_ERRORS,
    FileSystemError,
    PathNotReadable,
    WorkspaceMissing,
    WorkspaceRoot,
)

MAX_PATH_BYTES = 4096
MAX_DEPTH = 64
"""How deep folders are followed. Each level holds a file descriptor while a path is walked."""
MAX_LINKS = 40

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class PathOutsideWorkspace(Denied):
    """The path is outside the workspace. Use a path inside it, such as notes.txt or docs/plan.md."""


class PathReserved(Denied):
    """This belongs to Palyra itself, whose home no tool may access. Use another path."""


class PathNotFound(NotFound):
    """The file or folder does not exist in the workspace. List the folder to see what there is."""


class PathInvalid(Invalid):
    """The path is not valid: it is empty, too long, too deep or contains a NUL character."""


class PathNotFile(Invalid):
    """This is not a regular file. Name a file."""


class PathNotFolder(Invalid):
    """This is not a folder. Name a folder."""


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """Where a path led: an open folder, and the name in it, None for the folder itself."""

    folder: int
    name: str | None
    root: WorkspaceRoot
    path: str
    """Absolute, with links resolved."""
    missing: bool = False
    """There is nothing of that name, or not even the folder for it."""


class Workspace:
    """Opens files and folders below its roots, and nothing else. Relative paths start at the first root."""

    def __init__(self, roots: tuple[Path | WorkspaceRoot, ...], *, forbidden: ReservedFiles = NOTHING) -> None:
        """A path names a trusted folder: the owner or the daemon chose it."""
        if not roots:
            raise WorkspaceMissing
        self.roots = tuple(WorkspaceRoot(root) if isinstance(root, Path) else root for root in roots)
        self.forbidden = forbidden

    def within(self, roots: tuple[Path, ...]) -> "Workspace":
        """Return the workspace of folders below its first trusted one, with the same files out of reach.

        A root is an absolute path, or one relative to the trusted folder, whose path the caller may not know.
        """
        trusted = self.roots[0].trusted
        return Workspace(tuple(WorkspaceRoot(trusted, trusted / root) for root in roots), forbidden=self.forbidden)

    def root_paths(self) -> tuple[Path, ...]:
        """Return the paths of the roots; raise if one of them cannot be used."""
        return tuple(self._root_path(root) for root in self.roots)

    def open_read(self, path: str) -> BinaryIO:
        """Open a plain file for reading bytes. The caller closes it."""
        with self.reach(path) as at:
            if at.name is None:
                raise PathNotFile(f"{_quoted_path(path)} is a folder. Name a file in it.")
            return open_file(at.folder, at.name, path=path, banned=self.forbidden.marks())

    def list_dir(self, path: str) -> FolderListing:
        """Return what is in a folder. Links are named, not followed."""
        with self.reach(path) as at:
            if at.name is not None:
                raise PathNotFolder(f"{_quoted_path(path)} is a file. Name a folder.")
            with _explain_os_errors(path):
                return entries_of(at.folder)

    def walk(
        self,
        path: str,
        *,
        skip: frozenset[str] = frozenset(),
        requested: Callable[[str], bool] = lambda path: True,
        needless: Callable[[str, int], bool] = lambda path, size: False,
    ) -> Generator[tuple[str, BinaryIO], None, None]:
        """Open the plain files below a folder one after the other, or the one file that the path names.

        Folders named in `skip` are left out, links are not followed, and what cannot be read is skipped. Each file
        comes with its path, which `wanted` may refuse unopened, and is closed when the next is requested. A file whose
        content is not needed, as `needless` says by path and size, comes as an empty one, unopened.
        """
        banned = self.forbidden.marks()
        with self.reach(path) as at:
            if at.name is not None:
                with open_file(at.folder, at.name, path=path, banned=banned) as file:
                    yield path, file
                return
            choice = _FileSelection(skip, requested, needless, banned, frozenset(inode for _, inode in banned))
            yield from _walk_below(at.folder, prefix_of(path), choice=choice, depth=1)

    @contextmanager
    def reach(self, path: str, *, absent: bool = False, make: bool = False) -> Iterator[ResolvedPath]:
        """Open the folder of the path; it is closed afterwards.

        A missing path raises, unless it may be `absent`; with `make` the folders that lead to it are created.
        """
        root, names = self._start(path)
        banned = self.forbidden.marks()
        folder, target_path = self._open_root(root)
        trail = [folder]
        where: list[str] = []
        pending = deque(names)
        links = 0

        def at(*names: str, name: str | None, missing: bool = False) -> ResolvedPath:
            return ResolvedPath(trail[-1], name, root, os.path.join(target_path, *where, *names), missing)

        try:
            while pending:
                name = pending.popleft()
                if name == "..":
                    if len(trail) == 1:
                        raise PathOutsideWorkspace(_outside(path))
                    os.close(trail.pop())
                    where.pop()
                    continue
                with _explain_os_errors(path):
                    target, below, missing = _enter(trail[-1], name, make=make and bool(pending))
                if missing:
                    if not absent or ".." in pending or len(trail) + len(pending) >= MAX_DEPTH:
                        raise PathNotFound(_missing(path))
                    yield at(name, *pending, name=name, missing=True)
                    return
                if below is not None:
                    trail.append(below)
                    where.append(name)
                    _check_depth(trail, path)
                    _require_free(os.fstat(below), path, banned=banned)
                elif target is None:
                    if pending:
                        raise PathNotFound(_missing(path))
                    yield at(name, name=name)
                    return
                else:
                    links += 1
                    if links > MAX_LINKS:
                        raise PathInvalid(
                            f"{_quoted_path(path)} goes through too many symbolic links, perhaps in a circle."
                        )
                    if target.startswith("/"):
                        root, names = self._below_a_root(target, path)
                        _close(trail)
                        where.clear()
                        folder, target_path = self._open_root(root)
                        trail.append(folder)
                    else:
                        names = _names(target)
                    pending.extendleft(reversed(names))
            yield at(name=None)
        finally:
            _close(trail)

    def _start(self, path: str) -> tuple[WorkspaceRoot, list[str]]:
        if "\0" in path:
            raise PathInvalid("The path contains a NUL character. Remove it.")
        try:
            length = len(os.fsencode(path))
        except UnicodeEncodeError:
            raise PathInvalid("The path is not valid Unicode.") from None
        if length > MAX_PATH_BYTES:
            raise PathInvalid(f"The path is longer than {MAX_PATH_BYTES} bytes.")
        if path.startswith("/"):
            return self._below_a_root(path, path)
        return self.roots[0], _names(path)

    def _below_a_root(self, absolute: str, path: str) -> tuple[WorkspaceRoot, list[str]]:
        """Return the innermost root that contains an absolute path, and the rest of the path."""
        names = _names(absolute)
        best: tuple[WorkspaceRoot, list[str]] | None = None
        for root in self.roots:
            # A root may be named through a link and the path by its target, or the other way round.
            for spelling in root.spellings():
                own = _names(str(spelling))
                if names[: len(own)] == own and (best is None or len(names) - len(own) < len(best[1])):
                    best = root, names[len(own) :]
        if best is None:
            raise PathOutsideWorkspace(_outside(path))
        return best

    def _open_root(self, root: WorkspaceRoot) -> tuple[int, Path]:
        folder, path = root.open()
        if self.forbidden.holds(folder):
            os.close(folder)
            raise PathReserved
        return folder, path

    def _root_path(self, root: WorkspaceRoot) -> Path:
        folder, path = self._open_root(root)
        os.close(folder)
        return path


def prefix_of(folder: str) -> str:
    """Return the prefix of the paths of files below a folder, by how the folder was named."""
    return "" if folder in ("", ".", "./") else folder.rstrip("/") + "/"


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _enter(folder: int, name: str, *, make: bool) -> tuple[str | None, int | None, bool]:
    """Return the target if the name is a link, the open folder if it is one, and whether nothing exists."""
    try:
        return None, os.open(name, FOLDER_FLAGS, dir_fd=folder), False
    except FileNotFoundError:
        if not make:
            return None, None, True
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
            os.fsync(folder)
        return None, os.open(name, FOLDER_FLAGS, dir_fd=folder), False
    except OSError as error:
        # The error for a link differs between systems.
        if error.errno not in LINK_ERRORS:
            raise
    try:
        return os.readlink(name, dir_fd=folder), None, False
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return None, None, False


def open_file(folder: int, name: str, *, path: str, banned: frozenset[FileIdentity] = frozenset()) -> BinaryIO:
    """Open a plain file of an open folder for reading. The caller closes it."""
    with _explain_os_errors(path):
        # Checked before, because opening some devices has effects; and after, because it may have been replaced.
        _require_plain(os.stat(name, dir_fd=folder, follow_symlinks=False), path)
        descriptor = os.open(name, _FILE, dir_fd=folder)
        try:
            matching_stat = os.fstat(descriptor)
            _require_plain(matching_stat, path)
            _require_free(matching_stat, path, banned=banned)
        except BaseException:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, "rb")


def _require_plain(matching_stat: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(matching_stat.st_mode):
        raise PathNotFile(f"{_quoted_path(path)} is not a regular file. Name a file.")


def _require_free(matching_stat: os.stat_result, path: str, *, banned: frozenset[FileIdentity]) -> None:
    if file_identity(matching_stat) in banned:
        raise PathReserved(f"{_quoted_path(path)} belongs to Palyra itself, and no tool may access it.")


def _check_depth(trail: list[int], path: str) -> None:
    if len(trail) > MAX_DEPTH:
        raise PathInvalid(f"{_quoted_path(path)} is more than {MAX_DEPTH} folders deep.")


@dataclass(frozen=True, slots=True)
class _FileSelection:
    """Which files below a folder are opened."""

    skip: frozenset[str]
    wanted: Callable[[str], bool]
    needless: Callable[[str, int], bool]
    banned: frozenset[FileIdentity]
    inodes: frozenset[int]
    """The inodes of the banned files. A file with one of them is opened to see what it is."""


def _walk_below(folder: int, prefix: str, *, choice: _FileSelection, depth: int) -> Iterator[tuple[str, BinaryIO]]:
    try:
        entries = entries_of(folder).entries
    except OSError:
        return
    for entry in entries:
        path = prefix + entry.name
        if entry.kind is EntryKind.FILE and choice.wanted(path):
            if entry.inode not in choice.inodes and choice.needless(path, entry.size):
                yield path, BytesIO()
                continue
            try:
                file = open_file(folder, entry.name, path=path, banned=choice.banned)
            except (Denied, Invalid, NotFound, Unavailable):
                continue
            with file:
                yield path, file
        elif entry.kind is EntryKind.FOLDER and entry.name not in choice.skip and depth < MAX_DEPTH:
            try:
                below = os.open(entry.name, FOLDER_FLAGS, dir_fd=folder)
            except OSError:
                continue
            try:
                if file_identity(os.fstat(below)) not in choice.banned:
                    yield from _walk_below(below, path + "/", choice=choice, depth=depth + 1)
            finally:
                os.close(below)


def _close(trail: list[int]) -> None:
    while trail:
        os.close(trail.pop())


@contextmanager
def _explain_os_errors(path: str) -> Iterator[None]:
    """Turn a system error into one that a person or a model can act on."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise PathNotFound(_missing(path)) from None
    except PermissionError:
        raise PathNotReadable(f"{_quoted_path(path)} cannot be read: its permissions do not allow it.") from None
    except OSError as error:
        match error.errno:
            case errno.ENAMETOOLONG:
                raise PathInvalid(f"The name of {_quoted_path(path)} is too long.") from None
            case errno.ELOOP | errno.ENXIO | errno.EMLINK:
                # It was a plain file a moment ago, and is a link or a socket now.
                raise PathNotFile(f"{_quoted_path(path)} is not a regular file. Name a file.") from None
            case _:
                raise FileSystemError(
                    f"{_quoted_path(path)} could not be read: {error.strerror}. Try again."
                ) from error


def _quoted_path(path: str) -> str:
    return repr(path if len(path) <= 200 else path[:200] + "…")


def _outside(path: str) -> str:
    return f"{_quoted_path(path)} is outside the workspace. Use a path inside it, such as notes.txt or docs/plan.md."


def _missing(path: str) -> str:
    return f"There is no {_quoted_path(path)} in the workspace. List the folder to see what there is."
