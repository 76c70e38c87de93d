"""Memory that belongs to none of a program's processes counts as the program's, or is not given.

Each way to take it is tried twice: where the supervisor counts, and, on machines that give us a control group, where
the kernel does.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from palyra.sandbox.base import MIB, ProgramOutcome, ResourceLimits, SandboxJob, Tier
from palyra.sandbox.files.root import WorkspaceRoot
from palyra.sandbox.processes import cgroups
from palyra.sandbox.processes.mounts import HiddenFolders
from palyra.sandbox.processes.process import ProcessSandbox
from tests.contract.sandbox.conftest import Ground
from tests.support.needs import BUBBLEWRAP, LANDLOCK, needs, skip

LIMIT = ResourceLimits(wall=timedelta(seconds=15), memory_bytes=150 * MIB)
FILL = """
def fill(socket):
    socket.setblocking(False)
    try:
        while True: socket.send(bytes(65536))
    except BlockingIOError: pass
"""
EVERYWHERE = {
    "pairs of sockets": (
        FILL + "for _ in range(500):\n pair = socketpair(); kept.append(pair)\n [fill(one) for one in pair]"
    ),
    "shared memory that is not resident": (
        "m = mmap.mmap(-1, 600 << 20)\n"
        "for at in range(0, 600 << 20, 1 << 20):\n"
        " m[at:at + (1 << 20)] = bytes(1 << 20); m.madvise(mmap.MADV_DONTNEED, at, 1 << 20)"
    ),
    "page tables": (
        "for _ in range(8):\n"
        " m = mmap.mmap(-1, 1 << 36, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, mmap.PROT_READ); kept.append(m)\n"
        " for at in range(0, 1 << 36, 1 << 21): m[at]"
    ),
}
APART = {
    "messages whose senders are gone": (
        "for n in range(100):\n"
        " r = socket(AF_UNIX, SOCK_DGRAM); r.bind(f'/tmp/{n}'); kept.append(r)\n"
        " for _ in range(10):\n"
        "  s = socket(AF_UNIX, SOCK_DGRAM); s.sendto(bytes(200000), f'/tmp/{n}'); s.close()"
    ),
    "connections that nobody accepts": (
        FILL + "l = socket(AF_UNIX); l.bind('/tmp/l'); l.listen(4096)\n"
        "for _ in range(2000):\n s = socket(AF_UNIX); s.connect('/tmp/l'); fill(s); s.close()"
    ),
    "connections over loopback": (
        FILL + "l = create_server(('127.0.0.1', 0), backlog=4096)\n"
        "for _ in range(800):\n s = create_connection(l.getsockname()); kept.append(s); fill(s)"
    ),
    "netlink sockets": ("for _ in range(500):\n s = socket(16, SOCK_RAW, 0); s.bind((0, 0)); kept.append(s)"),
    "files in memory": (
        "for n in range(3):\n"
        " open(f'/tmp/{n}', 'wb').write(bytes(40 << 20)); open(f'/dev/shm/{n}', 'wb').write(bytes(20 << 20))"
    ),
}


async def run(
    tier: Tier, folder: Path, code: str, *, base: Path | None = None, bounds: ResourceLimits = LIMIT
) -> ProgramOutcome:
    """Run Python code, which then stays for as long as it may."""
    program = (
        f"import mmap, time\nfrom socket import *\nkept = []\n{code}\nprint('taken', flush=True)\ntime.sleep(60)\n"
    )
    job = SandboxJob(
        argv=("/usr/bin/python3", "-c", program), roots=(WorkspaceRoot(folder),), folder=folder, bounds=bounds
    )
    return await ProcessSandbox(tier, private=HiddenFolders(), base=base).run(job)


def left_in(base: Path) -> list[Path]:
    return list(base.glob(f"{cgroups.PREFIX}*"))


@pytest.fixture
def base() -> Iterator[Path]:
    """A control group that those of programs can be made in."""
    found = cgroups.take()
    if found.base is None:
        skip("control group", found.reason)
    yield found.base
    assert not left_in(found.base), "no group outlives its program"


@pytest.mark.parametrize("what", EVERYWHERE)
async def test_the_supervisor_counts_it(tier: Tier, tmp_path: Path, what: str) -> None:
    outcome = await run(tier, tmp_path, EVERYWHERE[what])
    assert "150 MiB of memory" in outcome.stopped, outcome.stderr.text


@pytest.mark.parametrize("what", APART)
@needs(BUBBLEWRAP)
async def test_the_supervisor_counts_it_in_namespaces(tmp_path: Path, what: str) -> None:
    outcome = await run(Tier.STRICT, tmp_path, APART[what])
    assert "150 MiB of memory" in outcome.stopped, outcome.stderr.text


@pytest.mark.parametrize("what", [*EVERYWHERE, *APART])
@needs(BUBBLEWRAP)
async def test_the_kernel_counts_it(base: Path, tmp_path: Path, what: str) -> None:
    outcome = await run(Tier.STRICT, tmp_path, {**EVERYWHERE, **APART}[what], base=base)
    assert "150 MiB of memory" in outcome.stopped, outcome.stderr.text


@pytest.mark.parametrize(
    "code", ["x = bytearray(300 << 20)", "m = mmap.mmap(-1, 400 << 20)\nm.write(bytes(400 << 20))"]
)
async def test_the_kernel_counts_processes_too(base: Path, tmp_path: Path, any_tier: Tier, code: str) -> None:
    outcome = await run(any_tier, tmp_path, code, base=base)
    assert "150 MiB of memory" in outcome.stopped or "MemoryError" in outcome.stderr.text


async def test_a_control_group_ends_with_its_program(base: Path, tmp_path: Path, any_tier: Tier) -> None:
    bounds = ResourceLimits(wall=timedelta(seconds=10))
    outcome = await run(any_tier, tmp_path, "raise SystemExit(3)", base=base, bounds=bounds)
    assert (outcome.exit_code, outcome.stopped) == (3, "")
    assert not await asyncio.to_thread(left_in, base)
    outcome = await run(any_tier, tmp_path, "", base=base, bounds=ResourceLimits(wall=timedelta(seconds=0.5)))
    assert outcome.timed_out
    assert not await asyncio.to_thread(left_in, base)


async def test_system_v_memory_is_given_where_the_kernel_counts_it(base: Path, tmp_path: Path) -> None:
    code = "import ctypes; print(ctypes.CDLL(None).shmget(0, ctypes.c_size_t(64 << 20), 0o1600)); raise SystemExit(0)"
    assert (await run(Tier.STRICT, tmp_path, code, base=base)).stdout.text == "0\n"


DENIED = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
read, write = os.pipe()
data = ctypes.create_string_buffer(64)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(data), 64)
file = os.open('/usr/bin/env', os.O_RDONLY)
one, other = socket.socketpair()
before = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
found = {
    'shmget': libc.shmget(0, ctypes.c_size_t(4097), 0o1600),
    'msgget': libc.msgget(0, 0o1600),
    'semget': libc.semget(0, 1000, 0o1600),
    'vmsplice': libc.vmsplice(write, vector, ctypes.c_size_t(1), 0),
    'splice': libc.splice(file, None, write, None, ctypes.c_size_t(1), 0),
    'sendfile': libc.sendfile(one.fileno(), file, None, ctypes.c_size_t(1)),
    'buffer': -1 if one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before else 0,
}
print([name for name, answer in found.items() if answer != -1])
raise SystemExit(0)
"""


