"""A program is given the folder that was opened, whatever the tenant puts in its place meanwhile."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from palyra.core.errors import PalyraError
from palyra.sandbox.base import ProgramOutcome, RootNotAllowed, SandboxJob, Tier
from palyra.sandbox.files.root import MAX_ROOTS, RootOutsideWorkspace, RootSymlinked, WorkspaceRoot
from palyra.sandbox.processes import launch, process
from palyra.sandbox.processes.launch import LaunchPlan
from palyra.sandbox.processes.mounts import HiddenFolders
from tests.contract.sandbox.conftest import SECRET, Ground
from tests.support.needs import BUBBLEWRAP, require

OPEN_FOLDERS = """
import os, stat
for number in range(3, 1024):
    try:
        print(number) if stat.S_ISDIR(os.fstat(number).st_mode) else None
    except OSError:
        pass
"""


@pytest.fixture
def sub(ground: Ground) -> Path:
    folder = ground.workspace / "sub"
    (folder / "deep").mkdir(parents=True)
    (folder / "diary.txt").write_text("mine\n")
    (folder / "deep" / "diary.txt").write_text("deep\n")
    return folder


@pytest.fixture
def strict() -> Tier:
    require(BUBBLEWRAP)
    return Tier.STRICT


async def run(
    ground: Ground, tier: Tier, command: str, *below: Path, folder: Path | None = None, read_only: bool = False
) -> ProgramOutcome:
    job = SandboxJob(
        argv=("/bin/sh", "-c", command),
        roots=tuple(WorkspaceRoot(ground.workspace, path) for path in below),
        folder=folder or below[0],
        read_only=read_only,
    )
    return await ground.sandbox(tier).run(job)


def replace_by_link(folder: Path, target: Path) -> None:
    folder.rename(folder.with_name(folder.name + "-before"))
    folder.symlink_to(target)


async def test_a_program_works_in_a_root_below_the_workspace(ground: Ground, any_tier: Tier, sub: Path) -> None:
    outcome = await run(ground, any_tier, "pwd; cat diary.txt deep/diary.txt; echo new > new.txt; ls -a ..", sub)
    assert outcome.stdout.text.startswith(f"{sub}\nmine\ndeep\n"), outcome
    assert (sub / "new.txt").read_text() == "new\n"
    if any_tier is Tier.STRICT:
        assert outcome.stdout.text.endswith("deep\n.\n..\nsub\n")


async def test_a_root_that_became_a_link_is_refused(ground: Ground, any_tier: Tier, sub: Path) -> None:
    replace_by_link(sub, ground.outside)
    for below in (sub, sub / "deep"):
        with pytest.raises(RootSymlinked):
            await run(ground, any_tier, "touch ran", below)
    assert [path.name for path in ground.outside.iterdir()] == ["diary.txt"]


async def test_a_root_outside_of_the_workspace_is_refused(ground: Ground, any_tier: Tier) -> None:
    for below in (ground.outside, ground.workspace / ".." / "token", ground.workspace / ".."):
        with pytest.raises(RootOutsideWorkspace):
            await run(ground, any_tier, "touch ran", below)


@pytest.mark.parametrize("to", ["link", "folder"])
@pytest.mark.parametrize("read_only", [False, True])
async def test_what_was_opened_is_what_a_program_gets(
    ground: Ground, any_tier: Tier, sub: Path, to: str, read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is replaced behind the check, before anything is mounted."""

    def swap() -> None:
        replace_by_link(sub, ground.outside)
        if to == "folder":
            sub.unlink()
            ground.outside.rename(sub)

    _before_the_start(monkeypatch, swap)
    outcome = await run(
        ground, any_tier, "cat diary.txt; touch made; cd /; cd $OLDPWD; cat diary.txt", sub, read_only=read_only
    )
    confined = any_tier is not Tier.OFF
    assert outcome.stdout.text.startswith("mine\n"), outcome
    assert SECRET not in outcome.stdout.text or not confined
    assert not (sub / "made").exists()
    assert (sub.with_name("sub-before") / "made").exists() is not (read_only and confined)


