"""Content on the disk that has no name yet: a name appears in one step, with all of the content.

A process that is killed while it writes leaves nothing behind, since a file without a name ends with the process. File
systems without such files get one with a temporary name in the same folder, which a kill may leave there.
"""

import errno
import os
from contextlib import suppress

from palyra.core.errors import FileChanged

NEW_FILE_MODE = 0o666
"""Before the daemon's own mask is applied."""
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
"""What a file system without hard links says."""
_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_DESCRIPTORS = "/proc/self/fd"


class StagedFile:
    """Content that is on the disk, and has no name yet."""

    def __init__(self, folder: int, data: bytes, mode: int | None) -> None:
        self._folder = folder
        self._data = data
        self._mode = mode
        self._name: str | None = None
        self._unnamed = _open_unnamed(folder, _first_mode(mode))
        try:
            if self._unnamed is not None:
                self._fill(self._unnamed)
            else:
                self._write_named()
        except BaseException:
            self.drop()
            raise

    def appear(self, name: str) -> None:
        """Take a name, and never replace another file."""
        try:
            self._link(name)
        except FileExistsError:
            raise FileChanged from None
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            # A file system without links: checked right before, which is the best that it allows.
            with suppress(FileNotFoundError):
                os.stat(name, dir_fd=self._folder, follow_symlinks=False)
                raise FileChanged from None
            self.replace(name)

    def replace(self, name: str) -> None:
        """Replace the file of that name."""
        if self._name is None:
            self._takespare_name()
        os.rename(self._name or "", name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._name = None

    def drop(self) -> None:
        """Remove the content if it was not used."""
        if self._unnamed is not None:
            os.close(self._unnamed)
            self._unnamed = None
        if self._name is not None:
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder)
            self._name = None

    def _takespare_name(self) -> None:
        """Take a temporary name until the rename, which needs one."""
        spare = spare_name("new")
        try:
            self._link(spare)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            self._write_named()
        else:
            self._name = spare

    def _link(self, name: str) -> None:
        source = f"{_DESCRIPTORS}/{self._unnamed}" if self._name is None else self._name
        how = self._name is None
        os.link(source, name, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=how)

    def _write_named(self) -> None:
        self._name = spare_name("new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._name, flags, _first_mode(self._mode), dir_fd=self._folder)
        try:
            self._fill(descriptor)
        finally:
            os.close(descriptor)

    def _fill(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(self._data)
        if self._mode is not None:
            os.fchmod(descriptor, self._mode)
        os.fsync(descriptor)


def _first_mode(mode: int | None) -> int:
    return NEW_FILE_MODE if mode is None else 0o600


def spare_name(ending: str) -> str:
    """Return a temporary name that no other file has."""
    return f".palyra-{os.urandom(8).hex()}.{ending}"


def _open_unnamed(folder: int, mode: int) -> int | None:
    """Open a file without a name, which is gone with the process unless it gets one; None where unsupported."""
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir(_DESCRIPTORS):
        return None
    try:
        return os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, mode, dir_fd=folder)
    except OSError as error:
        if error.errno in _NO_UNNAMED_FILES:
            return None
        raise
