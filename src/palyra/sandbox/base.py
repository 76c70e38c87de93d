"""What a sandbox is asked to run, and what it says came of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from palyra.core.errors import Denied, Invalid, Unavailable
from palyra.sandbox.root import Root

MIB = 1024 * 1024


class Tier(StrEnum):
    """How much a program is kept from."""

    STRICT = "strict"
    """Namespaces: it sees the system read-only and its workspace, no network, and none of the other processes."""
    GUARDED = "guarded"
    """Landlock and a system call filter in the system as it is."""
    OFF = "off"
    """Limits only: it may do what Palyra's user may do."""


class TierUnavailable(Unavailable):
    """The sandbox that is set does not work on this machine. `palyra sandbox check` says why and what to install."""


class NoSandbox(Unavailable):
    """There is no sandbox here to run a program in."""


class RootRefused(Denied):
    """A program can not be given this folder. Use one that holds neither the system nor Palyra's own files."""


class ProgramRefused(Invalid):
    """The command can not be run: it is empty, too long, or holds a NUL."""


class SandboxFailed(Unavailable):
    """The sandbox could not be set up, so nothing was run."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a program may take. Processes and memory count for it and all that it starts, taken together."""

    wall: timedelta = timedelta(seconds=60)
    memory_bytes: int = 4096 * MIB
    processes: int = 256
    file_bytes: int = 512 * MIB
    """The largest file that it may write."""
    open_files: int = 1024
    temporary_bytes: int = 128 * MIB
    """What fits into /tmp, which is in memory."""
    head_bytes: int = 256 * 1024
    """How much is kept of the beginning of each output."""
    tail_bytes: int = 64 * 1024
    """How much is kept of its end."""

    @property
    def cpu_seconds(self) -> int:
        """Processor time of each process: on one core it can not use more than the wall clock gives."""
        return math.ceil(self.wall.total_seconds()) + 1

    def enforced(self, tier: Tier) -> dict[str, int]:
        """Return by name what a program of a tier could not take more of."""
        limits = {
            "wall_ms": self.wall // timedelta(milliseconds=1),
            "cpu_seconds": self.cpu_seconds,
            "memory_bytes": self.memory_bytes,
            "processes": self.processes,
            "file_bytes": self.file_bytes,
            "open_files": self.open_files,
        }
        # Only there is /tmp a place of its own.
        return limits | {"temporary_bytes": self.temporary_bytes} if tier is Tier.STRICT else limits


@dataclass(frozen=True, slots=True)
class Job:
    """A program to run: its arguments, the folders it works in, and the one it starts in."""

    argv: tuple[str, ...]
    roots: tuple[Root, ...]
    folder: Path
    """A root, or below one, by its real path."""
    read_only: bool = False
    """The folders are there to be read only. `Sandbox.enforces_read` tells whether the program is kept to that."""
    bounds: Bounds = Bounds()
    environment: Mapping[str, str] = field(default_factory=dict)
    """What it is given besides the few variables that every program needs. Nothing of Palyra's own is passed on."""


@dataclass(frozen=True, slots=True)
class Output:
    """What came out of one stream: all of it, or its head and tail."""

    head: bytes = b""
    tail: bytes = b""
    left_out: int = 0
    """Bytes between head and tail that were not kept."""

    @property
    def text(self) -> str:
        """What was kept, with a word on what was not."""
        gap = f"\n[… {self.left_out} bytes left out …]\n" if self.left_out else ""
        if not gap:
            return (self.head + self.tail).decode(errors="replace")
        return self.head.decode(errors="replace") + gap + self.tail.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended."""

    tier: Tier
    exit_code: int
    """As shells count: 128 and the number of the signal, if one ended it."""
    stdout: Output
    stderr: Output
    took: timedelta
    timed_out: bool = False
    stopped: str = ""
    """Why the sandbox ended it before its time, if it did."""

    @property
    def signal(self) -> int | None:
        """The signal that ended it, as far as the exit code tells."""
        return self.exit_code - 128 if 128 < self.exit_code <= 192 else None


class Sandbox(Protocol):
    """Runs programs that nobody trusts."""

    @property
    def tier(self) -> Tier:
        """The tier that it runs every program in."""
        ...

    @property
    def enforces_read(self) -> bool:
        """Whether the kernel keeps a `read_only` job from every effect outside its sandbox. May block for a moment."""
        ...

    @property
    def bounds(self) -> Bounds:
        """How much a program may take, unless the caller has reasons for something else."""
        ...

    async def check_ready(self, job: Job) -> None:
        """Raise what would keep `run` from starting the program, as far as that is known without starting it."""
        ...

    async def run(self, job: Job) -> Outcome:
        """Run a program to its end, and leave none of its processes behind, also when cancelled.

        Raises `TierUnavailable` if the tier is not to be had here; a weaker one is never used instead.
        """
        ...


class Nowhere:
    """The sandbox of a place that has none: it refuses."""

    tier = Tier.STRICT
    enforces_read = False
    bounds = Bounds()

    async def check_ready(self, job: Job) -> None:
        """Refuse."""
        raise NoSandbox

    async def run(self, job: Job) -> Outcome:
        """Refuse."""
        raise NoSandbox
