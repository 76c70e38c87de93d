"""A small disk in memory that a test can fill, which takes the right to mount."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.needs import skip

MEBIBYTE = 1024 * 1024


class SmallDisk:
    """A disk of which most is taken by a file that can be deleted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"
        self.take(leave=6 * MEBIBYTE)

    def take(self, *, leave: int = 0) -> None:
        """Leave so much room, and no more."""
        with self._ballast.open("ab", buffering=0) as file:
            while (room := self._room() - leave) > 0:
                file.write(bytes(min(room, MEBIBYTE)))

    def free(self) -> None:
        """Make room again."""
        self._ballast.unlink()

    def _room(self) -> int:
        state = os.statvfs(self.path)
        return state.f_bavail * state.f_frsize


@contextmanager
def small_disk(path: Path, *, mode: str = "700") -> Iterator[SmallDisk]:
    """Mount a small disk; skip the test where nothing may be mounted."""
    mounting = ["mount", "-t", "tmpfs", "-o", f"size=40m,mode={mode}", "tmpfs", str(path)]
    try:
        subprocess.run(mounting, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        skip("right to mount", error)
    try:
        yield SmallDisk(path)
    finally:
        # Lazily: the daemon is ended after this.
        subprocess.run(["umount", "--lazy", str(path)], check=True)
