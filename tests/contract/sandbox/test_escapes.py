"""Known ways out of a sandbox: each must fail, in every tier that confines."""

import asyncio
import os
import platform
import sys
from pathlib import Path

import pytest

import palyra
from palyra.home import Home
from palyra.sandbox.base import RootNotAllowed, SandboxJob, Tier
from palyra.sandbox.files.root import WorkspaceRoot
from palyra.sandbox.processes.mounts import HiddenFolders
from palyra.sandbox.processes.process import ProcessSandbox, private_to
from tests.contract.sandbox.conftest import SECRET, Ground
from tests.contract.sandbox.tricks import KERNEL, TRICKS
from tests.support.needs import BUBBLEWRAP, ROOT, needs, skip

WORK_WITHOUT_A_SANDBOX = (
    "read Palyra's token",
    "set the times of a file outside",
    "watch names outside the workspace",
    "make others wait for a file of the system",
    "change the owner or group of a file outside",
    "read the token through a link in the workspace",
    "read a file outside the workspace",
    "signal a process outside",
    "set a limit of a process outside",
    "read memory that processes outside share",
    "leave a program that runs as its owner",
    "make a file that runs as its owner at once",
    "read the command lines of others",
    "connect to loopback",
    "connect to a socket file of the machine",
    "connect to an abstract socket of the machine",
)
OF_ROOT = ("make others wait for a file of the system",)
"""Those that take the right to somebody else's files: an ordinary user is kept from them by the system."""


def filled(trick: str, ground: Ground, *, victim: int, segment: int, port: int, sockets: tuple[str, str]) -> str:
    values = {
        "{home}": str(ground.home),
        "{outside}": str(ground.outside),
        "{link}": str(ground.workspace / "link"),
        "{victim}": str(victim),
        "{segment}": str(segment),
        "{port}": str(port),
        "{socket}": sockets[0],
        "{abstract}": sockets[1],
    }
    text = TRICKS[trick]
    for name, value in values.items():
        text = text.replace(name, value)
    return text


@pytest.mark.parametrize("trick", TRICKS)
async def test_the_trick_fails(
    ground: Ground, tier: Tier, trick: str, *, victim: int, segment: int, listening: int, sockets: tuple[str, str]
) -> None:
    if trick in KERNEL and platform.machine() != "x86_64":
        skip("x86_64", "the numbers of the system calls are those of it")
    command = filled(trick, ground, victim=victim, segment=segment, port=listening, sockets=sockets)

    outcome = await ground.run(tier, command)

    said = outcome.stdout.text + outcome.stderr.text
    assert "TRIED" in said, said
    assert "ESCAPED" not in said, said
    assert SECRET not in said
    assert (ground.outside / "diary.txt").read_text() == SECRET
    assert [path.name for path in ground.outside.iterdir() if path.name != "s"] == ["diary.txt"]


@pytest.mark.parametrize(
    "trick", [pytest.param(one, marks=needs(ROOT) if one in OF_ROOT else ()) for one in WORK_WITHOUT_A_SANDBOX]
)
async def test_the_trick_is_one(
    ground: Ground, trick: str, *, victim: int, segment: int, listening: int, sockets: tuple[str, str]
) -> None:
    command = filled(trick, ground, victim=victim, segment=segment, port=listening, sockets=sockets)
    outcome = await ground.run(Tier.OFF, command)
    assert "ESCAPED" in outcome.stdout.text, outcome.stderr.text


@needs(BUBBLEWRAP)
async def test_the_home_is_covered_when_it_lies_in_the_workspace(ground: Ground, tmp_path: Path) -> None:
    sandbox = ProcessSandbox(Tier.STRICT, private=HiddenFolders((ground.home,), open=(ground.workspace,)))
    command = f"ls -A {ground.home}; cat {ground.home}/token {ground.outside}/diary.txt; touch {ground.home}/x"
    roots = (WorkspaceRoot(ground.folder), WorkspaceRoot(ground.workspace))
    outcome = await sandbox.run(SandboxJob(argv=("/bin/bash", "-c", command), roots=roots, folder=ground.folder))
    assert outcome.stdout.text == f"workspace\n{SECRET}", "only what is not Palyra's is seen"
    assert not (ground.home / "x").exists()


