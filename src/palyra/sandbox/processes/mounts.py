"""Which folders a program sees: the system without its secrets, and the roots of its workspace without Palyra's own.

Roots are opened (`root.py`), and what was opened is what is mounted. Palyra's folders may be inside a root (then they
are covered), and a root may be in the part of them that is reserved for workspaces. Any other overlap with them,
or with the system, is refused. A program that could replace the path to Palyra's folders could put others in their
place: so the folders above a covered one are mounted separately, which keeps them from being renamed, and a link
to one may not be in a root.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from palyra.sandbox.base import RootNotAllowed
from palyra.sandbox.files.root import MAX_ROOTS, WorkspaceRoot

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
"""Programs and libraries."""
SYSTEM_FILES = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/debian_version",
    "/etc/fonts",
    "/etc/java-*/*.cfg",
    "/etc/java-*/*.properties",
    "/etc/java-*/security",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
)
"""Files in /etc that programs need and that are not secret. The rest is left out: a program of root's could read it."""
RESERVED = ("/", "/boot", "/dev", "/etc", "/home", "/proc", "/run", "/sys", "/tmp", "/var", *SYSTEM)
"""No root is one of these or contains one, or is in one that is not shared."""
_SHARED = frozenset({"/", "/home", "/run", "/tmp", "/var"})
"""Those of them that are shared, in which a root may be."""

MAX_LINKS = 40
"""As many as the kernel follows."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder that is mounted, or covered by an empty one."""

    path: Path
    covered: bool = False
    opened: int | None = None
    """The open folder, if it is a root."""
    is_fixed: bool = False
    """It can be read, and not changed."""
    is_trusted: bool = True
    """No program that works in a root can replace it."""


@dataclass(frozen=True, slots=True)
class HiddenFolders:
    """What a program must never see: Palyra's own folders, except the ones reserved for workspaces."""

    folders: tuple[Path, ...] = ()
    open: tuple[Path, ...] = ()
    fixed: tuple[Path, ...] = ()
    """What it may see and must never change: Palyra's installation, by real path."""


def system_files() -> Iterator[str]:
    """Return those of the files in /etc that exist. Blocks."""
    for name in SYSTEM_FILES:
        if "*" in name:
            yield from sorted(glob(name))
        elif os.path.exists(name):
            yield name


def plan_mounts(
    roots: tuple[WorkspaceRoot, ...], private: HiddenFolders, *, keep: Callable[[int], int]
) -> tuple[Mount, ...]:
    """Return the roots and the covers over what is private, outer ones first. Blocks: it opens them.

    Each descriptor is passed to `keep`, which makes sure that it is closed.
    """
    if len(roots) > MAX_ROOTS:
        raise RootNotAllowed(f"A program may use at most {MAX_ROOTS} folders, but there are {len(roots)}. Use fewer.")
    hidden = tuple(real_path(folder) for folder in private.folders)
    links = tuple(link for folder in private.folders for link in links_on_the_way(folder))
    opened = tuple(real_path(folder) for folder in private.open)
    mounts: dict[Path, Mount] = {}
    for root in roots:
        descriptor, path = root.open()
        keep(descriptor)
        _check(path, hidden=hidden, opened=opened)
        _check_ways(path, links)
        is_fixed = any(lies_in(path, folder) for folder in private.fixed)
        mounts[path] = Mount(path, opened=descriptor, is_fixed=is_fixed, is_trusted=root.below is None)
    paths = tuple(mounts)
    for path in paths:
        # One inside another is visible there. A mount inside a folder that programs change would follow their links.
        is_inside = any(path != other and lies_in(path, other) for other in paths)
        if is_inside and not any(lies_in(path, folder) for folder in hidden):
            del mounts[path]
    stored_mounts = [Mount(folder, is_fixed=True) for folder in private.fixed if folder not in paths]
    for mount in (*stored_mounts, *(Mount(folder, covered=True) for folder in hidden)):
        if any(lies_in(mount.path, root) for root in paths):
            above = (above for above in mount.path.parents if any(lies_in(above, root) for root in paths))
            mounts = {target_path: Mount(target_path) for target_path in above} | mounts
            mounts[mount.path] = mount
    return tuple(sorted(mounts.values(), key=lambda mount: len(mount.path.parts)))


def _check(root: Path, *, hidden: tuple[Path, ...], opened: tuple[Path, ...]) -> None:
    for name in RESERVED:
        path = Path(name)
        if lies_in(path, root) or (lies_in(root, path) and name not in _SHARED):
            raise RootNotAllowed(f"{root} belongs to the system. Use another folder for programs to work in.")
    for folder in hidden:
        if lies_in(root, folder) and not any(lies_in(root, path) for path in opened):
            raise RootNotAllowed(f"{root} contains Palyra's own files, which no program may see. Use another folder.")


def _check_ways(root: Path, links: tuple[Path, ...]) -> None:
    for link in links:
        if lies_in(link, root):
            raise RootNotAllowed(
                f"{link} is a symbolic link to Palyra's own folder, and a program that works in {root} "
                "could replace it. Start Palyra with --home and the folder itself, or use another "
                "workspace."
            )


def links_on_the_way(path: Path) -> tuple[Path, ...]:
    """Return the links that a path leads through, each by its real path. Blocks."""
    return followed(path)[1]


def followed(path: Path) -> tuple[Path, tuple[Path, ...]]:
    """Return where a path leads, and the links on the way, each by its real path. Blocks."""
    links: list[Path] = []
    here, names, left = Path("/"), list(reversed(Path(os.path.abspath(path)).parts[1:])), MAX_LINKS
    while names and left:
        target_path = here / names.pop()
        if target_path.name == "..":
            here = here.parent
            continue
        try:
            target = Path(os.readlink(target_path))
        except OSError:
            here = target_path  # not a link
            continue
        links.append(target_path)
        left -= 1
        here = Path("/") if target.is_absolute() else here
        names += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return here.joinpath(*reversed(names)), tuple(links)


def lies_in(path: Path, folder: Path) -> bool:
    """Tell whether a path is a folder, or something within it."""
    return path == folder or folder in path.parents


def real_path(path: Path) -> Path:
    """Return a path without symbolic links."""
    return Path(os.path.realpath(path))
