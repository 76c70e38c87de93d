"""What becomes of a program: how it ends, what it leaves, and what it may take."""

import asyncio
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from palyra.sandbox.base import MIB, CommandInvalid, ResourceLimits, RootNotAllowed, SandboxJob, Tier
from palyra.sandbox.files.root import WorkspaceRoot
from palyra.sandbox.processes import launch
from tests.contract.sandbox.conftest import SECRET, Ground
from tests.support.eventually import eventually
from tests.support.needs import BUBBLEWRAP, GIT, LANDLOCK, needs, skip

FORK_BOMB = (
    # Each process forks {depth} times, and so does each of its children: it grows as a bomb does, but is known to end.
    "/usr/bin/python3 -c 'import os, time\nfor _ in range({depth}): os.fork()\ntime.sleep(60)' {mark}"
)
DOUBLE_FORK = (
    "/usr/bin/python3 -c 'import os,time\n"
    "for _ in range(2):\n if os.fork(): os._exit(0)\n os.setsid()\n"
    "os.close(1); os.close(2)\ntime.sleep(600)' {mark}; sleep 0.2"
)


def living(mark: str) -> list[int]:
    """Return the processes whose command line holds the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


def bounds(seconds: float = 10, **more: int) -> ResourceLimits:
    return ResourceLimits(wall=timedelta(seconds=seconds), **more)


@pytest.fixture
def mark(ground: Ground) -> str:
    """A word that stands in the command line of what a test starts."""
    return f"mark-{os.getpid()}-{ground.folder.name}"


async def test_it_tells_how_the_program_ended(ground: Ground, any_tier: Tier) -> None:
    outcome = await ground.run(any_tier, "echo out; echo err >&2; exit 3")
    assert (outcome.exit_code, outcome.stdout.text, outcome.stderr.text) == (3, "out\n", "err\n")
    assert (outcome.tier, outcome.timed_out, outcome.stopped, outcome.signal) == (any_tier, False, "", None)
    assert outcome.took > timedelta(0)


async def test_it_runs_also_if_python_was_exchanged_since_the_daemon_began(
    ground: Ground, any_tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_supervisor", lambda: b"code of another version of Python")
    outcome = await ground.run(any_tier, "echo out; exit 3")
    assert (outcome.exit_code, outcome.stdout.text) == (3, "out\n")


async def test_a_signal_is_told(ground: Ground, any_tier: Tier) -> None:
    outcome = await ground.run(any_tier, "kill -SEGV $$")
    assert (outcome.exit_code, outcome.signal) == (128 + signal.SIGSEGV, signal.SIGSEGV)


async def test_a_program_that_is_not_there_is_an_ordinary_failure(ground: Ground, any_tier: Tier) -> None:
    outcome = await ground.run(any_tier, "no-such-program")
    assert outcome.exit_code == 127
    assert "not found" in outcome.stderr.text


async def test_it_works_in_the_workspace(ground: Ground, any_tier: Tier) -> None:
    outcome = await ground.run(any_tier, 'pwd; echo hello > note.txt; echo x > "$TMPDIR/y"; cat note.txt')
    assert outcome.stdout.text == f"{ground.workspace}\nhello\n"
    assert (ground.workspace / "note.txt").read_text() == "hello\n"


@needs(GIT)
async def test_common_programs_work(ground: Ground, any_tier: Tier) -> None:
    command = (
        "set -e; git init -q . 2>&1; git config user.name a; git config user.email a@b; echo 1 > a; git add a;"
        " git commit -q -m first; git log --format=%s; /usr/bin/python3 -c 'import asyncio\n"
        "print(asyncio.run(asyncio.sleep(0, 7)))'; cat <(echo sub)"
    )
    outcome = await ground.run(any_tier, command)
    assert outcome.stdout.text == "first\n7\nsub\n", outcome.stderr.text


async def test_programs_that_copy_owners_and_times_work(ground: Ground, tier: Tier) -> None:
    command = (
        "set -e; mkdir d; echo 1 > d/f; touch d; tar cf x.tar d; mkdir e; tar xf x.tar -C e; cp -a d g;"
        ' /usr/bin/python3 -c \'import shutil; shutil.copytree("d", "h")\'; cat e/d/f g/f h/f'
    )
    outcome = await ground.run(tier, command)
    assert outcome.stdout.text == "1\n" * 3, outcome.stderr.text


@pytest.mark.parametrize(("owns_system", "expected"), [(False, "2001"), (True, "now")])
@needs(LANDLOCK)
async def test_guarded_sets_the_times_of_open_files_unless_they_may_be_the_systems(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, *, owns_system: bool, expected: str
) -> None:
    monkeypatch.setattr(launch, "_owns_system", lambda: owns_system)
    outcome = await ground.run(Tier.GUARDED, "echo 1 > f; touch -d 2001-02-03 f; date -r f +%Y")
    assert outcome.exit_code == 0
    assert (outcome.stdout.text.strip() == "2001") is (expected == "2001")


async def test_java_works_where_it_is_installed(ground: Ground, tier: Tier) -> None:
    """Debian keeps in /etc what it does not start without."""
    if await asyncio.to_thread(shutil.which, "java", path="/usr/bin") is None:
        skip("java", "it is not installed")
    program = (
        "class A { public static void main(String[] a) { System.out.println(new java.security.SecureRandom()); } }"
    )
    (ground.workspace / "A.java").write_text(program)
    outcome = await ground.run(tier, "/usr/bin/java -Xshare:auto A.java", bounds=bounds(15))
    assert outcome.exit_code == 0, outcome.stderr.text


@needs(BUBBLEWRAP)
async def test_strict_has_shared_memory_of_its_own(ground: Ground) -> None:
    command = (
        "/usr/bin/python3 -c 'import multiprocessing as m\n"
        'if __name__ == "__main__":\n p = m.Pool(2); print(p.map(abs, [-1, -2])); p.close(); p.join()\''
    )
    outcome = await ground.run(Tier.STRICT, command)
    assert outcome.stdout.text == "[1, 2]\n", outcome.stderr.text


async def test_nothing_of_the_daemons_environment_is_passed_on(
    ground: Ground, any_tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALYRA_SECRET", SECRET)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    outcome = await ground.run(any_tier, "env; cat /proc/*/environ 2>/dev/null")
    names = {line.partition("=")[0] for line in outcome.stdout.text.splitlines() if "=" in line}
    if any_tier is not Tier.OFF:
        assert SECRET not in outcome.stdout.text
        assert names <= {"PATH", "HOME", "TMPDIR", "LANG", "TERM", "PWD", "SHLVL", "_", "OLDPWD", "GIT_CONFIG_NOSYSTEM"}


async def test_no_open_file_of_the_daemon_is_passed_on(ground: Ground, any_tier: Tier) -> None:
    with (ground.home / "token").open() as token:
        os.set_inheritable(token.fileno(), True)
        outcome = await ground.run(
            any_tier, "ls /proc/self/fd 2>/dev/null || echo 0 1 2; cat /dev/fd/[3-9] 2>/dev/null"
        )
    assert SECRET not in outcome.stdout.text
    assert len(outcome.stdout.text.split()) <= 5


async def test_a_program_that_ignores_the_word_to_stop_dies_in_time(ground: Ground, any_tier: Tier, mark: str) -> None:
    command = f"trap '' TERM INT HUP; echo begun; while :; do sleep 0.1; done # {mark}"
    outcome = await ground.run(any_tier, command, bounds=bounds(0.5))
    assert outcome.timed_out
    assert outcome.stdout.text == "begun\n"
    assert outcome.signal == signal.SIGKILL
    assert living(mark) == []


async def test_a_stopped_program_dies_in_time(ground: Ground, any_tier: Tier, mark: str) -> None:
    outcome = await ground.run(any_tier, f"kill -STOP $$ # {mark}", bounds=bounds(0.5))
    assert outcome.timed_out
    assert living(mark) == []


async def test_no_orphan_outlives_the_program(ground: Ground, any_tier: Tier, mark: str) -> None:
    outcome = await ground.run(any_tier, DOUBLE_FORK.format(mark=mark))
    assert outcome.exit_code == 0
    await eventually(lambda: not living(mark))


async def test_no_orphan_outlives_a_timeout(ground: Ground, any_tier: Tier, mark: str) -> None:
    outcome = await ground.run(any_tier, DOUBLE_FORK.format(mark=mark) + "; sleep 60", bounds=bounds(0.7))
    assert outcome.timed_out
    await eventually(lambda: not living(mark))


async def test_a_cancelled_program_is_gone_when_the_cancelling_is_over(
    ground: Ground, any_tier: Tier, mark: str
) -> None:
    task = asyncio.create_task(ground.run(any_tier, DOUBLE_FORK.format(mark=mark) + "; touch begun; sleep 60"))
    await eventually((ground.workspace / "begun").exists)
    assert living(mark)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: not living(mark))


async def test_a_program_cancelled_before_it_began_leaves_nothing(ground: Ground, any_tier: Tier, mark: str) -> None:
    for steps in range(6):
        task = asyncio.create_task(ground.run(any_tier, f"sleep 60 # {mark}"))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await eventually(lambda: not living(mark))


async def test_a_fork_bomb_is_stopped(ground: Ground, any_tier: Tier, mark: str) -> None:
    command = FORK_BOMB.format(depth=9, mark=mark)
    outcome = await ground.run(any_tier, command, bounds=bounds(10, processes=64))
    # The kernel refuses a fork (not to root), or the supervisor ends it all.
    assert "64 processes" in outcome.stopped or "BlockingIOError" in outcome.stderr.text
    await eventually(lambda: not living(mark))


async def test_threads_without_end_are_stopped(ground: Ground, any_tier: Tier, mark: str) -> None:
    command = (
        "/usr/bin/python3 -c 'import threading, time\nthreading.stack_size(32768)\n"
        "for _ in range(400): threading.Thread(target=time.sleep, args=(60,)).start()\ntime.sleep(60)' " + mark
    )
    outcome = await ground.run(any_tier, command, bounds=bounds(processes=16))
    # The kernel refuses a thread (not to root), or the supervisor ends it all.
    assert "256 threads" in outcome.stopped or "can't start new thread" in outcome.stderr.text
    await eventually(lambda: not living(mark))


async def test_memory_is_limited_for_one_process(ground: Ground, any_tier: Tier) -> None:
    command = "/usr/bin/python3 -c 'x = bytearray(300 << 20); print(len(x))'"
    assert (await ground.run(any_tier, command)).stdout.text == f"{300 * MIB}\n"
    outcome = await ground.run(any_tier, command, bounds=bounds(memory_bytes=200 * MIB))
    assert "MemoryError" in outcome.stderr.text


async def test_memory_is_limited_for_all_processes_together(ground: Ground, any_tier: Tier) -> None:
    command = (
        "/usr/bin/python3 -c 'import mmap, os, time\n"
        "m = mmap.mmap(-1, 400 << 20)\nfor at in range(0, 400 << 20, 4096): m[at] = 1\ntime.sleep(60)'"
    )
    outcome = await ground.run(any_tier, command, bounds=bounds(memory_bytes=200 * MIB))
    assert "200 MiB" in outcome.stopped


async def test_memory_that_nobody_counts_is_not_given(ground: Ground, tier: Tier) -> None:
    """That of a file without a name, and that which is shared by a number, belong to no process."""
    command = (
        "/usr/bin/python3 -c 'import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        'print(libc.memfd_create(b"x", 0), libc.shmget(0, ctypes.c_size_t(64 << 20), 0o1600))\n'
        "print(libc.shmget(0, ctypes.c_size_t(1 << 32), 0o1600), libc.syscall(447, 0))'"
    )
    assert (await ground.run(tier, command)).stdout.text.split() == ["-1"] * 4


@needs(BUBBLEWRAP)
async def test_a_little_shared_memory_is_given_where_it_ends_with_the_program(ground: Ground) -> None:
    """PostgreSQL does not start without."""
    command = "/usr/bin/python3 -c 'import ctypes; print(ctypes.CDLL(None).shmget(0, ctypes.c_size_t(56), 0o1600))'"
    assert (await ground.run(Tier.STRICT, command)).stdout.text == "0\n"


@needs(BUBBLEWRAP)
async def test_a_program_goes_first_when_the_machine_runs_out_of_memory(ground: Ground) -> None:
    for tier in (Tier.STRICT, Tier.OFF):
        assert (await ground.run(tier, "cat /proc/self/oom_score_adj")).stdout.text == "1000\n"


async def test_processor_time_is_limited(ground: Ground, any_tier: Tier) -> None:
    outcome = await ground.run(any_tier, "ulimit -t; ulimit -n; ulimit -c", bounds=bounds(7, open_files=100))
    assert outcome.stdout.text.split() == ["8", "100", "0"]


async def test_a_disk_is_not_filled_by_one_file(ground: Ground, any_tier: Tier) -> None:
    limited = bounds(file_bytes=5 * MIB, temporary_bytes=8 * MIB)
    outcome = await ground.run(any_tier, "head -c 50M /dev/zero > big; ls -s --block-size=1 big", bounds=limited)
    assert (ground.workspace / "big").stat().st_size <= 5 * MIB
    assert outcome.exit_code in (0, 153)


@needs(BUBBLEWRAP)
async def test_memory_is_not_filled_by_files(ground: Ground) -> None:
    command = (
        "for n in 1 2 3 4; do head -c 4M /dev/zero > /tmp/$n; done; head -c 80M /dev/zero > /dev/shm/x; du -sm /tmp"
    )
    outcome = await ground.run(Tier.STRICT, command, bounds=bounds(temporary_bytes=8 * MIB))
    assert int(outcome.stdout.text.split()[0]) <= 9
    assert "No space left" in outcome.stderr.text


async def test_endless_output_is_read_without_growing(ground: Ground, any_tier: Tier) -> None:
    size = 1 << 30 if any_tier is Tier.STRICT else 1 << 26
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    command = f"echo first; head -c {size} /dev/zero; echo; echo last"
    outcome = await ground.run(any_tier, command, bounds=bounds(18, head_bytes=1000, tail_bytes=100))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert outcome.exit_code == 0
    assert outcome.stdout.head.startswith(b"first\n")
    assert outcome.stdout.tail.endswith(b"\nlast\n")
    assert len(outcome.stdout.head) == 1000
    assert len(outcome.stdout.tail) == 100
    assert outcome.stdout.left_out == size + len("first\n\nlast\n") - 1100
    assert f"{outcome.stdout.left_out} bytes left out" in outcome.stdout.text
    assert grown < 32 * 1024, "KiB"


@pytest.mark.parametrize("argv", [(), ("",), ("/bin/sh", "-c", "a\0b"), ("/bin/sh", "-c", "x" * 200_000)])
async def test_what_can_not_be_run_is_refused(ground: Ground, any_tier: Tier, argv: tuple[str, ...]) -> None:
    with pytest.raises(CommandInvalid):
        await ground.sandbox(any_tier).run(
            SandboxJob(argv=argv, roots=(WorkspaceRoot(ground.workspace),), folder=ground.workspace)
        )


@pytest.mark.parametrize("name", ["/", "/etc", "/usr/lib", "/proc", "/tmp", "/home", "/dev/shm"])
async def test_the_system_is_no_workspace(ground: Ground, tier: Tier, name: str) -> None:
    with pytest.raises(RootNotAllowed):
        await ground.sandbox(tier).run(
            SandboxJob(argv=("/bin/true",), roots=(WorkspaceRoot(Path(name)),), folder=Path(name))
        )


@pytest.mark.parametrize("name", ["home", "home/kept"])
async def test_palyras_own_folder_is_no_workspace(ground: Ground, tier: Tier, name: str) -> None:
    root = ground.folder / name
    root.mkdir(exist_ok=True)
    with pytest.raises(RootNotAllowed):
        await ground.sandbox(tier).run(SandboxJob(argv=("/bin/true",), roots=(WorkspaceRoot(root),), folder=root))


async def test_guarded_refuses_a_workspace_around_palyras_own_folder(ground: Ground) -> None:
    job = SandboxJob(argv=("/bin/true",), roots=(WorkspaceRoot(ground.folder),), folder=ground.folder)
    with pytest.raises(RootNotAllowed):
        await ground.sandbox(Tier.GUARDED).run(job)


async def test_nothing_temporary_is_left(ground: Ground, any_tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ground.folder / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    before = len(os.listdir("/proc/self/fd"))
    await ground.run(any_tier, "touch $HOME/a; mkdir -p $TMPDIR/b/c")
    assert list(folder.iterdir()) == []
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)


DAEMON = """
import asyncio, sys
from pathlib import Path
from palyra.sandbox.base import SandboxJob, Tier
from palyra.sandbox.processes.mounts import HiddenFolders
from palyra.sandbox.processes.process import ProcessSandbox
from palyra.sandbox.files.root import WorkspaceRoot
tier, folder, command = sys.argv[1:]
job = SandboxJob(argv=("/bin/bash", "-c", command), roots=(WorkspaceRoot(Path(folder)),), folder=Path(folder))
print(asyncio.run(ProcessSandbox(Tier(tier), private=HiddenFolders()).run(job)).stdout.text)
"""


async def test_nothing_survives_a_daemon_that_is_killed(ground: Ground, any_tier: Tier, mark: str) -> None:
    command = DOUBLE_FORK.format(mark=mark) + "; (trap '' TERM; setsid sleep 60) & touch begun; sleep 60"
    temporary = ground.folder / "temporary"
    temporary.mkdir()
    arguments = [sys.executable, "-c", DAEMON, any_tier.value, str(ground.workspace), command]
    daemon = await asyncio.to_thread(subprocess.Popen, arguments, env={**os.environ, "TMPDIR": str(temporary)})
    try:
        await eventually((ground.workspace / "begun").exists)
        assert len(living(mark)) >= 2
    finally:
        daemon.kill()
        await asyncio.to_thread(daemon.wait)
    await eventually(lambda: not living(mark))
    await eventually(lambda: not list(temporary.iterdir()))


async def test_a_daemon_that_is_held_to_less_holds_its_programs_to_that(ground: Ground, any_tier: Tier) -> None:
    held = f"ulimit -n 300; ulimit -d {600 * 1024}; ulimit -f {100 * 1024}; exec "
    command = "ulimit -n; ulimit -d; ulimit -f"
    daemon = shlex.join([sys.executable, "-c", DAEMON, any_tier.value, str(ground.workspace), command])
    done = await asyncio.to_thread(subprocess.run, ["bash", "-c", held + daemon], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["300", f"{600 * 1024}", f"{100 * 1024}"], "")


async def test_a_user_who_may_start_few_processes_can_start_some(ground: Ground, any_tier: Tier) -> None:
    daemon = shlex.join([sys.executable, "-c", DAEMON, any_tier.value, str(ground.workspace), "ulimit -u; /bin/true"])
    # Whatever else this user runs counts too, so the limit is a little above it.
    mine = f"find /proc -maxdepth 3 -path '/proc/[0-9]*/task/*' -user {os.getuid()} 2>/dev/null | wc -l"
    command = ["bash", "-c", f"most=$(($({mine}) + 80)); ulimit -u $most; echo $most; exec {daemon}"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    most, held = done.stdout.split()
    assert (int(held) <= int(most), done.stderr) == (True, "")


@pytest.mark.parametrize("hostile", ["kill -9 $PPID", "kill -9 -1", "kill -STOP $PPID; sleep 60"])
async def test_a_program_can_not_end_its_guard(ground: Ground, tier: Tier, mark: str, *, hostile: str) -> None:
    command = f"{DOUBLE_FORK.format(mark=mark)}; {hostile}; echo still here"
    await ground.run(tier, command, bounds=bounds(1))
    await eventually(lambda: not living(mark))
