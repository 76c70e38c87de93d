"""Records what a call has run, so that it can be attested afterwards. No tool has to report it or can leave it out.

It also records what a call has read, since its result is trusted no more than that. Programs and modules may have
read everything in the folders that they could see, and written it to everything they may change.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from palyra.core.attestation import ProgramRun
from palyra.core.errors import PalyraError
from palyra.core.policy.labels import UNKNOWN, WEB
from palyra.sandbox.base import ProgramOutcome, ResourceLimits, Sandbox, SandboxJob, Tier
from palyra.sandbox.wasm.module import TIER, ModuleJob, ModuleOutcome, ModuleRunner


class WriteLabels(Protocol):
    """Labels the files that the programs of one call write."""

    def program(self, witness: "ExecutionRecorder", folders: tuple[str, ...]) -> AbstractAsyncContextManager[None]:
        """Wrap a program that may change the contents of these folders, and has read what the witness knows.

        Folders are real paths.
        """
        ...

    def met_by(self, witness: "ExecutionRecorder") -> tuple[str, ...]:
        """Return the labels of programs that ran during the call and may have written what the witness has read."""
        ...


class _NoWriteLabels:
    """Labels nothing: for contexts in which nothing is executed."""

    @asynccontextmanager
    async def program(self, witness: "ExecutionRecorder", folders: tuple[str, ...]) -> AsyncIterator[None]:
        yield

    def met_by(self, witness: "ExecutionRecorder") -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class ExecutionRecorder:
    """What one call has run so far. Runtimes other than the process sandbox record their own runs."""

    programs: list[ProgramRun] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    """Files that were read, by real path."""
    folders: set[str] = field(default_factory=set)
    """Folders of which anything may have been read."""
    labels: set[str] = field(default_factory=set)
    """The labels of other things that were read."""
    writing: WriteLabels = field(default_factory=_NoWriteLabels)

    def note(self, ran: ProgramRun) -> None:
        """Record how something was isolated, and how it ended."""
        self.programs.append(ran)

    def read(self, path: str) -> None:
        """Record that a file was read, and is part of the result."""
        self.files.add(path)

    def note_folder(self, folder: str) -> None:
        """Record that anything below a folder may be part of the result, even if only the name of a file."""
        self.folders.add(folder)

    def learned(self, labels: tuple[str, ...]) -> None:
        """Record the labels of something that is part of the result."""
        self.labels.update(labels or (UNKNOWN,))

    @asynccontextmanager
    async def program(
        self, *, reads: Iterable[Path], writes: Iterable[Path], labels: tuple[str, ...] = ()
    ) -> AsyncIterator[None]:
        """Wrap a program: what it may read and change, and where else its output may come from.

        Folders are real paths.
        """
        for folder in reads:
            self.note_folder(str(folder))
        if labels:
            self.learned(labels)
        async with self.writing.program(self, tuple(map(str, writes))):
            yield


class RecordedSandbox:
    """A sandbox whose runs are recorded."""

    def __init__(self, sandbox: Sandbox, witness: ExecutionRecorder) -> None:
        self._sandbox = sandbox
        self._witness = witness

    @property
    def tier(self) -> Tier:
        """The tier of the sandbox itself."""
        return self._sandbox.tier

    @property
    def enforces_read(self) -> bool:
        """Whether the sandbox itself limits a program to reading."""
        return self._sandbox.enforces_read

    @property
    def bounds(self) -> ResourceLimits:
        """The bounds of the sandbox itself."""
        return self._sandbox.bounds

    async def check_ready(self, job: SandboxJob) -> None:
        """Raise the error that would keep the sandbox from starting a program. Nothing runs that could be recorded."""
        await self._sandbox.check_ready(job)

    async def run(self, job: SandboxJob) -> ProgramOutcome:
        """Run a program, and record how it was isolated and how it ended."""
        reads = await asyncio.to_thread(lambda: [root.real_path() for root in job.roots])
        is_held = job.read_only and await asyncio.to_thread(lambda: self.enforces_read)
        # Where nothing blocks the network, its output and its files may come from there.
        outside = (WEB,) if self.tier is Tier.OFF else ()
        around = self._witness.program(reads=reads, writes=() if is_held else reads, labels=outside)
        try:
            async with around:
                outcome = await self._sandbox.run(job)
        except PalyraError:
            raise  # nothing was run
        except BaseException:
            self._note(job, exit_code=None, stopped="it was interrupted")
            raise
        self._note(job, exit_code=outcome.exit_code, stopped=outcome.stopped)
        return outcome

    def _note(self, job: SandboxJob, *, exit_code: int | None, stopped: str) -> None:
        limits = job.bounds.enforced(self.tier)
        self._witness.note(ProgramRun(tier=self.tier.value, limits=limits, exit_code=exit_code, stopped=stopped))


class RecordedModules:
    """Runs modules and records the runs."""

    def __init__(self, modules: ModuleRunner, witness: ExecutionRecorder) -> None:
        self._modules = modules
        self._witness = witness

    async def check_ready(self, job: ModuleJob) -> None:
        """Raise the error that would keep a module from starting."""
        await self._modules.check_ready(job)

    async def run(self, job: ModuleJob) -> ModuleOutcome:
        """Run a module, and record how it was isolated and how it ended."""
        around = self._witness.program(
            reads=(folder.path for folder in job.folders),
            writes=(folder.path for folder in job.folders if folder.writable),
        )
        try:
            async with around:
                outcome = await self._modules.run(job)
        except PalyraError:
            raise  # nothing was run
        except BaseException:
            self._note(job, exit_code=None, stopped="it was interrupted")
            raise
        self._note(job, exit_code=outcome.exit_code, stopped=outcome.stopped)
        return outcome

    def _note(self, job: ModuleJob, *, exit_code: int | None, stopped: str) -> None:
        self._witness.note(ProgramRun(tier=TIER, limits=job.bounds.enforced(), exit_code=exit_code, stopped=stopped))
