"""Sees what a call has run, so that it can be stated afterwards. No tool needs to tell, and none can leave it out.

It also notes what a call has read, since its result can be trusted no more than that. Programs and modules may have
read whatever lies in the folders that they were given.
"""

import asyncio
from dataclasses import dataclass, field

from palyra.core.attestation import Ran
from palyra.core.errors import PalyraError
from palyra.core.labels import UNKNOWN, WEB
from palyra.sandbox.base import Bounds, Job, Outcome, Sandbox, Tier
from palyra.sandbox.wasm import TIER, ModuleJob, ModuleOutcome, ModuleRunner


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

    async def run(self, job: Job) -> Outcome:
        """Run a program, and note how it was held and how it ended."""
        for root in job.roots:
            self._witness.looked_into(str(await asyncio.to_thread(root.real_path)))
        if self.tier is Tier.OFF:
            # Nothing keeps it from the network, so what it says may come from there.
            self._witness.learned((WEB,))
        try:
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

    async def run(self, job: ModuleJob) -> ModuleOutcome:
        """Run a module, and note how it was held and how it ended."""
        for folder in job.folders:
            self._witness.looked_into(str(folder.path))
        try:
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
