"""The interface of a sandbox: the job to run, and its outcome."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from palyra.core.errors import Denied, Invalid, Unavailable
from palyra.sandbox.files.root import WorkspaceRoot

MIB = 1024 * 1024


class Tier(StrEnum):
    """How strongly a program is isolated."""

    STRICT = "strict"
    """Namespaces: it sees the system read-only and its workspace, no network, and none of the other processes."""
    GUARDED = "guarded"
    """Landlock and a system call filter in the system as it is."""
    OFF = "off"
    """Limits only: it may do what Palyra's user may do."""


class SandboxUnavailable(Unavailable):
    """The configured sandbox is not available on this machine. `palyra sandbox check` says why and what to install."""


class SandboxMissing(Unavailable):
    """No sandbox is available to run a program."""


class RootNotAllowed(Denied):
    """A program may not use this folder. Use one that contains neither system files nor Palyra's own files."""


class CommandInvalid(Invalid):
    """The command cannot be run: it is empty, too long, or contains a NUL."""


class SandboxFailed(Unavailable):
    """The sandbox could not be set up, so nothing was run."""


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """How much a program may use. Processes and memory are counted for it and all that it starts, together."""

    wall: timedelta = timedelta(seconds=60)
    memory_bytes: int = 4096 * MIB
    processes: int = 256
    file_bytes: int = 512 * MIB
    """The largest file that it may write."""
    open_files: int = 1024
    temporary_bytes: int = 128 * MIB
    """The size of /tmp, which is in memory."""
    head_bytes: int = 256 * 1024
    """How much is kept of the start of each output."""
    tail_bytes: int = 64 * 1024
    """How much is kept of its end."""

    @property
    def cpu_seconds(self) -> int:
        """Processor time of each process: on one core it cannot use more than the wall clock allows."""
        return math.ceil(self.wall.total_seconds()) + 1

    def enforced(self, tier: Tier) -> dict[str, int]:
        """Return by name the limits that a program of a tier could not exceed."""
        limits = {
            "wall_ms": self.wall // timedelta(milliseconds=1),
            "cpu_seconds": self.cpu_seconds,
            "memory_bytes": self.memory_bytes,
            "processes": self.processes,
            "file_bytes": self.file_bytes,
            "open_files": self.open_files,
        }
        # Only there is /tmp separate.
        return limits | {"temporary_bytes": self.temporary_bytes} if tier is Tier.STRICT else limits


@dataclass(frozen=True, slots=True)
class SandboxJob:
    """A program to run: its arguments, the folders it works in, and the one it starts in."""

    argv: tuple[str, ...]
    roots: tuple[WorkspaceRoot, ...]
    folder: Path
    """A root or a folder below one, by its real path."""
    read_only: bool = False
    """The folders are for reading only. `Sandbox.enforces_read` tells whether that is enforced."""
    bounds: ResourceLimits = ResourceLimits()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Its variables besides the few that every program needs. Nothing of Palyra's own is passed on."""


@dataclass(frozen=True, slots=True)
class CapturedOutput:
    """The output of one stream: all of it, or its head and tail."""

    head: bytes = b""
    tail: bytes = b""
    left_out: int = 0
    """The number of bytes between head and tail that were not kept."""

    @property
    def text(self) -> str:
        """What was kept, with a note on what was not."""
        gap = f"\n[… {self.left_out} bytes left out …]\n" if self.left_out else ""
        if not gap:
            return (self.head + self.tail).decode(errors="replace")
        return self.head.decode(errors="replace") + gap + self.tail.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """How a program ended."""

    tier: Tier
    exit_code: int
    """As shells count: 128 plus the number of the signal, if one ended it."""
    stdout: CapturedOutput
    stderr: CapturedOutput
    took: timedelta
    timed_out: bool = False
    stopped: str = ""
    """Why the sandbox ended it early, if it did."""

    @property
    def signal(self) -> int | None:
        """The signal that ended it, as far as the exit code tells."""
        return self.exit_code - 128 if 128 < self.exit_code <= 192 else None


class Sandbox(Protocol):
    """Runs untrusted programs."""

    @property
    def tier(self) -> Tier:
        """The tier in which it runs every program."""
        ...

    @property
    def enforces_read(self) -> bool:
        """Whether the kernel keeps a `read_only` job from every effect outside its sandbox. May block for a moment."""
        ...

    @property
    def bounds(self) -> ResourceLimits:
        """How much a program may use, unless the caller sets other limits."""
        ...

    async def check_ready(self, job: SandboxJob) -> None:
        """Raise the error that would keep `run` from starting the program, as far as known without starting it."""
        ...

    async def run(self, job: SandboxJob) -> ProgramOutcome:
        """Run a program to its end, and leave none of its processes behind, also when cancelled.

        Raises `SandboxUnavailable` if the tier is not available here; a weaker one is never used instead.
        """
        ...


class MissingSandbox:
    """For contexts without a sandbox: it refuses every job."""

    tier = Tier.STRICT
    enforces_read = False
    bounds = ResourceLimits()

    async def check_ready(self, job: SandboxJob) -> None:
        """Refuse."""
        raise SandboxMissing

    async def run(self, job: SandboxJob) -> ProgramOutcome:
        """Refuse."""
        raise SandboxMissing
