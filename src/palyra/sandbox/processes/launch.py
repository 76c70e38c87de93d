"""Prepares the start of a program in each tier: a command line, and what it inherits. Everything here blocks."""

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
from palyra.sandbox.base import ResourceLimits, RootNotAllowed, SandboxJob, Tier
from palyra.sandbox.files.root import descend
from palyra.sandbox.processes import bubblewrap, cgroups, seccomp
from palyra.sandbox.processes.bubblewrap import Descriptors, Programs
from palyra.sandbox.processes.descriptors import INHERITED
from palyra.sandbox.processes.mounts import SYSTEM, HiddenFolders, Mount, plan_mounts, system_files
from palyra.sandbox.processes.tiers import NO_BIND_FD, binds_by_descriptor, find

SUPERVISOR, COUNTING = (str(Path(__file__).with_name(name)) for name in ("supervisor.py", "resource_count.py"))
"""Started as a separate program and not imported here: it contains what the daemon never needs."""
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
counting = sys.modules["palyra.sandbox.processes.resource_count"] = type(sys)("counting")
exec(codes[0], counting.__dict__)
exec(codes[1])
"""
"""Runs the compiled supervisor, or its source if Python was replaced since the daemon's start."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
MORE_SYSTEM_FILES = ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf")
"""What a program needs that does not get files of its own instead."""


@dataclass(slots=True)
class LaunchPlan:
    """What to start, and what to clean up afterwards."""

    argv: list[str]
    report: int
    """Where the end of the program is reported: read when it is over."""
    order: bytes = b""
    """What is written to the supervisor's input, which then stays open."""
    passed: list[int] = field(default_factory=list)
    temporary: Path | None = None
    group: Path | None = None

    def pass_on(self, descriptor: int) -> int:
        """Let the started process inherit a file."""
        self.passed.append(descriptor)
        return descriptor

    def command(self, order: JsonObject, *, reported: int) -> None:
        """Start the supervisor with an order; it reports to the file that it inherits as `reported`."""
        # Plain values only: the same version of Python writes and reads them.
        written = marshal.dumps(msgspec.to_builtins({**order, "open_files": INHERITED}))
        self.order = len(written).to_bytes(4, "big") + written
        code_at = self.pass_on(memory_file(_supervisor()))
        boot = _BOOT.format(code_at=code_at, magic_bytes=len(MAGIC_NUMBER), paths=(COUNTING, SUPERVISOR))
        self.argv = [sys.executable, "-I", "-S", "-B", "-c", boot, str(reported)]

    def grouped(self, base: Path | None, bounds: ResourceLimits) -> JsonObject:
        """Create a control group for the program, if there is a base for it, and return its part of the order."""
        if base is None:
            return {}
        self.group = cgroups.make(base, bounds)
        return {"group": str(self.group)}

    def let_go(self) -> None:
        """Close what the started process has inherited."""
        while self.passed:
            os.close(self.passed.pop())

    def tidy_up(self) -> None:
        """Close and remove everything."""
        self.let_go()
        with suppress(OSError):
            os.close(self.report)
        if self.group is not None:
            # The supervisor does so too, unless it was never started.
            cgroups.remove(self.group)
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)

    def read_report(self) -> bytes:
        """Return the report about the end. No process holds the other end any more."""
        text = b""
        while piece := os.read(self.report, 65536):
            text += piece
        return text


def prepare(tier: Tier, job: SandboxJob, private: HiddenFolders, *, base: Path | None = None) -> LaunchPlan:
    """Prepare a launch: of the supervisor, which starts the program, through bubblewrap if the tier is strict.

    `base` is the control group in which one for the program can be created.
    """
    report, reported = os.pipe()
    launch = LaunchPlan(argv=[], report=report, passed=[reported])
    try:
        mounts = plan_mounts(job.roots, private, keep=launch.pass_on)
        folder = _start_folder(job, mounts)
        if tier is Tier.STRICT:
            # Bubblewrap enters it by its path, when nothing else is visible.
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
    """Return the compiled supervisor. Compiling it at each start would take a third of the time."""
    codes = [SourceFileLoader("supervisor", path).get_code("supervisor") for path in (COUNTING, SUPERVISOR)]
    return MAGIC_NUMBER + marshal.dumps(codes)


