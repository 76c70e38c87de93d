"""Runs programs in the tier that the settings name, and leaves nothing of them behind.

The work is done by a task that is never cancelled from outside: when the caller is cancelled, the task is notified, the
program is killed with all its processes, and only then the wait ends. If the daemon dies, the input of the supervisor
closes, and it kills its program. (Bubblewrap alone would do most of that, but killed in setup it can leave a child.)
"""

import asyncio
import json
import signal
import time
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from palyra.core.tool import JsonObject
from palyra.exhaustion import wait_out
from palyra.home import Home
from palyra.sandbox.base import (
    MIB,
    CommandInvalid,
    ProgramOutcome,
    ResourceLimits,
    RootNotAllowed,
    SandboxFailed,
    SandboxJob,
    SandboxUnavailable,
    Tier,
)
from palyra.sandbox.processes import installation, seccomp
from palyra.sandbox.processes.capture import OutputCapture
from palyra.sandbox.processes.launch import LaunchPlan, prepare
from palyra.sandbox.processes.mounts import HiddenFolders
from palyra.sandbox.processes.tiers import TierProblem, set_up_failed, tier_problem
from palyra.settings import SandboxSettings

BLOCK_BYTES = 64 * 1024
MAX_ARGUMENT_BYTES = 96 * 1024
BOUNDS = ResourceLimits()
TRIAL = ("/bin/sh", "-c", ":")
"""A program that does nothing."""
REPLACED = ("Race condition binding dirfd", "Can't find source path")
"""What bubblewrap prints if it has mounted another folder than the one that was opened, or if that is gone."""


def build(home: Home, settings: SandboxSettings, *, base: Path | None = None) -> "ProcessSandbox":
    """Return the sandbox that the settings name, with the home hidden from every program."""
    bounds = ResourceLimits(
        memory_bytes=settings.memory_mb * MIB, processes=settings.processes, file_bytes=settings.file_mb * MIB
    )
    return ProcessSandbox(Tier(settings.tier), private=private_to(home), bounds=bounds, base=base)


def private_to(home: Home) -> HiddenFolders:
    """Return what of a home is hidden from programs: all except the folders in which they work. Blocks."""
    family = home.family()
    opened = tuple(path for one in family for path in one.workspaces)
    return HiddenFolders(tuple(one.path for one in family), open=opened, fixed=installation.folders())


