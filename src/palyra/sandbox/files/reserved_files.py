"""Files that no tool may reach, even where a workspace contains them: Palyra's own home.

Compared by device and inode, so that another name for the same file, a link or a mount does not help. The direct
entries of a forbidden folder are known too: one that was linked or mounted elsewhere is still out of reach.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FileIdentity = tuple[int, int]
"""Device and inode: the identity of a file or folder, whatever its name."""


def file_identity(stat: os.stat_result) -> FileIdentity:
    """Return the identity of a file, whatever its name."""
    return stat.st_dev, stat.st_ino


@dataclass(frozen=True, slots=True)
class ReservedFiles:
    """Folders that are out of reach, and folders in them that may be used."""

    folders: tuple[Path, ...] = ()
    spared: tuple[Path, ...] = ()

    def marks(self) -> frozenset[FileIdentity]:
        """Return what is out of reach now: the folders and their entries. Call it for each use, since files change.

        Blocks.
        """
        file_identities: set[FileIdentity] = set()
        for folder in self.folders:
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(OSError):
                        file_identities.add(file_identity(entry.stat(follow_symlinks=False)))
        return frozenset((file_identities - self._of(self.spared)) | self._of(self.folders))

    def holds(self, folder: int) -> bool:
        """Tell whether an open folder is out of reach, or inside one that is. Blocks."""
        if not self.folders:
            return False
        banned, spared, home = self.marks(), self._of(self.spared), self._of(self.folders)
        here = os.dup(folder)
        try:
            while True:
                mark = file_identity(os.fstat(here))
                if mark in spared and mark not in home:
                    return False
                if mark in banned:
                    return True
                above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
                os.close(here)
                here = above
                if file_identity(os.fstat(here)) == mark:
                    return False
        except OSError:
            # A process that cannot read the folders above cannot be in one that is Palyra's own.
            return False
        finally:
            os.close(here)

    @staticmethod
    def _of(paths: tuple[Path, ...]) -> set[FileIdentity]:
        marks = set()
        for path in paths:
            with suppress(OSError):
                marks.add(file_identity(path.stat()))
        return marks


NOTHING = ReservedFiles()
