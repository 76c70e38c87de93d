"""Control groups (cgroup v2), in which the kernel counts and limits what a program uses.

The daemon uses the group that it was started in, if that was delegated to it: by `Delegate=` of a systemd unit, or as
the root of a container. The kernel lets a group limit its children only if it holds no process itself. So the daemon
moves into a group below it, and each program gets another one beside that. Groups that are not ours to divide, those of
a terminal for instance, in which the person's shell runs too, are left alone.

Everything here blocks.
"""

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from palyra.sandbox.base import ResourceLimits

DAEMON = "palyrad"
"""The group that the daemon moves into."""
PREFIX = "program-"
CONTROLLERS = ("memory", "pids")
THREADS_EACH = 16
"""How many threads are allowed for each allowed process."""
DELEGATED = ("user.delegate", "trusted.delegate")
"""How systemd marks a group that it has delegated."""


@dataclass(frozen=True, slots=True)
class CgroupSupport:
    """The group whose children can be limited, or why there is none."""

    base: Path | None
    reason: str = ""


def find(pid: int | None = None) -> CgroupSupport:
    """Find the group of a process, or of this one, below which programs can run. Changes nothing."""
    try:
        group, is_root = _group_of(str(pid) if pid is not None else "self")
    except (OSError, ValueError, StopIteration):
        return CgroupSupport(None, "this machine has no control groups of version 2")
    missing = [name for name in CONTROLLERS if name not in _read_words(group / "cgroup.controllers")]
    if missing:
        return CgroupSupport(None, f"the daemon's control group lacks the controllers {' and '.join(missing)}")
    if group.name == DAEMON and not _members(group.parent):
        group, is_root = group.parent, False
    elif set(_members(group)) - {pid if pid is not None else os.getpid()}:
        return CgroupSupport(None, "other programs run in the daemon's control group")
    if not os.access(group, os.W_OK) or not os.access(group / "cgroup.subtree_control", os.W_OK):
        return CgroupSupport(None, "the daemon may not divide its control group")
    # Root may write everywhere, so this proves nothing for root.
    if os.getuid() == 0 and not is_root and not _is_delegated(group):
        return CgroupSupport(None, "the daemon's control group was not delegated to it")
    return CgroupSupport(group)


def take() -> CgroupSupport:
    """Prepare the group of this process for programs, and remove what an earlier daemon has left in it."""
    cgroup_support = find()
    if cgroup_support.base is None:
        return cgroup_support
    own = cgroup_support.base / DAEMON
    try:
        own.mkdir(exist_ok=True)
        (own / "cgroup.procs").write_text("0")
        (cgroup_support.base / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
    except OSError as error:
        with suppress(OSError):
            (cgroup_support.base / "cgroup.procs").write_text("0")
            own.rmdir()
        return CgroupSupport(None, f"the daemon's control group could not be divided: {error.strerror}")
    for group in cgroup_support.base.glob(f"{PREFIX}*"):
        remove(group)
    return cgroup_support


def make(base: Path, bounds: ResourceLimits) -> Path:
    """Create a group for a program. The program joins it; the process that sees its end removes it."""
    group = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    limits = {
        "memory.max": bounds.memory_bytes,
        "memory.swap.max": 0,
        "memory.oom.group": 1,
        "pids.max": bounds.processes * THREADS_EACH,
    }
    try:
        for name, value in limits.items():
            # Not every kernel has swap.
            if name != "memory.swap.max" or (group / name).exists():
                (group / name).write_text(str(value))
    except OSError:
        remove(group)
        raise
    return group


def remove(group: Path) -> None:
    """Remove a group, and end what is left in it; one that is not empty yet is left to the next start."""
    with suppress(OSError):
        (group / "cgroup.kill").write_text("1")
    with suppress(OSError):
        group.rmdir()


def _group_of(process: str) -> tuple[Path, bool]:
    """Return the folder of a process's group, and whether it is the root of the visible hierarchy."""
    with open(f"/proc/{process}/cgroup") as file:
        path = next(line.rstrip("\n")[3:] for line in file if line.startswith("0::"))
    with open("/proc/self/mountinfo") as file:
        fields = next(line.split() for line in file if " - cgroup2 " in line)
    root, mounted = fields[3], Path(fields[4])
    return mounted / Path(path).relative_to(root), path == root


def _members(group: Path) -> list[int]:
    return [int(pid) for pid in _read_words(group / "cgroup.procs")]


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _is_delegated(group: Path) -> bool:
    for name in DELEGATED:
        with suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False
