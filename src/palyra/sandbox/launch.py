"""Makes ready what starts a program in each tier: a command line, and what it inherits. Everything here blocks."""

import marshal
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import msgspec

from palyra.core.tool import JsonObject
from palyra.sandbox import groups, seccomp, strict
from palyra.sandbox.base import Bounds, Job, RootRefused, Tier
from palyra.sandbox.descriptors import INHERITED
from palyra.sandbox.places import SYSTEM, Mount, Private, arrange, system_files
from palyra.sandbox.root import descend
from palyra.sandbox.tiers import NO_BIND_FD, binds_by_descriptor, find

SUPERVISOR, COUNTING = (str(Path(__file__).with_name(name)) for name in ("supervisor.py", "counting.py"))
"""Started as a program of its own and not imported here: it holds what the daemon never needs."""
_BOOT = """
import marshal, sys, _frozen_importlib_external as own
with open({code_at}, "rb") as file:
    known = file.read({magic_bytes}) == own.MAGIC_NUMBER
    codes = marshal.load(file) if known else None
if codes is None:
    codes = []
    for path in {paths!r}:
        with open(path, "rb") as file:
            codes.append(compile(file.read(), path, "exec"))
counting = sys.modules["palyra.sandbox.counting"] = type(sys)("counting")
exec(codes[0], counting.__dict__)
exec(codes[1])
"""
"""Runs the supervisor as it was compiled, or from its source if Python was exchanged since the daemon's start."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
MORE_SYSTEM_FILES = ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf")
"""What a program needs that is not given files of its own in their place."""


@dataclass(slots=True)
class Launch:
    """What to start, and what to tidy up afterwards."""

    argv: list[str]
    report: int
    """Where it is said how the program ended: read when it is over."""
    order: bytes = b""
    """What is written to the supervisor's input, which then stays open."""
    passed: list[int] = field(default_factory=list)
    temporary: Path | None = None
    group: Path | None = None

    def pass_on(self, descriptor: int) -> int:
        """Have the started process inherit a file."""
        self.passed.append(descriptor)
        return descriptor

    def command(self, order: JsonObject, *, reported: int) -> None:
        """Have the supervisor started with an order; it reports to the file that it inherits as `reported`."""
        # Plain values only: what this version of Python writes, the same one reads.
        written = marshal.dumps(msgspec.to_builtins({**order, "open_files": INHERITED}))
        self.order = len(written).to_bytes(4, "big") + written
        code_at = self.pass_on(memory_file(_supervisor()))
        boot = _BOOT.format(code_at=code_at, magic_bytes=len(MAGIC_NUMBER), paths=(COUNTING, SUPERVISOR))
        self.argv = [sys.executable, "-I", "-S", "-B", "-c", boot, str(reported)]

    def grouped(self, base: Path | None, bounds: Bounds) -> JsonObject:
        """Make a control group for the program, if there is one to make it in, and return what to say about it."""
        if base is None:
            return {}
        self.group = groups.make(base, bounds)
        return {"group": str(self.group)}

    def let_go(self) -> None:
        """Close what the started process has taken over."""
        while self.passed:
            os.close(self.passed.pop())

    def tidy_up(self) -> None:
        """Close and remove everything."""
        self.let_go()
        with suppress(OSError):
            os.close(self.report)
        if self.group is not None:
            # The supervisor does so too, unless it was never started.
            groups.remove(self.group)
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)

    def read_report(self) -> bytes:
        """Return what was said about the end. Nobody holds the other end any more."""
        said = b""
        while piece := os.read(self.report, 65536):
            said += piece
        return said


def prepare(tier: Tier, job: Job, private: Private, *, base: Path | None = None) -> Launch:
    """Make a launch ready: of the supervisor, which starts the program, by way of bubblewrap if the tier is strict.

    `base` is the control group that one for the program can be made in.
    """
    report, reported = os.pipe()
    launch = Launch(argv=[], report=report, passed=[reported])
    try:
        mounts = arrange(job.roots, private, keep=launch.pass_on)
        folder = _start_folder(job, mounts)
        if tier is Tier.STRICT:
            # Bubblewrap enters it by its path, when there is nothing else to be seen.
            os.close(folder)
            order = _strict(launch, job, mounts, counted=base is not None)
        else:
            folder = launch.pass_on(folder)
            order = _direct(launch, tier, job, mounts, folder=folder, counted=base is not None)
        order |= {
            "processes": job.bounds.processes,
            "memory": job.bounds.memory_bytes,
            "open_files": job.bounds.open_files,
            "apart": tier is Tier.STRICT,
            **launch.grouped(base, job.bounds),
        }
        launch.command(order, reported=reported)
    except BaseException:
        launch.tidy_up()
        raise
    return launch


