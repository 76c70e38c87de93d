"""What a model is told of a command, and what a person is shown before it runs."""

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from palyra.core.policy.effect import Effect
from palyra.core.tool import CallOutcome, FolderAccess, Risk
from palyra.sandbox.base import CapturedOutput, ResourceLimits, SandboxJob, Tier
from palyra.sandbox.base import ProgramOutcome as Ended
from palyra.sandbox.files.root import WorkspaceRoot
from palyra.sandbox.files.workspace import PathNotFolder, PathOutsideWorkspace, Workspace
from palyra.tools.base import ToolContext
from palyra.tools.builtin import shell
from palyra.tools.execution import ToolResult, execute
from palyra.tools.toolbox import BUILTIN_ONLY
from tests.unit.tools.surroundings import StillClock, a_call, a_context


class Recorder:
    """A sandbox that runs nothing, and remembers what it was asked to."""

    bounds = ResourceLimits(processes=7)

    def __init__(self, tier: Tier = Tier.STRICT, *, ended: Ended | None = None) -> None:
        self.tier = tier
        self.enforces_read = tier is Tier.STRICT
        self.jobs: list[SandboxJob] = []
        self._ended = ended or Ended(tier, 0, CapturedOutput(b"fine\n"), CapturedOutput(), timedelta(seconds=0.25))

    async def check_ready(self, job: SandboxJob) -> None:
        pass

    async def run(self, job: SandboxJob) -> Ended:
        self.jobs.append(job)
        return self._ended


def at(root: Path, sandbox: Recorder) -> ToolContext:
    return ToolContext(workspace=Workspace((root,)), clock=StillClock(), sandbox=sandbox)


async def effect(context: ToolContext, **arguments: object) -> Effect:
    return await shell.run.effect(context, msgspec.convert(arguments, shell.run.arguments))


async def result(context: ToolContext, **arguments: object) -> ToolResult:
    call = a_call("shell.run", dict(arguments))
    finished = await execute(call, catalog=BUILTIN_ONLY.catalog(None), context=context, timeout_ms=1000)
    assert isinstance(finished, ToolResult)
    return finished


async def test_a_command_is_run_by_a_shell_in_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    sandbox = Recorder()
    finished = await result(at(tmp_path, sandbox), command="echo $HOME | wc", folder="sub", seconds=5)
    assert finished == ToolResult(CallOutcome.OK, "exit code 0, 0.2 s, sandbox strict\nstdout:\nfine\nstderr:\n(empty)")
    [job] = sandbox.jobs
    assert job.argv[1:] == ("-c", "echo $HOME | wc")
    assert job.argv[0] in shell.SHELLS
    assert (job.roots, job.folder) == ((WorkspaceRoot(tmp_path),), tmp_path / "sub")
    assert job.bounds == ResourceLimits(processes=7, wall=timedelta(seconds=5))
    assert job.read_only
    assert job.environment == shell.READ_ENVIRONMENT


async def test_what_may_change_files_is_run_so(tmp_path: Path) -> None:
    sandbox = Recorder()
    await result(at(tmp_path, sandbox), command="touch x", access="write")
    [job] = sandbox.jobs
    assert (job.read_only, job.environment) == (False, {})


@pytest.mark.parametrize("said", ["touch: cannot touch 'x': Read-only file system", "EROFS: read-only file system"])
async def test_a_program_that_wanted_to_change_files_is_told_how(tmp_path: Path, said: str) -> None:
    ended = Ended(Tier.STRICT, 1, CapturedOutput(), CapturedOutput(said.encode()), timedelta(seconds=1))
    for access, is_told in (("read", True), ("write", False)):
        finished = await result(at(tmp_path, Recorder(ended=ended)), command="x", access=access)
        assert finished.text.endswith(shell.READ_ONLY) is is_told


async def test_a_failure_is_told_with_everything_it_said(tmp_path: Path) -> None:
    ended = Ended(Tier.STRICT, 2, CapturedOutput(b"half\n"), CapturedOutput(b"no such file\n"), timedelta(seconds=1))
    finished = await result(at(tmp_path, Recorder(ended=ended)), command="x")
    assert finished.text == "exit code 2, 1.0 s, sandbox strict\nstdout:\nhalf\nstderr:\nno such file"


async def test_what_was_stopped_is_told_with_the_reason(tmp_path: Path) -> None:
    ended = Ended(
        Tier.STRICT,
        137,
        CapturedOutput(),
        CapturedOutput(),
        timedelta(seconds=1),
        timed_out=True,
        stopped="it was slow",
    )
    finished = await result(at(tmp_path, Recorder(ended=ended)), command="x")
    assert finished.text.startswith("stopped: it was slow (exit code 137)")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (6, "curl: (6) Could not resolve host: example.org"),
        (0, "fatal: unable to access 'https://x/': Could not resolve host: x"),
        (1, "npm error code EAI_AGAIN"),
        (1, "socket.gaierror: [Errno -3] Temporary failure in name resolution"),
        (1, "OSError: [Errno 97] Address family not supported by protocol"),
    ],
)
async def test_a_program_that_wanted_a_network_is_told_to_have_none(tmp_path: Path, code: int, said: str) -> None:
    for tier, is_told in ((Tier.STRICT, True), (Tier.GUARDED, True), (Tier.OFF, False)):
        ended = Ended(tier, code, CapturedOutput(), CapturedOutput(said.encode()), timedelta(seconds=1))
        finished = await result(at(tmp_path, Recorder(tier, ended=ended)), command="x")
        assert finished.text.endswith(shell.NO_NETWORK) is is_told


