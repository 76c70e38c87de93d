"""A job that may only read has no effect outside its sandbox, in the one tier that promises it."""

import asyncio
import os
import socket
import stat
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from palyra.sandbox.base import ProgramOutcome, ResourceLimits, SandboxJob, Tier
from palyra.sandbox.files.root import WorkspaceRoot
from palyra.sandbox.processes.mounts import HiddenFolders
from palyra.sandbox.processes.process import ProcessSandbox
from palyra.sandbox.processes.tiers import landlock_version
from tests.contract.sandbox.conftest import SECRET, Ground
from tests.support.needs import BUBBLEWRAP, GIT, PERL, needs, require, skip

BOUNDS = ResourceLimits(wall=timedelta(seconds=20))


pytestmark = needs(BUBBLEWRAP)


async def read(folder: Path, command: str, *, sandbox: ProcessSandbox | None = None) -> ProgramOutcome:
    sandbox = sandbox or ProcessSandbox(Tier.STRICT, private=HiddenFolders(()))
    argv = ("/bin/bash", "-c", command)
    return await sandbox.run(
        SandboxJob(argv=argv, roots=(WorkspaceRoot(folder),), folder=folder, read_only=True, bounds=BOUNDS)
    )


async def python(folder: Path, program: str) -> str:
    """Run a Python program as a job that may only read, and return what it printed."""
    (folder / "program.py").write_text(program)
    outcome = await read(folder, "/usr/bin/python3 -B program.py")
    assert outcome.exit_code == 0, outcome.stderr.text
    return outcome.stdout.text.strip()


@pytest.mark.parametrize(("tier", "enforces"), [(Tier.STRICT, True), (Tier.GUARDED, False), (Tier.OFF, False)])
def test_only_strict_enforces_it(tier: Tier, enforces: bool) -> None:
    assert ProcessSandbox(tier, private=HiddenFolders(())).enforces_read is enforces


def test_without_bubblewrap_nothing_enforces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palyra.sandbox.processes.tiers.SEARCHED", "/nowhere")
    assert not ProcessSandbox(Tier.STRICT, private=HiddenFolders(())).enforces_read


@pytest.mark.parametrize(
    "command",
    [
        "echo new > old.txt",
        "echo new >> old.txt",
        "touch new.txt",
        "rm -f old.txt",
        "mv old.txt new.txt",
        "ln old.txt new.txt",
        "ln -s old.txt new.txt",
        "mkdir new",
        "mkfifo new",
        "mknod new p",
        "chmod 777 old.txt",
        "truncate -s 0 old.txt",
        "touch -d 2001-01-01 old.txt",
        "setfattr -n user.a -v b old.txt",
        "echo new > linked.txt",
        "ln old.txt /tmp/hard && echo new > /tmp/hard",
        "/usr/bin/python3 -c \"import os; os.chown('old.txt', 1000, 1000); os.utime('old.txt', (0, 0))\"",
    ],
)
async def test_nothing_in_the_workspace_changes(ground: Ground, command: str) -> None:
    old, other = ground.workspace / "old.txt", ground.outside / "other.txt"
    old.write_text("old\n")
    other.write_text("old\n")
    os.link(other, ground.workspace / "linked.txt")
    before = (sorted(os.listdir(ground.workspace)), _state(old), _state(other))

    outcome = await read(ground.workspace, command, sandbox=ground.sandbox(Tier.STRICT))

    assert outcome.exit_code != 0
    assert (sorted(os.listdir(ground.workspace)), _state(old), _state(other)) == before


async def test_there_is_a_private_place_to_write_to_and_it_is_gone_afterwards(ground: Ground) -> None:
    places = ("/tmp/left", "/dev/shm/left")
    write = " && ".join(
        f"mkdir -p {place} && echo {SECRET} > {place}/a && mv {place}/a {place}/../b" for place in places
    )
    first = await read(ground.workspace, f"{write} && cat /tmp/b")
    assert (first.exit_code, first.stdout.text.strip()) == (0, SECRET), first.stderr.text
    second = await read(ground.workspace, "ls -A /tmp /dev/shm; cat /tmp/b /dev/shm/b")
    assert second.exit_code != 0
    assert SECRET not in second.stdout.text
    assert "left" not in (*os.listdir("/tmp"), *os.listdir("/dev/shm"))


