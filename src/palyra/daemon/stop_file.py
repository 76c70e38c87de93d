"""The file that stops everything: whoever can write into the home folder can pull the brake, also without a token."""

import os
from contextlib import suppress
from pathlib import Path

from palyra.core.errors import Conflict

READ_BYTES = 4096


class StopFileStays(Conflict):
    """The file STOP could not be removed; everything stays stopped. Remove it by hand, then resume."""


class HomeStopFile:
    """`STOP` in the home folder; its text is the reason."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def text(self) -> str | None:
        """Return what it says; None if it is not there. One that can not be read stops all the same."""
        try:
            # Whatever has that name, also a link that leads nowhere.
            os.lstat(self._path)
        except OSError:
            return None
        # A pipe must not make the daemon wait for a writer.
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return os.read(descriptor, READ_BYTES).decode(errors="replace")
            finally:
                os.close(descriptor)
        return ""

    def remove(self) -> None:
        """Take it away."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise StopFileStays(
                f"{self._path} could not be removed ({error.strerror}); everything stays stopped. "
                "Remove it by hand, then resume."
            ) from error
