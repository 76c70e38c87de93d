"""The emergency stop file: a user who can write to the home folder can stop everything, even without a token."""

import os
from contextlib import suppress
from pathlib import Path

from palyra.core.errors import Conflict

READ_BYTES = 4096


class StopFileNotRemovable(Conflict):
    """The file STOP could not be removed; everything stays stopped. Remove it by hand, then resume."""


class HomeStopFile:
    """`STOP` in the home folder; its text is the reason."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def text(self) -> str | None:
        """Return its text; None if it does not exist. A file that cannot be read stops everything too."""
        try:
            # Anything with that name counts, even a dangling symbolic link.
            os.lstat(self._path)
        except OSError:
            return None
        # The daemon must not wait for the writer of a pipe.
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return os.read(descriptor, READ_BYTES).decode(errors="replace")
            finally:
                os.close(descriptor)
        return ""

    def remove(self) -> None:
        """Remove the file."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise StopFileNotRemovable(
                f"{self._path} could not be removed ({error.strerror}); everything stays stopped. "
                "Remove it by hand, then resume."
            ) from error
