"""What is in an open folder. Links are named, not followed. Everything here blocks."""

import os
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

MAX_ENTRIES = 10_000
"""How many entries of one folder are looked at."""


class Kind(StrEnum):
    """What an entry of a folder is."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a folder; size in bytes, for files."""

    name: str
    kind: Kind
    size: int = 0
    inode: int = field(default=0, compare=False)
    """For files."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The entries of a folder by name; `complete` is false if there are more than were looked at."""

    entries: tuple[Entry, ...]
    complete: bool


def entries_of(folder: int) -> Listing:
    """Return the entries of an open folder."""
    with os.scandir(folder) as scan:
        found = [_entry(entry) for entry in islice(scan, MAX_ENTRIES)]
        complete = next(scan, None) is None
    return Listing(tuple(sorted(found, key=lambda entry: entry.name)), complete)


def _entry(entry: os.DirEntry[str]) -> Entry:
    if entry.is_symlink():
        return Entry(entry.name, Kind.LINK)
    if entry.is_dir(follow_symlinks=False):
        return Entry(entry.name, Kind.FOLDER)
    if not entry.is_file(follow_symlinks=False):
        return Entry(entry.name, Kind.OTHER)
    try:
        found = entry.stat(follow_symlinks=False)
        return Entry(entry.name, Kind.FILE, found.st_size, found.st_ino)
    except OSError:
        # Gone since it was listed.
        return Entry(entry.name, Kind.FILE)