async def test_a_folder_that_is_gone_before_the_start_runs_nothing(
    ground: Ground, strict: Tier, sub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = ground.workspace / "empty"
    root.mkdir()

    def swap() -> None:
        root.rmdir()
        root.symlink_to(ground.outside)

    _before_the_start(monkeypatch, swap)
    with pytest.raises(RootNotAllowed, match="was replaced"):
        await run(ground, strict, "touch made", root)
    assert not (ground.outside / "made").exists()


async def test_the_start_folder_is_reached_through_no_link(ground: Ground, any_tier: Tier, sub: Path) -> None:
    replace_by_link(sub / "deep", ground.outside)
    with pytest.raises(RootSymlinked):
        await run(ground, any_tier, "cat diary.txt", sub, folder=sub / "deep")


async def test_no_program_starts_outside_of_its_roots(ground: Ground, any_tier: Tier, sub: Path) -> None:
    with pytest.raises(RootNotAllowed, match="is not inside a folder"):
        await run(ground, any_tier, "pwd", sub, folder=ground.outside)
    with pytest.raises(RootOutsideWorkspace):
        await run(ground, any_tier, "pwd", sub, folder=sub / ".." / "..")


async def test_no_open_folder_is_inherited(ground: Ground, any_tier: Tier, sub: Path) -> None:
    command = f"/usr/bin/python3 -c '{OPEN_FOLDERS}'"
    outcome = await run(ground, any_tier, command, sub, ground.workspace)
    assert (outcome.exit_code, outcome.stdout.text) == (0, ""), outcome


async def test_a_root_inside_another_is_not_mounted_there(ground: Ground, tier: Tier, sub: Path) -> None:
    outcome = await run(ground, tier, "cat sub/diary.txt sub/deep/diary.txt", ground.workspace, sub, sub / "deep")
    assert outcome.stdout.text == "mine\ndeep\n"


async def test_there_are_not_more_roots_than_a_program_can_be_given(ground: Ground, tier: Tier, sub: Path) -> None:
    with pytest.raises(RootNotAllowed, match="at most"):
        await run(ground, tier, "true", *[sub] * (MAX_ROOTS + 1))


async def test_without_mounts_by_descriptor_a_root_below_the_workspace_is_refused(
    ground: Ground, strict: Tier, sub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "binds_by_descriptor", lambda bwrap: False)
    with pytest.raises(RootNotAllowed, match="bubblewrap cannot mount it by descriptor"):
        await run(ground, strict, "touch ran", sub)
    outcome = await ground.run(strict, "cat sub/diary.txt")
    assert outcome.stdout.text == "mine\n"


async def test_a_root_that_is_swapped_all_the_time_never_shows_what_is_outside(
    ground: Ground, tier: Tier, sub: Path
) -> None:
    for _ in range(8):
        with _swapping(sub, ground.outside):
            try:
                outcome = await run(ground, tier, "cat diary.txt; touch made", sub)
            except PalyraError:
                continue
            assert SECRET not in outcome.stdout.text
    assert not (ground.outside / "made").exists()


def _before_the_start(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    def prepare(tier: Tier, job: SandboxJob, private: HiddenFolders, *, base: Path | None) -> LaunchPlan:
        ready = launch.prepare(tier, job, private, base=base)
        act()
        return ready

    monkeypatch.setattr(process, "prepare", prepare)


@contextmanager
def _swapping(folder: Path, outside: Path) -> Iterator[None]:
    """Let the folder be itself and a link to another one, in turns."""
    aside, stop = folder.with_name("aside"), threading.Event()

    def swap() -> None:
        while not stop.is_set():
            folder.rename(aside)
            folder.symlink_to(outside)
            folder.unlink()
            aside.rename(folder)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