class ProcessSandbox:
    """Starts programs as processes of one tier, without access to what is private."""

    def __init__(
        self, tier: Tier, *, private: HiddenFolders, bounds: ResourceLimits = BOUNDS, base: Path | None = None
    ) -> None:
        """`base` is the control group for those of programs; without it, memory is counted in other ways."""
        self.tier = tier
        self._base = base
        self.bounds = bounds
        self._private = private
        self._has_worked = False

    @property
    def enforces_read(self) -> bool:
        """Whether a `read_only` job has no effect outside its sandbox.

        `guarded` shows a program more of the machine than its workspace, and `off` restricts nothing. Without the
        filter on system calls it could talk to sockets in the workspace.
        """
        return self.tier is Tier.STRICT and seccomp.build(Tier.STRICT) is not None and tier_problem(Tier.STRICT) is None

    async def check_ready(self, job: SandboxJob) -> None:
        """Raise the error that would keep `run` from starting the program.

        Whether the kernel allows the sandbox shows only when it is set up: as long as no program has run, one that
        does nothing is run.
        """
        _check(job)
        if self._has_worked:
            await wait_out(lambda: asyncio.to_thread(self._try_to_prepare, job), what="a program")
        else:
            await self.run(replace(job, argv=TRIAL, read_only=True))

    async def run(self, job: SandboxJob) -> ProgramOutcome:
        """Run a program to its end, and leave none of its processes behind, also when cancelled."""
        stop = asyncio.Event()
        # Not in a task group, which would cancel it: it must see the program's end.
        work = asyncio.get_running_loop().create_task(self._run(job, stop))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()
            while not work.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([work])
            if not work.cancelled():
                work.exception()  # marks it as seen: no task waits for it any more
            raise

    async def _run(self, job: SandboxJob, stop: asyncio.Event) -> ProgramOutcome:
        _check(job)
        launch = await wait_out(lambda: asyncio.to_thread(self._prepare, job, self._base), what="a program")
        try:
            outcome = await self._start(job, launch, stop)
        except (SandboxFailed, SandboxUnavailable):
            self._has_worked = False
            raise
        finally:
            await asyncio.to_thread(launch.tidy_up)
        self._has_worked = True
        return outcome

    def _prepare(self, job: SandboxJob, base: Path | None = None) -> LaunchPlan:
        if missing := tier_problem(self.tier):
            raise _unavailable(self.tier, missing)
        return prepare(self.tier, job, self._private, base=base)

    def _try_to_prepare(self, job: SandboxJob) -> None:
        self._prepare(job).tidy_up()

    async def _start(self, job: SandboxJob, launch: LaunchPlan, stop: asyncio.Event) -> ProgramOutcome:
        began = time.monotonic()
        process = await wait_out(
            lambda: asyncio.create_subprocess_exec(
                *launch.argv,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env={},
                cwd="/",
                pass_fds=tuple(launch.passed),
                start_new_session=True,
            ),
            what="a program",
        )
        out, err = (
            OutputCapture(head_bytes=job.bounds.head_bytes, tail_bytes=job.bounds.tail_bytes)
            for _ in ("stdout", "stderr")
        )
        assert process.stdin is not None
        running = _Running(process)
        try:
            launch.let_go()
            async with asyncio.TaskGroup() as group:
                group.create_task(_drain(process.stdout, out))
                group.create_task(_drain(process.stderr, err))
                guard = group.create_task(running.guard(job, stop))
                with suppress(BrokenPipeError, ConnectionResetError):
                    process.stdin.write(launch.order)
                    await process.stdin.drain()
                await process.wait()
                guard.cancel()
        finally:
            # Reached with a living process only if the daemon itself is ending: the supervisor sees this and ends all.
            process.stdin.close()
        data = await asyncio.to_thread(launch.read_report)
        report = {name: value for line in data.splitlines() for name, value in json.loads(line).items()}
        stopped = running.stopped or report.get("stopped", "")
        code = self._code(report, process, text=err.output().text, stopped=bool(stopped))
        return ProgramOutcome(
            tier=self.tier,
            exit_code=code,
            stdout=out.output(),
            stderr=err.output(),
            took=timedelta(seconds=time.monotonic() - began),
            timed_out=running.timed_out,
            stopped=stopped,
        )

    def _code(self, report: JsonObject, process: Process, *, text: str, stopped: bool) -> int:
        """Return the exit code, or raise if the program was never started."""
        if fault := report.get("fault"):
            raise SandboxFailed(f"Nothing was run: the {self.tier} sandbox could not be set up: {fault}.")
        # Bubblewrap names this one only if it got as far as running the program.
        code = report.get("exit-code" if self.tier is Tier.STRICT else "code")
        if code is not None:
            return int(code) if code >= 0 else 128 - int(code)
        if stopped:
            return 128 + signal.SIGKILL
        if self.tier is Tier.STRICT and report.get("code"):
            if any(words in text for words in REPLACED):
                raise RootNotAllowed("A folder of the workspace was replaced while it was mounted, so nothing was run.")
            missing = set_up_failed(self.tier, " ".join(text.split())[:300].removeprefix("bwrap: "))
            raise _unavailable(self.tier, missing)
        raise SandboxFailed(f"The supervisor ended without a report (exit code {process.returncode}).")


@dataclass(slots=True)
class _Running:
    """A running program, and why it was ended, if it was."""

    process: Process
    timed_out: bool = False
    stopped: str = ""

    async def guard(self, job: SandboxJob, stop: asyncio.Event) -> None:
        """End the program on request or when its time is over."""
        try:
            async with asyncio.timeout(job.bounds.wall.total_seconds()):
                await stop.wait()
            self.stopped = "it was cancelled"
        except TimeoutError:
            self.timed_out = True
            self.stopped = f"it took longer than {job.bounds.wall.total_seconds():g} s"
        assert self.process.stdin is not None
        # The supervisor kills its program. It is never killed itself: nothing else would find all processes.
        self.process.stdin.close()


def _unavailable(tier: Tier, missing: TierProblem) -> SandboxUnavailable:
    return SandboxUnavailable(f"The {tier} sandbox is not available: {missing.reason}. {missing.remedy}")


async def _drain(stream: asyncio.StreamReader | None, capture: OutputCapture) -> None:
    assert stream is not None
    while piece := await stream.read(BLOCK_BYTES):
        capture.add(piece)


def _check(job: SandboxJob) -> None:
    if not job.argv or not job.argv[0]:
        raise CommandInvalid("The command is empty.")
    if any("\0" in word for word in job.argv):
        raise CommandInvalid("The command contains a NUL character. Remove it.")
    try:
        longest = max(len(word.encode()) for word in job.argv)
    except UnicodeEncodeError:
        raise CommandInvalid("The command is not valid Unicode.") from None
    if longest > MAX_ARGUMENT_BYTES:
        raise CommandInvalid(
            f"The command is longer than {MAX_ARGUMENT_BYTES >> 10} KiB. Put it into a file and run that."
        )
