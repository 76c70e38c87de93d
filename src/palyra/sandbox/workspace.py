"""The folders that an agent works in, opened so that no path leads out of them.

A path is walked one name at a time, each opened relative to the folder before it and never through a link: a link is
read, and what it says is walked by the same rules. So what was checked is what is opened, whatever is moved or
replaced meanwhile. `..` goes back to a folder that was passed, and never above the root. Only plain files and folders
are opened; a pipe or a device could hang or act. What is forbidden (`forbidden.py`) is refused wherever it turns up.
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
from palyra.sandbox.forbidden import NOTHING, Forbidden, Mark, mark_of
from palyra.sandbox.listing import Kind, Listing, entries_of
from palyra.sandbox.root import FOLDER_FLAGS, LINK_ERRORS, FilesUnavailable, PathUnreadable, Root, WorkspaceMissing

MAX_PATH_BYTES = 4096
MAX_DEPTH = 64
"""How deep folders are followed. Each level holds a file descriptor while a path is walked."""
MAX_LINKS = 40

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class OutsideWorkspace(Denied):
    """The path leads out of the workspace. Use a path inside it, such as notes.txt or docs/plan.md."""


class PalyrasOwn(Denied):
    """This belongs to Palyra itself, whose home is out of every tool's reach. Use another path."""


class PathNotFound(NotFound):
    """There is no such file or folder in the workspace. List the folder to see what there is."""


class PathMalformed(Invalid):
    """The path can not be used: it is empty, too long, too deep or holds a NUL."""


class NotAFile(Invalid):
    """This is no plain file. Name a file."""


class NotAFolder(Invalid):
    """This is no folder. Name a folder."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a path led: an open folder, and the name in it, None if the folder itself is meant."""

    folder: int
    name: str | None
    root: Root
    path: str
    """Absolute, links followed."""
    missing: bool = False
    """There is nothing of that name, or not even the folder that it would lie in."""


