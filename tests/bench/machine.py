"""The machine that is measured on, and what its disk can do."""

import os
import platform
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

SYNC_SECONDS = 0.5
BLOCK = b"\0" * 4096
IN_MEMORY = frozenset({"tmpfs", "ramfs"})


def disk_folder(stack: ExitStack) -> Path:
    """Return a folder on a disk: one of the system's temporary ones, or if they are in memory, a passing one here.

    The last one is of no use to a PostgreSQL of root's: it is another user, who may not enter every home.
    """
    for usual in (Path(tempfile.gettempdir()), Path("/var/tmp")):
        if usual.is_dir() and _file_system(usual) not in IN_MEMORY:
            return usual
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd())))


def describe() -> dict[str, object]:
    """Return what a figure depends on."""
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "disk_fdatasync_per_s": round(syncs_per_second(Path(tempfile.gettempdir()))),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def syncs_per_second(folder: Path) -> float:
    """Return how often a block of 4 KiB can be overwritten durably in a second: what bounds a lone writer."""
    with tempfile.TemporaryFile(dir=folder) as file:
        descriptor = file.fileno()
        os.pwrite(descriptor, BLOCK, 0)
        os.fsync(descriptor)
        count, began = 0, perf_counter()
        while (passed := perf_counter() - began) < SYNC_SECONDS:
            os.pwrite(descriptor, BLOCK, 0)
            os.fdatasync(descriptor)
            count += 1
    return count / passed


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    """Return the kind of the file system that holds a folder: that of the longest mount point above it."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    path = folder.resolve()
    above = [(len(at), kind) for at, kind in mounts if path == Path(at) or Path(at) in path.parents]
    return max(above)[1] if above else ""