async def test_what_cannot_be_counted_is_not_given(tier: Tier, tmp_path: Path) -> None:
    outcome = await run(tier, tmp_path, DENIED)
    assert outcome.stdout.text == "[]\n", outcome.stderr.text


@needs(LANDLOCK)
async def test_a_program_that_hides_its_files_is_taken_for_full(tmp_path: Path) -> None:
    """In `guarded` nothing else tells how many sockets it has."""
    hidden = "import ctypes; ctypes.CDLL(None).prctl(4, 0)\n"
    outcome = await run(Tier.GUARDED, tmp_path, hidden + EVERYWHERE["pairs of sockets"])
    assert "150 MiB of memory" in outcome.stopped


async def test_programs_with_a_few_sockets_pipes_and_shared_mappings_are_left_alone(tier: Tier, tmp_path: Path) -> None:
    code = (
        "import os, multiprocessing\nkept += [socketpair() for _ in range(40)] + [os.pipe() for _ in range(200)]\n"
        "m = mmap.mmap(-1, 40 << 20); m.write(bytes(40 << 20))\ntime.sleep(1); raise SystemExit(0)"
    )
    # Others on the machine take shared memory meanwhile, some of which may be taken for the program's.
    bounds = ResourceLimits(wall=timedelta(seconds=15), memory_bytes=400 * MIB)
    outcome = await run(tier, tmp_path, code, bounds=bounds)
    assert (outcome.exit_code, outcome.stopped) == (0, ""), outcome.stderr.text


async def test_tools_work_without_a_control_group(ground: Ground, tier: Tier) -> None:
    node = (
        "node -e 'require(`child_process`).spawn(`echo`, [`child`]).stdout.on(`data`, d => console.log(`${d}`.trim()))'"
    )
    command = (
        "set -e; printf 'all: a b\\na b:\\n\\techo $@ > $@\\n' > Makefile; make -s -j2; cat a b; cat a | tee c | wc -l;"
        f" if type node >/dev/null 2>&1; then {node}; else echo child; fi; head -c 3M /dev/zero > d;"
        ' cp d e; cmp d e; /usr/bin/python3 -c \'import shutil, subprocess; shutil.copyfile("d", "f");'
        ' print(subprocess.run(["cat", "a"], capture_output=True).stdout)\''
    )
    outcome = await ground.run(tier, command)
    assert outcome.stdout.text == "a\nb\n1\nchild\nb'a\\n'\n", outcome.stderr.text


def test_the_group_of_a_terminal_is_left_alone() -> None:
    """The tests are not alone in theirs, whatever the machine has."""
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", "input()"], {}, file_actions=[])
    try:
        found = cgroups.find()
        if found.base is not None:
            skip("shared control group", "the tests have one to themselves")
        assert found.reason
        assert cgroups.take() == found
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