class Workspace:
    """Gives files and folders below its roots, and nothing else. Relative paths start at the first root."""

    def __init__(self, roots: tuple[Path | Root, ...], *, forbidden: Forbidden = NOTHING) -> None:
        """A path is that of a trusted folder: the word of the owner or the daemon."""
        if not roots:
            raise WorkspaceMissing
        self.roots = tuple(Root(root) if isinstance(root, Path) else root for root in roots)
        self.forbidden = forbidden

    def within(self, roots: tuple[Path, ...]) -> "Workspace":
        """Return the workspace of folders below its first trusted one, with the same things out of reach.

        A root is an absolute path, or one relative to the trusted folder: not everyone knows where that is.
        """
        trusted = self.roots[0].trusted
        return Workspace(tuple(Root(trusted, trusted / root) for root in roots), forbidden=self.forbidden)

    def places(self) -> tuple[Path, ...]:
        """Return where the roots are; raise if one of them cannot be used."""
        return tuple(self._place(root) for root in self.roots)

    def open_read(self, path: str) -> BinaryIO:
        """Open a plain file for reading bytes. The caller closes it."""
        with self.reach(path) as at:
            if at.name is None:
                raise NotAFile(f"{_shown(path)} is a folder. Name a file in it.")
            return open_file(at.folder, at.name, path=path, banned=self.forbidden.marks())

    def list_dir(self, path: str) -> Listing:
        """Return what is in a folder. Links are named, not followed."""
        with self.reach(path) as at:
            if at.name is not None:
                raise NotAFolder(f"{_shown(path)} is a file. Name a folder.")
            with _told(path):
                return entries_of(at.folder)

    def walk(
        self,
        path: str,
        *,
        skip: frozenset[str] = frozenset(),
        wanted: Callable[[str], bool] = lambda path: True,
        needless: Callable[[str, int], bool] = lambda path, size: False,
    ) -> Generator[tuple[str, BinaryIO], None, None]:
        """Open the plain files below a folder one after the other, or the one file that the path names.

        Folders named in `skip` are left out, links are not followed, and what can not be read is passed over. Each file
        comes with its path, which `wanted` may refuse unopened, and is closed when the next is asked for. One of which
        `needless` says, by path and size, that nobody needs what is in it comes as an empty one, unopened.
        """
        banned = self.forbidden.marks()
        with self.reach(path) as at:
            if at.name is not None:
                with open_file(at.folder, at.name, path=path, banned=banned) as file:
                    yield path, file
                return
            choice = _Choice(skip, wanted, needless, banned, frozenset(inode for _, inode in banned))
            yield from _walk_below(at.folder, prefix_of(path), choice=choice, depth=1)

    @contextmanager
    def reach(self, path: str, *, absent: bool = False, make: bool = False) -> Iterator[Reached]:
        """Open the folder of the path; it is closed afterwards.

        What is not there raises, unless it may be `absent`; with `make` the folders that lead to it are made.
        """
        root, names = self._start(path)
        banned = self.forbidden.marks()
        folder, place = self._open_root(root)
        trail = [folder]
        where: list[str] = []
        pending = deque(names)
        links = 0

        def at(*names: str, name: str | None, missing: bool = False) -> Reached:
            return Reached(trail[-1], name, root, os.path.join(place, *where, *names), missing)

        try:
            while pending:
                name = pending.popleft()
                if name == "..":
                    if len(trail) == 1:
                        raise OutsideWorkspace(_outside(path))
                    os.close(trail.pop())
                    where.pop()
                    continue
                with _told(path):
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
                        raise PathMalformed(f"{_shown(path)} goes through too many links, perhaps in a circle.")
                    if target.startswith("/"):
                        root, names = self._below_a_root(target, path)
                        _close(trail)
                        where.clear()
                        folder, place = self._open_root(root)
                        trail.append(folder)
                    else:
                        names = _names(target)
                    pending.extendleft(reversed(names))
            yield at(name=None)
        finally:
            _close(trail)

    def _start(self, path: str) -> tuple[Root, list[str]]:
        if "\0" in path:
            raise PathMalformed("The path holds a NUL character. Remove it.")
        try:
            length = len(os.fsencode(path))
        except UnicodeEncodeError:
            raise PathMalformed("The path is no valid Unicode.") from None
        if length > MAX_PATH_BYTES:
            raise PathMalformed(f"The path is longer than {MAX_PATH_BYTES} bytes.")
        if path.startswith("/"):
            return self._below_a_root(path, path)
        return self.roots[0], _names(path)

    def _below_a_root(self, absolute: str, path: str) -> tuple[Root, list[str]]:
        """Return the innermost root that an absolute path lies in, and the rest of the path."""
        names = _names(absolute)
        best: tuple[Root, list[str]] | None = None
        for root in self.roots:
            # A root may itself be named by way of a link, and the path by where that leads, or the other way round.
            for spelling in root.spellings():
                own = _names(str(spelling))
                if names[: len(own)] == own and (best is None or len(names) - len(own) < len(best[1])):
                    best = root, names[len(own) :]
        if best is None:
            raise OutsideWorkspace(_outside(path))
        return best

    def _open_root(self, root: Root) -> tuple[int, Path]:
        folder, place = root.open()
        if self.forbidden.holds(folder):
            os.close(folder)
            raise PalyrasOwn
        return folder, place

    def _place(self, root: Root) -> Path:
        folder, place = self._open_root(root)
        os.close(folder)
        return place


def prefix_of(folder: str) -> str:
    """Return what the paths of files below a folder begin with, by how the folder was named."""
    return "" if folder in ("", ".", "./") else folder.rstrip("/") + "/"


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _enter(folder: int, name: str, *, make: bool) -> tuple[str | None, int | None, bool]:
    """Return the target if the name is a link, the open folder if it is one, and whether there is nothing at all."""
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
        # What a link gives here differs between systems.
        if error.errno not in LINK_ERRORS:
            raise
    try:
        return os.readlink(name, dir_fd=folder), None, False
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return None, None, False


