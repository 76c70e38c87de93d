"""A workspace with things around it that no program may reach."""

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from palyra.sandbox.base import ProgramOutcome, ResourceLimits, SandboxJob, Tier
from palyra.sandbox.files.root import WorkspaceRoot
from palyra.sandbox.processes.mounts import HiddenFolders
from palyra.sandbox.processes.process import ProcessSandbox
from tests.support.needs import TIERS, needs

SECRET = "keep-this-secret"
CONFINING = [pytest.param(tier, marks=needs(need)) for tier, need in TIERS.items()]


@dataclass(frozen=True, slots=True)
class Ground:
    """A folder with a workspace, and beside it what is not the program's."""

    folder: Path

    @property
    def workspace(self) -> Path:
        return self.home / "workspace"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def outside(self) -> Path:
        return self.folder / "outside"

    def sandbox(self, tier: Tier) -> ProcessSandbox:
        return ProcessSandbox(tier, private=HiddenFolders((self.home,), open=(self.workspace,)))

    async def run(self, tier: Tier, command: str, *, bounds: ResourceLimits | None = None) -> ProgramOutcome:
        job = SandboxJob(
            argv=("/bin/bash", "-c", command),
            roots=(WorkspaceRoot(self.workspace),),
            folder=self.workspace,
            bounds=bounds or ResourceLimits(wall=timedelta(seconds=10)),
        )
        return await self.sandbox(tier).run(job)


@pytest.fixture(params=CONFINING)
def tier(request: pytest.FixtureRequest) -> Tier:
    """A tier that confines."""
    found: Tier = request.param
    return found


@pytest.fixture(params=[*CONFINING, Tier.OFF])
def any_tier(request: pytest.FixtureRequest) -> Tier:
    """A tier, whatever it does."""
    found: Tier = request.param
    return found


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    ground = Ground(tmp_path)
    ground.workspace.mkdir(parents=True)
    ground.outside.mkdir()
    (ground.home / "token").write_text(SECRET)
    (ground.outside / "diary.txt").write_text(SECRET)
    (ground.workspace / "link").symlink_to(ground.home)
    return ground


@pytest.fixture
def victim() -> Iterator[int]:
    """A process of the same user, with a secret in its command line and environment."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", SECRET]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env={"SECRET": SECRET}) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def segment() -> Iterator[int]:
    """Memory of the same user that is shared as System V has it, by its number."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = int(libc.shmget(0, ctypes.c_size_t(4096), 0o1600))
    assert number >= 0, os.strerror(ctypes.get_errno())
    yield number
    libc.shmctl(number, 0, None)


@pytest.fixture
def listening() -> Iterator[int]:
    """A port on loopback, of both kinds, that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as four:
        port = four.getsockname()[1]
        with socket.create_server(("::1", port), family=socket.AF_INET6):
            yield port


@pytest.fixture
async def sockets(ground: Ground, tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """A socket file outside the workspace, and an abstract socket."""
    name = f"palyra-{os.getpid()}-{id(ground)}"
    path = ground.outside / "s"
    with socket.socket(socket.AF_UNIX) as file, socket.socket(socket.AF_UNIX) as abstract:
        # The path may be longer than such an address can be.
        before = os.open(".", os.O_RDONLY)
        os.chdir(ground.outside)
        file.bind("s")
        os.fchdir(before)
        os.close(before)
        abstract.bind(f"\0{name}")
        file.listen()
        abstract.listen()
        yield str(path), name
