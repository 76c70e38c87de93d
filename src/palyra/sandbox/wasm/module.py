"""A WebAssembly module to run: what it gets, how much it may use, and how it ended."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from palyra.core.errors import Denied, Invalid
from palyra.sandbox.base import MIB, CapturedOutput

TIER = "wasm"
"""Recorded instead of a sandbox tier where a module ran."""
MAX_MODULE_BYTES = 32 * MIB
MAX_INPUT_BYTES = 16 * MIB


class ModuleInvalid(Invalid):
    """This is not a WebAssembly module that can be run. Build it as a WASI command, with a main function."""


class ModuleTooLarge(Invalid):
    """The module or its input is too large."""


class FolderNotAllowed(Denied):
    """A folder of the module cannot be opened, so it was not run."""


@dataclass(frozen=True, slots=True)
class ModuleLimits:
    """How much a module may use."""

    fuel: int = 5_000_000_000
    """Steps, about one for each instruction."""
    wall: timedelta = timedelta(seconds=10)
    memory_bytes: int = 64 * MIB
    output_bytes: int = 256 * 1024
    """The maximum length of each output."""

    def enforced(self) -> dict[str, int]:
        """Return by name the limits that a module could not exceed."""
        return {
            "fuel": self.fuel,
            "wall_ms": self.wall // timedelta(milliseconds=1),
            "memory_bytes": self.memory_bytes,
            "output_bytes": self.output_bytes,
        }


@dataclass(frozen=True, slots=True)
class ModuleFolder:
    """A folder that a module may access."""

    path: Path
    """Absolute and without links: a link that is put into it later is not followed."""
    name: str
    """The path that the module sees: `/data`."""
    writable: bool = False


@dataclass(frozen=True, slots=True)
class ModuleJob:
    """A module to run, and everything that it gets."""

    module: bytes
    input: bytes = b""
    argv: tuple[str, ...] = ("module",)
    folders: tuple[ModuleFolder, ...] = ()
    bounds: ModuleLimits = ModuleLimits()


@dataclass(frozen=True, slots=True)
class ModuleOutcome:
    """How a module ended."""

    exit_code: int | None
    """None if it did not end by itself."""
    stdout: CapturedOutput
    stderr: CapturedOutput
    took: timedelta
    fuel: int = 0
    memory_bytes: int = 0
    stopped: str = ""
    """Why it was ended, or why it failed."""

    @property
    def ok(self) -> bool:
        """It ended by itself, and reports success."""
        return self.exit_code == 0


class ModuleRunner(Protocol):
    """Runs modules."""

    async def check_ready(self, job: ModuleJob) -> None:
        """Raise the error that would keep `run` from starting the module, as far as known without compiling it."""
        ...

    async def run(self, job: ModuleJob) -> ModuleOutcome:
        """Run a module to its end, and leave nothing of it behind, also when cancelled."""
        ...