def open_file(folder: int, name: str, *, path: str, banned: frozenset[Mark] = frozenset()) -> BinaryIO:
    """Open a plain file of an open folder for reading. The caller closes it."""
    with _told(path):
        # Looked at before, because to open some devices is to act; and after, because it may have been replaced.
        _require_plain(os.stat(name, dir_fd=folder, follow_symlinks=False), path)
        descriptor = os.open(name, _FILE, dir_fd=folder)
        try:
            found = os.fstat(descriptor)
            _require_plain(found, path)
            _require_free(found, path, banned=banned)
        except BaseException:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, "rb")


def _require_plain(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotAFile(f"{_shown(path)} is no plain file. Name a file.")


def _require_free(found: os.stat_result, path: str, *, banned: frozenset[Mark]) -> None:
    if mark_of(found) in banned:
        raise PalyrasOwn(f"{_shown(path)} belongs to Palyra itself and is out of every tool's reach.")


def _check_depth(trail: list[int], path: str) -> None:
    if len(trail) > MAX_DEPTH:
        raise PathMalformed(f"{_shown(path)} is more than {MAX_DEPTH} folders deep.")


@dataclass(frozen=True, slots=True)
class _Choice:
    """What of the files below a folder is opened."""

    skip: frozenset[str]
    wanted: Callable[[str], bool]
    needless: Callable[[str, int], bool]
    banned: frozenset[Mark]
    inodes: frozenset[int]
    """Those of what is banned. Whatever has one of them is opened to see what it is."""


def _walk_below(folder: int, prefix: str, *, choice: _Choice, depth: int) -> Iterator[tuple[str, BinaryIO]]:
    try:
        entries = entries_of(folder).entries
    except OSError:
        return
    for entry in entries:
        path = prefix + entry.name
        if entry.kind is Kind.FILE and choice.wanted(path):
            if entry.inode not in choice.inodes and choice.needless(path, entry.size):
                yield path, BytesIO()
                continue
            try:
                file = open_file(folder, entry.name, path=path, banned=choice.banned)
            except (Denied, Invalid, NotFound, Unavailable):
                continue
            with file:
                yield path, file
        elif entry.kind is Kind.FOLDER and entry.name not in choice.skip and depth < MAX_DEPTH:
            try:
                below = os.open(entry.name, FOLDER_FLAGS, dir_fd=folder)
            except OSError:
                continue
            try:
                if mark_of(os.fstat(below)) not in choice.banned:
                    yield from _walk_below(below, path + "/", choice=choice, depth=depth + 1)
            finally:
                os.close(below)


def _close(trail: list[int]) -> None:
    while trail:
        os.close(trail.pop())


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Turn what the system says into what a person or a model can act on."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise PathNotFound(_missing(path)) from None
    except PermissionError:
        raise PathUnreadable(f"{_shown(path)} may not be read: its permissions forbid it.") from None
    except OSError as error:
        match error.errno:
            case errno.ENAMETOOLONG:
                raise PathMalformed(f"{_shown(path)} has a name that is too long.") from None
            case errno.ELOOP | errno.ENXIO | errno.EMLINK:
                # It was a plain file a moment ago, and is a link or a socket now.
                raise NotAFile(f"{_shown(path)} is no plain file. Name a file.") from None
            case _:
                raise FilesUnavailable(f"{_shown(path)} could not be read: {error.strerror}. Try again.") from error


def _shown(path: str) -> str:
    return repr(path if len(path) <= 200 else path[:200] + "…")


def _outside(path: str) -> str:
    return f"{_shown(path)} leads out of the workspace. Use a path inside it, such as notes.txt or docs/plan.md."


def _missing(path: str) -> str:
    return f"There is no {_shown(path)} in the workspace. List the folder to see what there is."
