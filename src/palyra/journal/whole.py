"""Files that are there as a whole or not at all: written under another name, made durable, then renamed."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from palyra.core.errors import Conflict, Unavailable
from palyra.journal.engine import StorageFull

BUFFER_BYTES = 1024 * 1024
FULL = (errno.ENOSPC, errno.EDQUOT)


class FileNotWritten(Unavailable):
    """The file can not be written. Nothing was left behind."""


class FileExists(Conflict):
    """There is a file of that name already. Name another, or move it away."""


@contextmanager
def whole_file(path: Path, *, replace: bool = False) -> Iterator[BinaryIO]:
    """Write a file for its owner only; it appears under its name when the block has ended well."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    with written(path):
        if not replace:
            refuse_existing(path)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb", BUFFER_BYTES) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(path)
        except BaseException:
            with suppress(OSError):
                fresh.unlink()
            raise
        sync_folder(path.parent)


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Say what keeps something from being written there."""
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        if error.errno in FULL:
            raise FileNotWritten(f"The disk that holds {path} is full. Nothing was left behind.") from error
        raise FileNotWritten(f"{path} can not be written: {error.strerror}. Nothing was left behind.") from error


def is_full(error: FileNotWritten) -> bool:
    """Tell whether a file was not written because the disk is full."""
    cause = error.__cause__
    return isinstance(cause, StorageFull) or (isinstance(cause, OSError) and cause.errno in FULL)


def refuse_existing(path: Path) -> None:
    """Raise `FileExists` if there is something of that name."""
    if path.exists() or path.is_symlink():
        raise FileExists(f"{path} exists already. Name another file, or move it away.")


def sync_file(path: Path) -> None:
    """Make a file durable that somebody else has written."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    sync_file(path)
