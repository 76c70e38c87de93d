"""Writes files atomically: under a temporary name, flushed to disk, then renamed."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from palyra.core.errors import FileExists, Unavailable
from palyra.journal.engines.base import StorageFull

BUFFER_BYTES = 1024 * 1024
FULL = (errno.ENOSPC, errno.EDQUOT)


class FileNotWritable(Unavailable):
    """The file cannot be written. Nothing was changed."""


@contextmanager
def atomic_file(path: Path, *, replace: bool = False) -> Iterator[BinaryIO]:
    """Write a file for its owner only; it gets its name when the block ends without an error."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    with explain_write_errors(path):
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
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn write errors for this path into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        if error.errno in FULL:
            raise FileNotWritable(f"The disk of {path} is full. Nothing was written.") from error
        raise FileNotWritable(f"{path} cannot be written: {error.strerror}. Nothing was written.") from error


def is_full(error: FileNotWritable) -> bool:
    """Return whether a file was not written because the disk is full."""
    cause = error.__cause__
    return isinstance(cause, StorageFull) or (isinstance(cause, OSError) and cause.errno in FULL)


def refuse_existing(path: Path) -> None:
    """Raise `FileExists` if the path exists."""
    if path.exists() or path.is_symlink():
        raise FileExists(f"{path} already exists. Name another file, or move this one away.")


def sync_file(path: Path) -> None:
    """Flush a file to disk that other code has written."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to disk."""
    sync_file(path)
