"""Lists an open folder. Links are named, not followed. Everything here blocks."""

import os
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

MAX_ENTRIES = 10_000
"""How many entries of one folder are read."""


class EntryKind(StrEnum):
    """The kind of a folder entry."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One entry of a folder; size in bytes, for files."""

    name: str
    kind: EntryKind
    size: int = 0
    inode: int = field(default=0, compare=False)
    """For files."""


@dataclass(frozen=True, slots=True)
class FolderListing:
    """The entries of a folder by name; `complete` is false if there are more than were read."""

    entries: tuple[FolderEntry, ...]
    complete: bool


def entries_of(folder: int) -> FolderListing:
    """Return the entries of an open folder."""
    with os.scandir(folder) as scan:
        folder_entries = [_entry(entry) for entry in islice(scan, MAX_ENTRIES)]
        complete = next(scan, None) is None
    return FolderListing(tuple(sorted(folder_entries, key=lambda entry: entry.name)), complete)


def _entry(entry: os.DirEntry[str]) -> FolderEntry:
    if entry.is_symlink():
        return FolderEntry(entry.name, EntryKind.LINK)
    if entry.is_dir(follow_symlinks=False):
        return FolderEntry(entry.name, EntryKind.FOLDER)
    if not entry.is_file(follow_symlinks=False):
        return FolderEntry(entry.name, EntryKind.OTHER)
    try:
        stat = entry.stat(follow_symlinks=False)
        return FolderEntry(entry.name, EntryKind.FILE, stat.st_size, stat.st_ino)
    except OSError:
        # Deleted since it was listed.
        return FolderEntry(entry.name, EntryKind.FILE)