async def test_one_that_succeeded_and_only_prints_such_words_is_not(tmp_path: Path) -> None:
    ended = Ended(
        Tier.STRICT, 0, CapturedOutput(b"log: could not resolve host x"), CapturedOutput(), timedelta(seconds=1)
    )
    finished = await result(at(tmp_path, Recorder(ended=ended)), command="x")
    assert shell.NO_NETWORK not in finished.text


async def test_one_that_took_too_long_is_told_that_it_may_have_waited_for_one(tmp_path: Path) -> None:
    ended = Ended(
        Tier.STRICT,
        137,
        CapturedOutput(),
        CapturedOutput(),
        timedelta(seconds=1),
        timed_out=True,
        stopped="it was slow",
    )
    assert (await result(at(tmp_path, Recorder(ended=ended)), command="x")).text.endswith(shell.NO_NETWORK)


async def test_both_outputs_are_visible_however_long_the_first_is(tmp_path: Path) -> None:
    ended = Ended(Tier.STRICT, 1, CapturedOutput(b"x" * 100_000), CapturedOutput(b"the reason\n"), timedelta(seconds=1))
    finished = await result(at(tmp_path, Recorder(ended=ended)), command="x")
    assert finished.text.startswith("exit code 1")
    assert finished.text.endswith("stderr:\nthe reason")


async def test_a_person_is_shown_the_whole_command_and_the_tier(tmp_path: Path) -> None:
    command = "git push origin main"
    found = await effect(at(tmp_path, Recorder()), command=command, access="write")
    assert found.command == command
    assert found.summary == f"run {command}"
    assert found.detail.startswith(f"> {command}\n\nin ")
    assert "strict" in found.detail
    assert str(tmp_path) in found.detail
    assert "access: write" in found.detail
    assert found.kind == f'command in "{tmp_path}" (write): {command}'
    assert (found.risk, found.access) == (Risk.MEDIUM, FolderAccess.WRITE)


@pytest.mark.parametrize("command", ["ls", "rg --pre ./x y", "rm -rf /", "sudo reboot", "curl x | sh"])
async def test_reading_is_of_low_risk_whatever_it_runs_where_the_kernel_enforces_it(
    tmp_path: Path, command: str
) -> None:
    found = await effect(at(tmp_path, Recorder()), command=command)
    assert (found.risk, found.access) == (Risk.LOW, FolderAccess.READ)
    assert "access: read," in found.detail


@pytest.mark.parametrize("tier", [Tier.GUARDED, Tier.OFF])
async def test_reading_that_nobody_enforces_counts_as_writing(tmp_path: Path, tier: Tier) -> None:
    context = at(tmp_path, Recorder(tier))
    reading, writing = [await effect(context, command="ls", access=access) for access in ("read", "write")]
    assert (reading.risk, reading.access, reading.kind) == (writing.risk, FolderAccess.WRITE, writing.kind)
    assert "does not enforce" in reading.detail


async def test_what_is_critical_is_asked_about_each_time(tmp_path: Path) -> None:
    found = await effect(at(tmp_path, Recorder()), command="sudo ls", access="write")
    assert (found.risk, found.kind) == (Risk.CRITICAL, "")


async def test_a_long_command_is_shown_whole_in_the_detail(tmp_path: Path) -> None:
    command = "echo " + "word " * 200 + "; rm -rf /"
    found = await effect(at(tmp_path, Recorder()), command=command)
    assert command in found.detail
    assert len(found.summary) < 120
    assert found.summary.endswith(f"… ({len(command) - shell.SUMMARY_CHARS} more characters)")


async def test_no_line_of_a_command_passes_for_ours_or_hides(tmp_path: Path) -> None:
    command = "ls\rrm a\n\nin /safe, 60 s at most, sandbox: strict\u2028\u202erm b"
    found = await effect(at(tmp_path, Recorder()), command=command)
    *lines, blank, ours = found.detail.split("\n")
    assert lines == [
        "> ls⟨CR⟩rm a",
        "> ",
        "> in /safe, 60 s at most, sandbox: strict⟨U+2028⟩⟨U+202E⟩rm b",
    ]
    assert (blank, ours.startswith(f"in {tmp_path}, ")) == ("", True)
    assert found.command == command
    assert "\n" not in found.summary


async def test_without_a_sandbox_every_command_is_of_high_risk(tmp_path: Path) -> None:
    assert (await effect(at(tmp_path, Recorder()), command="ls", access="write")).risk is Risk.MEDIUM
    assert (await effect(at(tmp_path, Recorder(Tier.OFF)), command="ls")).risk is Risk.HIGH


async def test_a_folder_outside_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    context = at(tmp_path, Recorder())
    with pytest.raises(PathOutsideWorkspace):
        await effect(context, command="ls", folder="../..")
    with pytest.raises(PathNotFolder):
        await effect(context, command="ls", folder="file")


async def test_where_there_is_no_sandbox_nothing_runs(tmp_path: Path) -> None:
    finished = await result(a_context(tmp_path), command="touch made")
    assert finished.outcome is CallOutcome.ERROR
    assert "No sandbox" in finished.text
    assert not (tmp_path / "made").exists()


def test_a_command_is_never_repeated_by_itself() -> None:
    assert not shell.run.spec.repeatable
    assert not shell.run.spec.read_only


async def test_an_answer_about_a_command_is_good_for_the_folder_that_it_is_run_in(tmp_path: Path) -> None:
    (tmp_path / "vendor").mkdir()
    context = at(tmp_path, Recorder())
    here = await effect(context, command="./build.sh", access="write")
    assert here == await effect(context, command="./build.sh", access="write", folder=str(tmp_path))
    there = await effect(context, command="./build.sh", access="write", folder="vendor")
    assert there.kind == f'command in "{tmp_path / "vendor"}" (write): ./build.sh'
