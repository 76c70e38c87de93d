"""The strict tier: the command line of bubblewrap."""

import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from palyra.sandbox.base import MIB, ResourceLimits, SandboxJob
from palyra.sandbox.processes.mounts import SYSTEM, Mount, system_files

USER, GROUP = "1000", "1000"
PRIVATE_FOLDER = "/tmp"
SHARED_MEMORY_BYTES = 64 * MIB
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    # Git gives up where it cannot read the machine's settings.
    "GIT_CONFIG_NOSYSTEM": "1",
}
"""The base environment of a program."""

PASSWD = "agent:x:1000:1000::/tmp:/bin/sh\nnobody:x:65534:65534::/nonexistent:/bin/false\n"
GROUPS = "agent:x:1000:\nnogroup:x:65534:\n"
HOSTS = "127.0.0.1 localhost\n::1 localhost\n"
KEEP_TO_WRITABLE = r"""
my $rights = 1 << 1 | 1 << 13;
my $rules = syscall(444, my $handled = pack("Q", $rights), 8, 0);
if ($rules >= 0) {
    for my $place ("/tmp", "/dev") {
        sysopen(my $folder, $place, 010200000) or die "Landlock: $place: $!\n";
        syscall(445, $rules, 1, my $rule = pack("Qi", $rights, fileno $folder), 0) == 0 or die "Landlock: $!\n";
    }
    syscall(446, $rules, 0) == 0 or die "Landlock: $!\n";
}
exec { $ARGV[0] } @ARGV or die "$ARGV[0]: $!\n";
"""
"""Makes Landlock let a program write and move files below /tmp and /dev only, where the kernel has Landlock.

A read-only mount still lets a program write into a named pipe there, and another program may read from it.
Bubblewrap could not mount anything any more after this, so it is done inside, by the one program that can call the
kernel and is installed nearly everywhere.
"""
FILES = {"/etc/passwd": PASSWD, "/etc/group": GROUPS, "/etc/hosts": HOSTS}
"""Files that replace the machine's own."""


def limits(bounds: ResourceLimits) -> dict[str, int]:
    """Return the limits that the kernel enforces for each process, by the names of `prlimit` and of RLIMIT.

    Memory is limited as data: programs that reserve much more than they use (Go, Java, V8) still run.
    """
    return {
        "core": 0,
        "cpu": bounds.cpu_seconds,
        "data": bounds.memory_bytes,
        "fsize": bounds.file_bytes,
        "nofile": bounds.open_files,
        "nproc": bounds.processes,
    }


def held(limits: Mapping[str, int]) -> dict[str, int]:
    """Return the limits, capped at those of this process: only root may raise one."""
    return {name: _lower(value, _hardest(name)) for name, value in limits.items()}


def _hardest(name: str) -> int:
    return resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]


def _lower(value: int, hardest: int) -> int:
    return value if hardest == resource.RLIM_INFINITY else min(value, hardest)


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs that build the sandbox."""

    bwrap: str
    binds_by_descriptor: bool
    """Whether this bubblewrap mounts what was opened instead of what a path names by then."""
    prlimit: str
    perl: str | None


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The file descriptors that bubblewrap inherits."""

    filter: int | None
    """The filter for system calls."""
    status: int
    """Where it reports."""
    data: Mapping[str, int]
    """The content of files, by their path in the sandbox."""


def arguments(job: SandboxJob, mounts: tuple[Mount, ...], programs: Programs, descriptors: Descriptors) -> list[str]:
    """Return the full command line."""
    lines = [programs.bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--uid", USER, "--gid", GROUP]
    lines += ["--cap-drop", "ALL", "--hostname", "sandbox", "--json-status-fd", str(descriptors.status)]
    lines += _system()
    # Everything in /proc is the caller's own, but root's programs could still write kernel settings.
    lines += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    lines += ["--size", str(SHARED_MEMORY_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    lines += ["--size", str(job.bounds.temporary_bytes), "--perms", "1777", "--tmpfs", PRIVATE_FOLDER]
    for path, descriptor in descriptors.data.items():
        lines += ["--perms", "0444", "--ro-bind-data", str(descriptor), path]
    for mount in mounts:
        if mount.covered:
            lines += ["--perms", "0755", "--size", "65536", "--tmpfs", str(mount.path)]
            continue
        bind, source = ("--ro-bind" if job.read_only or mount.is_fixed else "--bind"), str(mount.path)
        if programs.binds_by_descriptor and mount.opened is not None:
            # Bubblewrap compares what it has mounted with what was opened, and runs nothing if they differ.
            bind, source = f"{bind}-fd", str(mount.opened)
        lines += [bind, source, str(mount.path)]
    # Covers become read-only last, when everything inside them is mounted.
    lines += [word for mount in mounts if mount.covered for word in ("--remount-ro", str(mount.path))]
    lines += ["--remount-ro", "/", "--chdir", str(job.folder), "--clearenv"]
    for name, value in {**ENVIRONMENT, **job.environment}.items():
        lines += ["--setenv", name, value]
    if descriptors.filter is not None:
        lines += ["--seccomp", str(descriptors.filter)]
    lines += [
        "--",
        programs.prlimit,
        *(f"--{name}={value}:{value}" for name, value in held(limits(job.bounds)).items()),
    ]
    if job.read_only and programs.perl is not None:
        lines += ["--", programs.perl, "-e", KEEP_TO_WRITABLE]
    return [*lines, "--", *job.argv]


def _system() -> Iterator[str]:
    for name in SYSTEM:
        path = Path(name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), name)
        elif path.is_dir():
            yield from ("--ro-bind", name, name)
    for name in system_files():
        yield from ("--ro-bind", name, name)
