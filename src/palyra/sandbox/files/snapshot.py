"""Records what is below folders at one moment, to find later what a program has changed there.

An entry is compared by device, inode, size and change time. The kernel sets the change time; no program can set it
back. Folders are compared by path and inode: the contents of one that was moved are new at their new path. Folders are
opened one below the other and never through a link. Everything here blocks.
"""

import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from palyra.sandbox.files.root import FOLDER_FLAGS

MAX_ENTRIES = 200_000
MAX_SECONDS = 10.0
MAX_DEPTH = 100
"""Each level holds a file descriptor."""
TICK_SECONDS = 0.02
"""Kernels stamp files by a clock that moves in steps of up to 10 ms: two changes within a step look like one."""
_SECOND = 1_000_000_000
_ON_THE_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Folders above may be enterable for users who may not list them."""

_State = tuple[int, ...]
"""What changes when an entry changes: three numbers for a folder, one for everything else."""
_Listing = dict[str, _State]
_UNSURE = (0,)


class SnapshotTooLarge(Exception):
    """There are more entries than are looked at."""


@dataclass(frozen=True, slots=True)
class FolderSnapshot:
    """The entries of every folder below some folders, by path."""

    roots: tuple[str, ...]
    folders: dict[str, _Listing | _State]


@dataclass(slots=True)
class FolderChanges:
    """What has changed, by absolute path."""

    entries: list[str] = field(default_factory=list)
    """Files and links that are new or changed, and folders that are new."""
    new_folders: list[str] = field(default_factory=list)
    """Those of them that are in a folder that existed before."""
    listings: list[str] = field(default_factory=list)
    """Folders with changed extended attributes, or with a new name below them that is not valid text."""
    hidden: list[str] = field(default_factory=list)
    """Folders that cannot be read, and may have been readable before."""


def take(roots: tuple[str, ...]) -> FolderSnapshot:
    """Record what is below some folders, so that every later change can be found; raise `SnapshotTooLarge`."""
    folders = dict(_walk_all(roots))
    time.sleep(TICK_SECONDS)
    return FolderSnapshot(roots, folders)


def changes_since(before: FolderSnapshot) -> FolderChanges:
    """Return what has changed; raise `SnapshotTooLarge` or `OSError` if that cannot be determined."""
    folder_changes = FolderChanges(listings=[root for root in before.roots if _has_attributes(root)])
    for path, now in _walk_all(before.roots):
        was = before.folders.get(path)
        if now == was and not (isinstance(now, dict) and _UNSURE in now.values()):
            continue
        if not is_text(path):
            folder_changes.listings.append(_text_above(path))
        elif isinstance(now, tuple):
            folder_changes.hidden.append(path)
        else:
            _compare(path, now, was if isinstance(was, dict) else None, folder_changes)
    return folder_changes


def _compare(path: str, now: _Listing, was: _Listing | None, folder_changes: FolderChanges) -> None:
    for name, state in now.items():
        entry, earlier, is_folder = f"{path}/{name}", (was or {}).get(name, ()), len(state) > 1
        if is_folder and earlier[:-1] == state[:-1]:
            if earlier != state and _has_attributes(entry):
                folder_changes.listings.append(entry)
        elif earlier == state != _UNSURE:
            continue
        elif not is_text(name):
            folder_changes.listings.append(path)
        else:
            folder_changes.entries.append(entry)
            if is_folder and was is not None:
                folder_changes.new_folders.append(entry)


def outermost(folders: Iterable[str]) -> tuple[str, ...]:
    """Return the folders that are inside none of the others."""
    stored: list[str] = []
    for folder in sorted(set(folders), key=lambda path: path.split("/")):
        if not stored or not is_within(folder, stored[-1]):
            stored.append(folder)
    return tuple(stored)


def is_within(path: str, folder: str) -> bool:
    """Tell whether a path is a folder, or is inside it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


@dataclass(slots=True)
class _Budget:
    entries: int = field(default_factory=lambda: MAX_ENTRIES)
    until: float = field(default_factory=lambda: time.monotonic() + MAX_SECONDS)

    def spend(self, entries: int) -> None:
        self.entries -= entries
        if self.entries < 0 or time.monotonic() > self.until:
            raise SnapshotTooLarge


def _walk_all(roots: tuple[str, ...]) -> Iterator[tuple[str, _Listing | _State]]:
    """Yield every folder with its entries; with its own state, if it cannot be read."""
    budget = _Budget()
    for root in roots:
        folder = _open(root)
        try:
            yield from _walk(folder, root.rstrip("/"), budget, depth=1)
        finally:
            os.close(folder)


def _open(root: str) -> int:
    """Open a folder by its real path: a link that replaced a name on the way is not followed."""
    names = [name for name in root.split("/") if name]
    folder = os.open("/", FOLDER_FLAGS if not names else _ON_THE_WAY)
    for index, name in enumerate(names, 1):
        try:
            below = os.open(name, FOLDER_FLAGS if index == len(names) else _ON_THE_WAY, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder


def _walk(folder: int, path: str, budget: _Budget, *, depth: int) -> Iterator[tuple[str, _Listing | _State]]:
    listing: _Listing = {}
    with os.scandir(folder) as entries:
        for index, entry in enumerate(entries, 1):
            if index % 1000 == 0:
                budget.spend(1000)
            try:
                listing[entry.name] = _state(entry.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue  # deleted since it was listed
    budget.spend(len(listing) % 1000)
    yield path, listing
    for name, state in listing.items():
        if len(state) == 1:
            continue
        try:
            below = os.open(name, FOLDER_FLAGS, dir_fd=folder) if depth < MAX_DEPTH else None
        except FileNotFoundError:
            continue
        except OSError:
            below = None
        if below is None:
            yield f"{path}/{name}", state
            continue
        try:
            yield from _walk(below, f"{path}/{name}", budget, depth=depth + 1)
        finally:
            os.close(below)


def _state(matching_stat: os.stat_result) -> _State:
    if stat.S_ISDIR(matching_stat.st_mode):
        return matching_stat.st_dev, matching_stat.st_ino, matching_stat.st_ctime_ns
    now = time.clock_gettime_ns(time.CLOCK_REALTIME)
    if not matching_stat.st_ctime_ns % _SECOND and now - matching_stat.st_ctime_ns < 3 * _SECOND:
        # The file system's time is in seconds, and the current second is not over.
        return _UNSURE
    return (hash((matching_stat.st_dev, matching_stat.st_ino, matching_stat.st_size, matching_stat.st_ctime_ns)) or 1,)


def _has_attributes(folder: str) -> bool:
    try:
        return any(name.startswith("user.") for name in os.listxattr(folder, follow_symlinks=False))
    except OSError:
        return False


def _text_above(path: str) -> str:
    """Return the innermost folder above a path whose own path is valid text."""
    while not is_text(path):
        path = os.path.dirname(path)
    return path


def is_text(name: str) -> bool:
    """Tell whether a name is valid Unicode: those of the file system need not be."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
