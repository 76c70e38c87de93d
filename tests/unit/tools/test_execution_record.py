"""What a call has run is seen, whatever came of it, and without a word from the tool."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from palyra.core.attestation import ProgramRun
from palyra.sandbox.base import (
    CapturedOutput,
    MissingSandbox,
    ProgramOutcome,
    ResourceLimits,
    SandboxJob,
    SandboxMissing,
    Tier,
)
from palyra.sandbox.files.root import WorkspaceRoot
from palyra.tools.execution_record import ExecutionRecorder, RecordedSandbox

JOB = SandboxJob(
    argv=("/bin/true",),
    roots=(WorkspaceRoot(Path("/w")),),
    folder=Path("/w"),
    bounds=ResourceLimits(wall=timedelta(seconds=5), processes=7),
)


class Cell:
    """A sandbox that does as it is told."""

    bounds = ResourceLimits()
    enforces_read = False

    def __init__(self, tier: Tier, *, exit_code: int = 0, stopped: str = "", hangs: bool = False) -> None:
        self.tier = tier
        self._exit_code = exit_code
        self._stopped = stopped
        self._hangs = hangs
        self.began = asyncio.Event()

    async def check_ready(self, job: SandboxJob) -> None:
        pass

    async def run(self, job: SandboxJob) -> ProgramOutcome:
        self.began.set()
        if self._hangs:
            await asyncio.Event().wait()
        return ProgramOutcome(
            self.tier, self._exit_code, CapturedOutput(), CapturedOutput(), timedelta(0), stopped=self._stopped
        )


async def seen(cell: Cell) -> ProgramRun:
    witness = ExecutionRecorder()
    await RecordedSandbox(cell, witness).run(JOB)
    (ran,) = witness.programs
    return ran


async def test_tier_limits_and_exit_are_seen() -> None:
    ran = await seen(Cell(Tier.STRICT, exit_code=3))

    assert (ran.tier, ran.exit_code, ran.stopped) == ("strict", 3, "")
    assert (ran.limits["wall_ms"], ran.limits["cpu_seconds"], ran.limits["processes"]) == (5000, 6, 7)
    assert ran.limits["temporary_bytes"] == ResourceLimits().temporary_bytes


async def test_a_limit_that_a_tier_does_not_keep_is_not_claimed() -> None:
    assert "temporary_bytes" not in (await seen(Cell(Tier.GUARDED))).limits


async def test_why_a_program_was_stopped_is_seen() -> None:
    ran = await seen(Cell(Tier.OFF, exit_code=137, stopped="it took longer than 5 s"))

    assert (ran.exit_code, ran.stopped) == (137, "it took longer than 5 s")


async def test_a_program_that_was_broken_off_is_seen_too() -> None:
    witness, cell = ExecutionRecorder(), Cell(Tier.STRICT, hangs=True)
    running = asyncio.ensure_future(RecordedSandbox(cell, witness).run(JOB))
    await cell.began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    (ran,) = witness.programs
    assert (ran.tier, ran.exit_code, ran.stopped) == ("strict", None, "it was interrupted")


async def test_what_was_never_run_is_not_seen() -> None:
    witness = ExecutionRecorder()
    with pytest.raises(SandboxMissing):
        await RecordedSandbox(MissingSandbox(), witness).run(JOB)

    assert witness.programs == []


async def test_every_program_of_a_call_is_seen_in_order() -> None:
    witness = ExecutionRecorder()
    watched = [RecordedSandbox(Cell(Tier.STRICT, exit_code=code), witness) for code in (0, 1)]
    for sandbox in watched:
        await sandbox.run(JOB)

    assert [ran.exit_code for ran in witness.programs] == [0, 1]


@pytest.mark.parametrize(("tier", "learned"), [(Tier.STRICT, set()), (Tier.GUARDED, set()), (Tier.OFF, {"web"})])
async def test_what_a_program_may_have_read_is_noted(tier: Tier, learned: set[str]) -> None:
    witness = ExecutionRecorder()
    await RecordedSandbox(Cell(tier), witness).run(JOB)

    assert witness.folders == {"/w"}
    assert witness.labels == learned
