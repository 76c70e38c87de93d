"""Palyra's installation: the folders from which the command and the daemon load code. No program may change them.

A program that could change them would have its code run by the next `palyra` command, outside every sandbox and next to
the token. A folder counts as a whole: a new file in it can replace a module as well as a changed one.
"""

import os
import shutil
import sys
from functools import cache
from pathlib import Path

from palyra.sandbox.base import RootNotAllowed

COMMANDS = ("palyra", "palyrad")


@cache
def folders() -> tuple[Path, ...]:
    """Return the real paths of the folders, none inside another. Blocks."""
    matches = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, *filter(None, sys.path)}
    for command in COMMANDS:
        # A command may be a link, which only its folder protects.
        if (name := shutil.which(command)) is not None:
            matches |= {os.path.dirname(name), os.path.dirname(os.path.realpath(name))}
    real = {Path(os.path.realpath(name)) for name in matches if os.path.isdir(name)} - {Path("/")}
    return tuple(sorted(folder for folder in real if not any(above in real for above in folder.parents)))


def refuse_inside(path: Path) -> None:
    """Raise if a folder that a program may change belongs to Palyra's installation."""
    for folder in folders():
        if path == folder or folder in path.parents:
            raise RootNotAllowed(
                f"{path} is inside {folder}, from which Palyra itself runs, and no program may change "
                "it. Use another folder."
            )


def refuse_around(path: Path) -> None:
    """Raise if a folder that a program may change as a whole is or contains Palyra's installation."""
    refuse_inside(path)
    for folder in folders():
        if path in folder.parents:
            raise RootNotAllowed(
                f"{path} contains {folder}, from which Palyra itself runs, and no program may change "
                "it. Use another folder."
            )