def _strict(launch: LaunchPlan, job: SandboxJob, mounts: tuple[Mount, ...], *, counted: bool) -> JsonObject:
    data_at = {path: launch.pass_on(memory_file(text.encode())) for path, text in bubblewrap.FILES.items()}
    program = seccomp.build(Tier.STRICT, read_only=job.read_only, counted=counted)
    bwrap = find("bwrap") or "bwrap"
    by_descriptor = binds_by_descriptor(bwrap)
    if not by_descriptor and (risky := next((mount for mount in mounts if not mount.is_trusted), None)):
        raise RootNotAllowed(
            f"{risky.path} is inside the workspace. {NO_BIND_FD} Or give the agent the whole workspace."
        )
    programs = Programs(bwrap, by_descriptor, prlimit=find("prlimit") or "prlimit", perl=find("perl"))
    descriptors = Descriptors(
        filter=launch.pass_on(memory_file(program)) if program is not None else None,
        status=launch.pass_on(os.dup(launch.passed[0])),
        data=data_at,
    )
    argv = bubblewrap.arguments(job, mounts, programs, descriptors)
    # Its environment stays empty: the program could read it from /proc/1.
    return {"argv": argv, "folder": "/", "environment": {}, "limits": {}, "confined": False}


def _direct(
    launch: LaunchPlan, tier: Tier, job: SandboxJob, mounts: tuple[Mount, ...], *, folder: int, counted: bool
) -> JsonObject:
    confined = tier is Tier.GUARDED
    if confined and (covered := next((mount for mount in mounts if mount.covered), None)):
        raise RootNotAllowed(
            f"{covered.path} contains Palyra's own files and is inside the workspace, and the guarded "
            "tier cannot hide it. Use another workspace, or the strict tier."
        )
    if confined and not job.read_only and (fixed := next((mount for mount in mounts if mount.is_fixed), None)):
        raise RootNotAllowed(
            f"Palyra itself runs from {fixed.path}, which is inside the workspace, and the guarded tier "
            "cannot prevent changes to it. Use another workspace, or the strict tier."
        )
    launch.temporary = Path(tempfile.mkdtemp(prefix="palyra-job-"))
    private = str(launch.temporary)
    supplied_value = [mount.opened for mount in mounts if mount.opened is not None]
    limits = bubblewrap.limits(job.bounds)
    # The owner of a file may set its times once it is open for reading.
    sets_times = not job.read_only and not _owns_system()
    # This limit counts everything the user runs, inside and outside.
    limits["nproc"] += _tasks_of(os.getuid())
    return {
        "argv": job.argv,
        "folder": folder,
        "held": [*supplied_value, folder],
        "environment": {**bubblewrap.ENVIRONMENT, "HOME": private, "TMPDIR": private, **job.environment},
        "temporary": private,
        "limits": {f"RLIMIT_{name.upper()}": value for name, value in bubblewrap.held(limits).items()},
        "confined": confined,
        "readable": [*SYSTEM, *system_files(), *MORE_SYSTEM_FILES, *(supplied_value if job.read_only else ())],
        "writable": [private, *(() if job.read_only else supplied_value)],
        "devices": DEVICES,
        "filter": (seccomp.build(tier, counted=counted, sets_times=sets_times) or b"").hex(),
    }


def _start_folder(job: SandboxJob, mounts: tuple[Mount, ...]) -> int:
    """Open the folder in which a program starts, through no link: from the root that contains it."""
    for mount in mounts:
        if mount.opened is not None and job.folder.is_relative_to(mount.path):
            try:
                return descend(os.dup(mount.opened), job.folder.relative_to(mount.path).parts)
            except OSError as error:
                raise RootNotAllowed(f"No program can start in {job.folder}: {error.strerror}.") from None
    raise RootNotAllowed(f"{job.folder} is not inside a folder that the program may use. Start it in one of those.")


def _owns_system() -> bool:
    return os.stat("/usr").st_uid == os.getuid()


def _tasks_of(user: int) -> int:
    """Count the processes and threads that a user has, as the kernel's limit on them does."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            # It may end while it is being read.
            with suppress(OSError):
                # The folder is the user's own even if its contents are root's, as for programs that hide secrets.
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