@cache
def _supervisor() -> bytes:
    """Return the supervisor compiled. Each start would compile it anew from its source, for a third of the time."""
    codes = [SourceFileLoader("supervisor", path).get_code("supervisor") for path in (COUNTING, SUPERVISOR)]
    return MAGIC_NUMBER + marshal.dumps(codes)


def _strict(launch: Launch, job: Job, mounts: tuple[Mount, ...], *, counted: bool) -> JsonObject:
    data_at = {path: launch.pass_on(memory_file(text.encode())) for path, text in strict.FILES.items()}
    program = seccomp.build(Tier.STRICT, read_only=job.read_only, counted=counted)
    bwrap = find("bwrap") or "bwrap"
    by_descriptor = binds_by_descriptor(bwrap)
    if not by_descriptor and (risky := next((mount for mount in mounts if not mount.is_trusted), None)):
        raise RootRefused(
            f"{risky.path} lies inside the workspace. {NO_BIND_FD} Or let the agent have the whole workspace."
        )
    argv = strict.arguments(
        job,
        mounts,
        bwrap=bwrap,
        by_descriptor=by_descriptor,
        prlimit=find("prlimit") or "prlimit",
        perl=find("perl"),
        filter_at=launch.pass_on(memory_file(program)) if program is not None else None,
        status_at=launch.pass_on(os.dup(launch.passed[0])),
        data_at=data_at,
    )
    # Its environment stays empty: the program could read it from /proc/1.
    return {"argv": argv, "folder": "/", "environment": {}, "limits": {}, "confined": False}


def _direct(
    launch: Launch, tier: Tier, job: Job, mounts: tuple[Mount, ...], *, folder: int, counted: bool
) -> JsonObject:
    confined = tier is Tier.GUARDED
    if confined and (covered := next((mount for mount in mounts if mount.covered), None)):
        raise RootRefused(
            f"{covered.path} holds files of Palyra itself and lies inside the workspace; the guarded tier can not"
            " cover it. Use another workspace, or the strict tier."
        )
    if confined and not job.read_only and (fixed := next((mount for mount in mounts if mount.is_fixed), None)):
        raise RootRefused(
            f"Palyra itself runs from {fixed.path}, which lies inside the workspace; the guarded tier cannot keep a"
            " program from changing it. Use another workspace, or the strict tier."
        )
    launch.temporary = Path(tempfile.mkdtemp(prefix="palyra-job-"))
    private = str(launch.temporary)
    given = [mount.opened for mount in mounts if mount.opened is not None]
    limits = strict.limits(job.bounds)
    # Whoever owns a file may set its times once it is open for reading.
    sets_times = not job.read_only and not _owns_system()
    # This limit counts whatever the user runs, inside and outside.
    limits["nproc"] += _tasks_of(os.getuid())
    return {
        "argv": job.argv,
        "folder": folder,
        "held": [*given, folder],
        "environment": {**strict.ENVIRONMENT, "HOME": private, "TMPDIR": private, **job.environment},
        "temporary": private,
        "limits": {f"RLIMIT_{name.upper()}": value for name, value in strict.held(limits).items()},
        "confined": confined,
        "readable": [*SYSTEM, *system_files(), *MORE_SYSTEM_FILES, *(given if job.read_only else ())],
        "writable": [private, *(() if job.read_only else given)],
        "devices": DEVICES,
        "filter": (seccomp.build(tier, counted=counted, sets_times=sets_times) or b"").hex(),
    }


def _start_folder(job: Job, mounts: tuple[Mount, ...]) -> int:
    """Open the folder that a program starts in, through no link: from the root that it lies in."""
    for mount in mounts:
        if mount.opened is not None and job.folder.is_relative_to(mount.path):
            try:
                return descend(os.dup(mount.opened), job.folder.relative_to(mount.path).parts)
            except OSError as error:
                raise RootRefused(f"No program can start in {job.folder}: {error.strerror}.") from None
    raise RootRefused(f"{job.folder} lies in no folder that the program is given. Start it in one of them.")


def _owns_system() -> bool:
    return os.stat("/usr").st_uid == os.getuid()


def _tasks_of(user: int) -> int:
    """Count the processes and threads that a user has, as the kernel's limit on them does."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            # It may end while it is being looked at.
            with suppress(OSError):
                # The folder is the user's own even if what is in it is root's, as it is of programs that hide secrets.
                if os.stat(f"/proc/{name}").st_uid == user:
                    with open(f"/proc/{name}/stat", "rb") as file:
                        count += int(file.read().rpartition(b")")[2].split()[17])
    return count


def memory_file(content: bytes) -> int:
    """Return a file that is in memory only, to be read from its start."""
    file = os.memfd_create("palyra", os.MFD_CLOEXEC)
    os.write(file, content)
    os.lseek(file, 0, os.SEEK_SET)
    return file
