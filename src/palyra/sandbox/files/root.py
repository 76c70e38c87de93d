"""A folder in which tools and programs work, opened so that they cannot replace it.

The owner or the daemon chose the trusted folder, so links on the way to it are followed. Everything below it can be
replaced at any time by programs that work there. So a root below it is opened name by name, each relative to the folder
before it, and a link is refused. Each use opens it again, and the path that is reported is the one that was walked.

Everything here blocks.
"""

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from palyra.core.errors import Denied, NotFound, Unavailable

MAX_ROOTS = 16
"""How many roots an agent may have. Each takes a file descriptor while a program is started."""
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
"""Opens a file or folder that may not be readable, to refer to it or to go on from there."""
_ON_THE_WAY = _PATH_ONLY | os.O_DIRECTORY
LINK_ERRORS = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)
"""The errors that systems return when a link is opened as a folder. A file gives one of them too."""


class RootOutsideWorkspace(Denied):
    """The root is not inside the workspace, so it was not opened. Use a folder inside it."""


class RootSymlinked(Denied):
    """The root contains a symbolic link, so it was not opened. Replace the link by the folder, or use another root."""


class WorkspaceMissing(NotFound):
    """The workspace folder does not exist. Create it, or set another one in the configuration."""


class FileSystemError(Unavailable):
    """The file system reported an error. Try again."""


class PathNotReadable(Denied):
    """The permissions do not allow Palyra to read this. Change them, or use another file."""


@dataclass(frozen=True, slots=True)
class WorkspaceRoot:
    """The trusted folder itself, or a folder below it by its absolute path."""

    trusted: Path
    below: Path | None = None

    def real_path(self) -> Path:
        """Return the real path of the root: that of the trusted folder, and the names below it."""
        return self.spellings()[-1]

    def spellings(self) -> tuple[Path, ...]:
        """Return the paths by which the root may be named; the last one is the real path."""
        bases = self._bases()
        names = self._names(bases)
        return tuple(base.joinpath(*names) for base in bases)

    def open(self) -> tuple[int, Path]:
        """Return the open folder, which the caller closes, and its path."""
        bases = self._bases()
        names = self._names(bases)
        try:
            folder = os.open(bases[-1], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            return descend(folder, names), bases[-1].joinpath(*names)
        except PermissionError:
            raise PathNotReadable("Palyra may not read the workspace folder. Change its permissions.") from None
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                raise FileSystemError(f"The workspace could not be opened: {error.strerror}. Try again.") from error
            displayed = f"The workspace root {str(self.below)[:200]!r} is not a folder. Create it." if names else None
            raise WorkspaceMissing(displayed) from None

    def _bases(self) -> tuple[Path, ...]:
        real = Path(os.path.realpath(self.trusted))
        return (self.trusted, real) if self.trusted.is_absolute() else (real,)

    def _names(self, bases: tuple[Path, ...]) -> tuple[str, ...]:
        if self.below is None:
            return ()
        base = next((base for base in bases if self.below.is_relative_to(base)), None)
        names = self.below.relative_to(base).parts if base is not None else ("..",)
        if ".." in names:
            raise RootOutsideWorkspace(
                f"The root {str(self.below)[:200]!r} is not inside the workspace {self.trusted}, so it "
                "was not opened. Use the absolute path of a folder inside it, without `..`."
            )
        return names


def descend(folder: int, names: Sequence[str], *, flags: int = FOLDER_FLAGS) -> int:
    """Return the folder that these names lead to, through no link. Closes the first folder; the caller closes this.

    Raises `RootSymlinked` for a link, `RootOutsideWorkspace` for `..`, and `OSError` for what is not a folder.
    """
    for index, name in enumerate(names, 1):
        try:
            if name == "..":
                raise RootOutsideWorkspace
            below = os.open(name, flags if index == len(names) else _ON_THE_WAY, dir_fd=folder)
        except OSError as error:
            if error.errno in LINK_ERRORS and _is_link(folder, name):
                raise RootSymlinked(
                    f"{name[:200]!r} in the path of the root is a symbolic link, so the root was not "
                    "opened. Replace the link by the folder, or use another root."
                ) from None
            raise
        finally:
            os.close(folder)
        folder = below
    return folder


def open_path(path: Path) -> int:
    """Return a descriptor for a file or folder, by its absolute path and through no link.

    Raises as `descend` does.
    """
    descriptor = descend(os.open("/", _ON_THE_WAY), path.parts[1:], flags=_PATH_ONLY)
    if stat.S_ISLNK(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RootSymlinked
    return descriptor


def _is_link(folder: int, name: str) -> bool:
    try:
        os.readlink(name, dir_fd=folder)
    except OSError:
        return False
    return True