async def test_only_the_workspace_and_programs_are_seen(ground: Ground) -> None:
    outcome = await read(
        ground.workspace,
        f"cat {ground.home}/token {ground.outside}/diary.txt link/token /etc/shadow /etc/machine-id /etc/hostname;"
        " ls /home /root /run /sys /var /etc; hostname; cat /proc/[0-9]*/cmdline; cat /proc/1/environ; env",
        sandbox=ground.sandbox(Tier.STRICT),
    )
    said = outcome.stdout.text + outcome.stderr.text
    assert SECRET not in said
    assert "root:" not in said
    assert "\nsandbox\n" in said
    assert "shadow:" not in outcome.stdout.text


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name, which an address of a socket needs."""
    with tempfile.TemporaryDirectory(prefix="p-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
async def heard(short: Path) -> AsyncIterator[list[bytes]]:
    """What sockets of another program in the workspace have received."""
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(b"connected")
        writer.close()

    class Datagrams(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: object) -> None:
            received.append(data)

    loop = asyncio.get_running_loop()
    server = await asyncio.start_unix_server(serve, short / "stream")
    transport, _ = await loop.create_datagram_endpoint(Datagrams, str(short / "datagram"), family=socket.AF_UNIX)
    async with server:
        yield received
    transport.close()


TALKING = """
import socket
def attempt(talk):
    try:
        talk()
        print("TALKED")
    except OSError as error:
        print(type(error).__name__, error.errno)
def stream():
    socket.socket(socket.AF_UNIX).connect("stream")
def datagram():
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", "datagram")
def pair(kind):
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    one.sendall(b"a")
    assert other.recv(1) == b"a"
    print("PAIR")
    return one, other
def redirected():
    pair(socket.SOCK_DGRAM)[0].sendto(b"x", "datagram")
def reconnected(kind, closed):
    one, other = pair(kind)
    if closed:
        other.close()
    one.connect("stream")
attempt(stream)
attempt(datagram)
attempt(redirected)
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    for closed in (False, True):
        attempt(lambda: reconnected(kind, closed))
"""


async def test_sockets_in_the_workspace_cannot_be_talked_to(short: Path, heard: list[bytes]) -> None:
    said = await python(short, TALKING)
    assert "TALKED" not in said
    assert said.count("PAIR") == 4
    assert heard == []


async def test_programs_can_still_talk_to_their_children(ground: Ground) -> None:
    (ground.workspace / "program.py").write_text(
        "from multiprocessing import Pool\nif __name__ == '__main__': print(Pool(2).map(abs, [-1, -2]))"
    )
    outcome = await read(ground.workspace, "/usr/bin/python3 -B program.py")
    assert outcome.stdout.text == "[1, 2]\n", outcome.stderr.text


@pytest.fixture
def landlocked() -> None:
    require(PERL)
    if landlock_version() < 2:
        skip("Landlock", "its version is older than 2")


@pytest.mark.usefixtures("landlocked")
async def test_a_pipe_in_the_workspace_cannot_be_written_to() -> None:
    # Not below /tmp, which is writable.
    with tempfile.TemporaryDirectory(prefix="p-", dir="/var/tmp") as name:
        pipe = Path(name) / "pipe"
        os.mkfifo(pipe)
        # Somebody reads, so that opening it does not wait.
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            outcome = await read(Path(name), "echo x > pipe; echo $?; echo x | dd of=pipe conv=notrunc; echo $?")
            assert outcome.stdout.text.split() == ["1", "1"], outcome.stderr.text
            assert os.read(reader, 10) == b""
        finally:
            os.close(reader)


async def test_a_device_in_the_workspace_cannot_be_opened(ground: Ground) -> None:
    device = ground.workspace / "device"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 8))
    except PermissionError:
        skip("right to make devices", "this is an ordinary user")
    outcome = await read(ground.workspace, "head -c 1 device")
    assert outcome.exit_code != 0


@needs(GIT)
async def test_ordinary_reading_works(ground: Ground) -> None:
    git = ["git", "-C", str(ground.workspace), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        await asyncio.to_thread(subprocess.run, [*git, *command], check=True)
    outcome = await read(ground.workspace, "git status --short && git log --oneline && ls | wc -l && sort /dev/null")
    assert outcome.exit_code == 0, outcome.stderr.text
    assert "first" in outcome.stdout.text


def _state(path: Path) -> tuple[object, ...]:
    found = path.stat()
    return (path.read_text(), found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, found.st_nlink)