@needs(BUBBLEWRAP)
async def test_the_way_to_the_home_can_not_be_exchanged(tmp_path: Path) -> None:
    """Else another home would stand in its place, and the covered one under another name, open to the next program."""
    root, home = tmp_path / "u", tmp_path / "u/share/data/palyra"
    (home / "workspace").mkdir(parents=True)
    (home / "token").write_text(SECRET)
    sandbox = ProcessSandbox(Tier.STRICT, private=HiddenFolders((home,), open=(home / "workspace",)))
    for command in (
        "mv share other; mv share/data share/other; mv share/data/palyra share/data/other; rmdir share/data/palyra",
        "mkdir -p share/data/palyra; echo x > share/data/palyra/token; echo y > share/new; find -name token",
    ):
        outcome = await sandbox.run(
            SandboxJob(argv=("/bin/bash", "-c", command), roots=(WorkspaceRoot(root),), folder=root)
        )
        assert "token" not in outcome.stdout.text
    assert (home / "token").read_text() == SECRET
    assert (root / "share/new").read_text() == "y\n", "around it, programs work"


@needs(BUBBLEWRAP)
async def test_the_homes_of_other_profiles_are_covered_too(tmp_path: Path) -> None:
    root = tmp_path / "u"
    homes = [Home(root / name) for name in ("palyra", "palyra-work")]
    for home in homes:
        home.workspace.mkdir(parents=True)
        home.token.write_text(SECRET)
        home.lock.touch()
    (root / "palyra-notes").mkdir()
    (root / "palyra-notes/token").write_text("of the person's own\n")
    sandbox = ProcessSandbox(Tier.STRICT, private=await asyncio.to_thread(private_to, homes[1]))
    command = ("/bin/bash", "-c", "cat */token; echo x > palyra/token; mv palyra other")
    outcome = await sandbox.run(SandboxJob(argv=command, roots=(WorkspaceRoot(root),), folder=root))
    assert outcome.stdout.text == "of the person's own\n"
    assert [home.token.read_text() for home in homes] == [SECRET] * 2
    shared = SandboxJob(argv=("/bin/true",), roots=(WorkspaceRoot(homes[0].workspace),), folder=homes[0].workspace)
    assert (await sandbox.run(shared)).exit_code == 0, "two profiles may work in one folder"


@pytest.mark.parametrize("link", [".palyra", "on/the/way"])
async def test_a_link_to_the_home_may_not_lie_in_the_workspace(tier: Tier, tmp_path: Path, link: str) -> None:
    root, real = tmp_path / "u", tmp_path / "disk/palyra"
    (real / "workspace").mkdir(parents=True)
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(real if link == ".palyra" else real.parent)
    home = root / link if link == ".palyra" else root / link / "palyra"
    sandbox = ProcessSandbox(tier, private=HiddenFolders((home,), open=(home / "workspace",)))
    with pytest.raises(RootNotAllowed, match="could replace it"):
        await sandbox.run(SandboxJob(argv=("/bin/true",), roots=(WorkspaceRoot(root),), folder=root))
    inside = SandboxJob(argv=("/bin/true",), roots=(WorkspaceRoot(home / "workspace"),), folder=real / "workspace")
    assert (await sandbox.run(inside)).exit_code == 0


@pytest.mark.parametrize("place", ["tools/palyra", "", "src"])
async def test_what_palyra_runs_from_is_only_read_in_a_workspace(tier: Tier, tmp_path: Path, place: str) -> None:
    root = tmp_path / "u"
    (root / "src").mkdir(parents=True)
    fixed = root / place
    fixed.mkdir(parents=True, exist_ok=True)
    (fixed / "module.py").write_text("as it was\n")
    sandbox = ProcessSandbox(tier, private=HiddenFolders(fixed=(fixed,)))
    command = (
        f"cat {fixed}/module.py; cd {fixed}; echo x >> module.py; echo x > sitecustomize.py; mkdir __pycache__;"
        f" cd {root}; mv tools other; mv {fixed} other; rm -r {fixed}; echo y > {root}/work; true"
    )
    job = SandboxJob(argv=("/bin/bash", "-c", command), roots=(WorkspaceRoot(root),), folder=root)
    if tier is Tier.GUARDED:
        with pytest.raises(RootNotAllowed, match="runs from"):
            await sandbox.run(job)
        return
    outcome = await sandbox.run(job)
    assert outcome.stdout.text == "as it was\n"
    assert (fixed / "module.py").read_text() == "as it was\n"
    assert not (fixed / "sitecustomize.py").exists()
    assert (root / "work").exists() is (place != ""), "around it, programs work"


def test_the_sandbox_of_a_daemon_keeps_what_it_runs_from(tmp_path: Path) -> None:
    kept = private_to(Home(tmp_path)).fixed
    used = [Path(os.path.realpath(file)) for file in (palyra.__file__, os.__file__, pytest.__file__, sys.prefix)]
    assert all(any(file.is_relative_to(folder) for folder in kept) for file in used), kept
