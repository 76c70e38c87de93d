"""What no tool may reach, even where a workspace contains it: Palyra's own home.

Compared by device and inode, so that another name for the same thing, a link or a mount does not help. The first level
of a forbidden folder is known by its entries too: a file of it that was linked or mounted elsewhere is still its own.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

Mark = tuple[int, int]
"""Device and inode: what a file or folder is, whatever it is called."""


def mark_of(found: os.stat_result) -> Mark:
    """Return what was found, whatever it is called."""
    return found.st_dev, found.st_ino


@dataclass(frozen=True, slots=True)
class Forbidden:
    """Folders out of reach, and those below them that are meant to be worked in all the same."""

    folders: tuple[Path, ...] = ()
    spared: tuple[Path, ...] = ()

    def marks(self) -> frozenset[Mark]:
        """Return what is out of reach now: the folders and their entries. Asked for each use, since files come and go.

        Blocks.
        """
        found: set[Mark] = set()
        for folder in self.folders:
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(OSError):
                        found.add(mark_of(entry.stat(follow_symlinks=False)))
        return frozenset((found - self._of(self.spared)) | self._of(self.folders))

    def holds(self, folder: int) -> bool:
        """Tell whether an open folder is out of reach, or lies in one that is. Blocks."""
        if not self.folders:
            return False
        banned, spared, home = self.marks(), self._of(self.spared), self._of(self.folders)
        here = os.dup(folder)
        try:
            while True:
                mark = mark_of(os.fstat(here))
                if mark in spared and mark not in home:
                    return False
                if mark in banned:
                    return True
                above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
                os.close(here)
                here = above
                if mark_of(os.fstat(here)) == mark:
                    return False
        except OSError:
            # Whoever can not look at the folders above can not be in one that is Palyra's own.
            return False
        finally:
            os.close(here)

    @staticmethod
    def _of(paths: tuple[Path, ...]) -> set[Mark]:
        marks = set()
        for path in paths:
            with suppress(OSError):
                marks.add(mark_of(path.stat()))
        return marks


NOTHING = Forbidden()
