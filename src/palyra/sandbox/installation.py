"""What Palyra runs from: the folders that the command and the daemon load code from. No program may change them.

Whoever could change them would be run by the next `palyra` that somebody types, outside every sandbox and beside the
token. A folder counts as a whole: a new file in it can take the place of a module as well as a changed one.
"""

import os
import shutil
import sys
from functools import cache
from pathlib import Path

from palyra.sandbox.base import RootRefused

COMMANDS = ("palyra", "palyrad")


@cache
def folders() -> tuple[Path, ...]:
    """Return the folders by where they really are, none inside another. Blocks."""
    found = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, *filter(None, sys.path)}
    for command in COMMANDS:
        # A command may be a link, which only its folder protects.
        if (name := shutil.which(command)) is not None:
            found |= {os.path.dirname(name), os.path.dirname(os.path.realpath(name))}
    real = {Path(os.path.realpath(name)) for name in found if os.path.isdir(name)} - {Path("/")}
    return tuple(sorted(folder for folder in real if not any(above in real for above in folder.parents)))


def refuse_inside(path: Path) -> None:
    """Raise if a folder that a program is to change belongs to what Palyra runs from."""
    for folder in folders():
        if path == folder or folder in path.parents:
            raise RootRefused(
                f"{path} belongs to {folder}, which Palyra itself runs from, and no program may change that. Use"
                " another folder."
            )


def refuse_around(path: Path) -> None:
    """Raise if a folder that a program is to change as a whole is, or holds, what Palyra runs from."""
    refuse_inside(path)
    for folder in folders():
        if path in folder.parents:
            raise RootRefused(
                f"{path} holds {folder}, which Palyra itself runs from, and no program may change that. Use another"
                " folder."
            )
