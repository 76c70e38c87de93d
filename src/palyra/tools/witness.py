"""Sees what a call has run, so that it can be stated afterwards. No tool needs to tell, and none can leave it out.

It also notes what a call has read, since its result can be trusted no more than that. Programs and modules may have
read whatever lies in the folders that they were given, and written it to whatever they may change.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from palyra.core.attestation import Ran
from palyra.core.errors import PalyraError
from palyra.core.labels import UNKNOWN, WEB
from palyra.sandbox.base import Bounds, Job, Outcome, Sandbox, Tier
from palyra.sandbox.wasm import TIER, ModuleJob, ModuleOutcome, ModuleRunner


class Writing(Protocol):
    """Labels what the programs of one call write."""

    def program(self, witness: "Witness", folders: tuple[str, ...]) -> AbstractAsyncContextManager[None]:
        """Stand around a program that may change what lies in these folders, and has read what the witness knows.

        Folders are given by where they really are.
        """
        ...

    def met_by(self, witness: "Witness") -> tuple[str, ...]:
        """Return the labels of programs that ran during the call and may have written what the witness has read."""
        ...


class _NothingKept:
    """Labels nothing: for contexts in which nothing is carried out."""

    @asynccontextmanager
    async def program(self, witness: "Witness", folders: tuple[str, ...]) -> AsyncIterator[None]:
        yield

    def met_by(self, witness: "Witness") -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Witness:
    """What one call has run so far. Runtimes that are no sandbox of processes note their own."""

    ran: list[Ran] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    """Files that were read, by where they really are."""
    folders: set[str] = field(default_factory=set)
    """Folders of which anything may have been read."""
    labels: set[str] = field(default_factory=set)
    """Where other things came from that were read."""
    writing: Writing = field(default_factory=_NothingKept)

    def note(self, ran: Ran) -> None:
        """Take down how something was held, and how it ended."""
        self.ran.append(ran)

    def read(self, path: str) -> None:
        """Take down that a file was read, and is part of the result."""
        self.files.add(path)

    def looked_into(self, folder: str) -> None:
        """Take down that anything below a folder may be part of the result, be it the name of a file."""
        self.folders.add(folder)

    def learned(self, labels: tuple[str, ...]) -> None:
        """Take down where something came from that is part of the result."""
        self.labels.update(labels or (UNKNOWN,))

    @asynccontextmanager
    async def program(
        self, *, reads: Iterable[Path], writes: Iterable[Path], labels: tuple[str, ...] = ()
    ) -> AsyncIterator[None]:
        """Stand around a program: what it may read and change, and where else its words may come from.

        Folders are given by where they really are.
        """
        for folder in reads:
            self.looked_into(str(folder))
        if labels:
            self.learned(labels)
        async with self.writing.program(self, tuple(map(str, writes))):
            yield


class WatchedSandbox:
    """A sandbox that a witness looks into."""

    def __init__(self, sandbox: Sandbox, witness: Witness) -> None:
        self._sandbox = sandbox
        self._witness = witness

    @property
    def tier(self) -> Tier:
        """The tier of the sandbox itself."""
        return self._sandbox.tier

    @property
    def enforces_read(self) -> bool:
        """Whether the sandbox itself keeps a program to reading."""
        return self._sandbox.enforces_read

    @property
    def bounds(self) -> Bounds:
        """The bounds of the sandbox itself."""
        return self._sandbox.bounds

    async def check_ready(self, job: Job) -> None:
        """Raise what would keep the sandbox from starting a program. Nothing is run that could be noted."""
        await self._sandbox.check_ready(job)

    async def run(self, job: Job) -> Outcome:
        """Run a program, and note how it was held and how it ended."""
        reads = await asyncio.to_thread(lambda: [root.real_path() for root in job.roots])
        is_held = job.read_only and await asyncio.to_thread(lambda: self.enforces_read)
        # Where nothing keeps it from the network, what it says and writes may come from there.
        outside = (WEB,) if self.tier is Tier.OFF else ()
        around = self._witness.program(reads=reads, writes=() if is_held else reads, labels=outside)
        try:
            async with around:
                outcome = await self._sandbox.run(job)
        except PalyraError:
            raise  # nothing was run
        except BaseException:
            self._note(job, exit_code=None, stopped="it was broken off")
            raise
        self._note(job, exit_code=outcome.exit_code, stopped=outcome.stopped)
        return outcome

    def _note(self, job: Job, *, exit_code: int | None, stopped: str) -> None:
        limits = job.bounds.enforced(self.tier)
        self._witness.note(Ran(tier=self.tier.value, limits=limits, exit_code=exit_code, stopped=stopped))


class WatchedModules:
    """Runs modules while a witness looks on."""

    def __init__(self, modules: ModuleRunner, witness: Witness) -> None:
        self._modules = modules
        self._witness = witness

    async def check_ready(self, job: ModuleJob) -> None:
        """Raise what would keep a module from being started."""
        await self._modules.check_ready(job)

    async def run(self, job: ModuleJob) -> ModuleOutcome:
        """Run a module, and note how it was held and how it ended."""
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
            self._note(job, exit_code=None, stopped="it was broken off")
            raise
        self._note(job, exit_code=outcome.exit_code, stopped=outcome.stopped)
        return outcome

    def _note(self, job: ModuleJob, *, exit_code: int | None, stopped: str) -> None:
        self._witness.note(Ran(tier=TIER, limits=job.bounds.enforced(), exit_code=exit_code, stopped=stopped))
