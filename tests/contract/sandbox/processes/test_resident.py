"""Programs that stay see the machine as its owner does, and Palyra's folders neither there nor elsewhere."""

import asyncio
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import palyra
from palyra.sandbox.base import RootNotAllowed
from palyra.sandbox.files.root import RootSymlinked
from palyra.sandbox.processes import installation, mounts, resident
from palyra.sandbox.processes.descriptors import INHERITED
from palyra.sandbox.processes.resident import HiddenPaths, ResidentJob, start
from tests.contract.sandbox.conftest import SECRET
from tests.support.needs import BUBBLEWRAP, LINUX, needs, require


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """A folder that no program is given as one for temporary files."""
    require(BUBBLEWRAP)
    with tempfile.TemporaryDirectory(prefix=".palyra-test-", dir=Path.home()) as name:
        yield Path(name)


@needs(BUBBLEWRAP)
async def test_the_way_to_a_covered_folder_can_not_be_exchanged(tmp_path: Path) -> None:
    home = tmp_path / "share/palyra"
    home.mkdir(parents=True)
    (home / "token").write_text(SECRET)
    command = (
        f"cd {tmp_path}; mv share other; mv share/palyra share/other; cat share/palyra/token */*/token > seen;"
        " mkdir -p share/palyra; echo x > share/palyra/token; echo done > share/work"
    )
    resident = await start(
        ResidentJob(("/bin/bash", "-c", command), cover=HiddenPaths(folders=(home,))), max_bytes=1024
    )
    try:
        await resident.ended()
    finally:
        resident.stop()
    assert (home / "token").read_text() == SECRET
    assert (tmp_path / "seen").read_text() == ""
    assert (tmp_path / "share/work").read_text() == "done\n", "around it, programs work"


@needs(LINUX)
async def test_a_program_begins_with_the_descriptors_that_the_daemon_was_started_with(tmp_path: Path) -> None:
    """The daemon raises its own limit for its clients; programs may fail with a higher one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = tmp_path / "said"
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        resident = await start(
            ResidentJob(("/bin/bash", "-c", f"ulimit -Sn > {said}; ulimit -Hn >> {said}")), max_bytes=1024
        )
        try:
            await resident.ended()
        finally:
            resident.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert said.read_text().split() == [str(INHERITED), str(hard)]


async def outcome_of(command: str, cover: HiddenPaths) -> str:
    """Run a command as a program that stays, to its end; return what it said on its standard output."""
    resident = await start(ResidentJob(("/bin/bash", "-c", command), cover=cover), max_bytes=1 << 20)
    try:
        said = await resident.reader.read()
        await resident.ended()
    finally:
        resident.stop()
    return said.decode()


async def test_a_program_changes_only_what_was_named(own_folder: Path) -> None:
    named, other = own_folder / "named", own_folder / "other"
    for folder in (named, other):
        folder.mkdir()
    (other / ".bashrc").write_text("as it was\n")
    command = (
        f"cd {own_folder}; echo x >> other/.bashrc; mkdir other/bin; mv other another; ln other/.bashrc named/l;"
        " echo done > named/work; echo x > /dev/shm/x && echo shared; mktemp -d >/dev/null && echo temporary"
    )
    said = await outcome_of(command, HiddenPaths(writable=(named,)))
    assert said == "shared\ntemporary\n"
    assert (named / "work").read_text() == "done\n"
    assert (other / ".bashrc").read_text() == "as it was\n"
    assert [path.name for path in other.iterdir()] == [".bashrc"]


async def test_what_palyra_runs_from_is_never_changed(
    own_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where the owner lets a program write around it, nor in a folder for temporary files."""
    places = [own_folder / "tools/palyra", tmp_path / "venv"]
    for place in places:
        place.mkdir(parents=True)
        (place / "module.py").write_text("as it was\n")
    monkeypatch.setattr(installation, "folders", lambda: tuple(places))
    tries = [
        f"echo x >> {place}/module.py; echo x > {place}/sitecustomize.py; mv {place} {place}-old; mv {place.parent}"
        f" {place.parent}-old; rm -r {place}; chmod 777 {place}; mkdir -p {place}/__pycache__"
        for place in places
    ]
    await outcome_of("; ".join(tries) + f"; echo done > {own_folder}/work", HiddenPaths(writable=(own_folder,)))
    assert (own_folder / "work").read_text() == "done\n"
    for place in places:
        assert [path.name for path in place.iterdir()] == ["module.py"]
        assert (place / "module.py").read_text() == "as it was\n"
    with pytest.raises(RootNotAllowed, match="itself runs"):
        await outcome_of("true", HiddenPaths(writable=(places[0],)))


@pytest.mark.parametrize("name", ["/", "/proc", "/sys/fs/cgroup"])
async def test_the_system_is_not_named(own_folder: Path, name: str) -> None:
    with pytest.raises(RootNotAllowed):
        await outcome_of("true", HiddenPaths(writable=(Path(name),)))


async def test_no_folder_of_palyras_is_named(own_folder: Path) -> None:
    with pytest.raises(RootNotAllowed):
        await outcome_of("true", HiddenPaths(folders=(own_folder,), writable=(own_folder / "policy",)))


async def test_what_may_be_changed_is_reached_through_no_link_of_an_agent(own_folder: Path) -> None:
    workspace, outside = own_folder / "workspace", own_folder / "outside"
    for folder in (workspace / "data", outside):
        folder.mkdir(parents=True)
    (workspace / "data" / "file").touch()
    (own_folder / "alias").symlink_to(workspace / "data")
    for path in (workspace / "data", own_folder / "alias", workspace / "data" / "file"):
        cover = HiddenPaths(writable=(path,), workspaces=(workspace,))
        await outcome_of(f"echo done > {workspace}/data/file; echo x > {outside}/made", cover)
        assert (workspace / "data" / "file").read_text() == "done\n"
        (workspace / "data" / "file").write_text("")
    (workspace / "data").rename(workspace / "before")
    for target in (outside, Path("before"), Path("data")):
        (workspace / "data").symlink_to(target)
        for path in (workspace / "data", own_folder / "alias", workspace / "data" / "file"):
            with pytest.raises(RootSymlinked):
                await outcome_of("true", HiddenPaths(writable=(path,), workspaces=(workspace,)))
        (workspace / "data").unlink()
    assert list(outside.iterdir()) == []


async def test_what_may_be_changed_is_what_was_opened(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, outside = own_folder / "workspace", own_folder / "outside"
    data = workspace / "data"
    for folder in (data, outside):
        folder.mkdir(parents=True)

    real = mounts.followed

    def followed(path: Path) -> tuple[Path, tuple[Path, ...]]:
        found = real(path)
        data.rename(workspace / "before")
        data.symlink_to(outside)
        return found

    monkeypatch.setattr(resident, "followed", followed)
    with pytest.raises(RootSymlinked):
        await outcome_of(f"echo x > {data}/made", HiddenPaths(writable=(data,), workspaces=(workspace,)))
    assert list(outside.iterdir()) == []


async def test_this_test_runs_from_folders_that_no_program_changes(own_folder: Path) -> None:
    files = [palyra.__file__, sys.executable, os.__file__, f"{sys.prefix}/bin/palyra"]
    folders = await asyncio.to_thread(installation.folders)
    tries = [f"echo >> {file} && echo changed {file}" for file in files]
    tries += [f"echo > {folder}/was-here && echo changed {folder}" for folder in folders]
    assert await outcome_of("; ".join(tries), HiddenPaths()) == ""
