"""Long-running programs: started under the supervisor, connected by one stream, ended with all their processes.

The owner has chosen such a program, so it sees the machine as the owner does, with two exceptions: Palyra's
own folders are covered, and other processes are hidden. It changes only what the owner has named, and a
folder for temporary files: a program that may write anywhere in the owner's home can have code run outside by the next
shell, command or timer that starts there. Palyra's installation cannot be changed whatever is named. That needs
bubblewrap; where it is missing, nothing is started unless the owner has allowed running without. If the daemon dies,
the supervisor ends everything.
"""

import asyncio
import json
import os
import socket
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from palyra.exhaustion import wait_out
from palyra.sandbox.base import MIB, ResourceLimits, RootNotAllowed, SandboxUnavailable, Tier
from palyra.sandbox.files.root import RootSymlinked, open_path
from palyra.sandbox.processes import installation, seccomp
from palyra.sandbox.processes.capture import OutputCapture
from palyra.sandbox.processes.launch import LaunchPlan, memory_file
from palyra.sandbox.processes.mounts import followed, lies_in, real_path
from palyra.sandbox.processes.tiers import NO_BIND_FD, binds_by_descriptor, find, tier_problem

BLOCK_BYTES = 64 * 1024
SAID_BYTES = 4 * 1024
"""How much is kept of the end of a program's standard error."""
POLL_SECONDS = 0.1
TEMPORARY = ("/tmp", "/var/tmp")
SHARED_MEMORY_BYTES = 64 * MIB
BOUNDS = ResourceLimits(memory_bytes=2048 * MIB)


@dataclass(frozen=True, slots=True)
class HiddenPaths:
    """What a long-running program does not see."""

    folders: tuple[Path, ...] = ()
    open: tuple[Path, ...] = ()
    """Folders below them that it sees and changes all the same."""
    files: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    """Folders and files elsewhere that it may change."""
    workspaces: tuple[Path, ...] = ()
    """Folders that agents change: a link in one of them is not followed to what is writable."""
    network: bool = True


@dataclass(frozen=True, slots=True)
class ResidentJob:
    """A program to start."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """The full environment: nothing is passed on."""
    cover: HiddenPaths | None = None
    """None if it may do what Palyra's user may do."""
    bounds: ResourceLimits = BOUNDS
    base: Path | None = None
    """The control group in which its own can be created."""


class ResidentProcess:
    """A running program. The caller that started it must stop it."""

    def __init__(
        self,
        process: Process,
        launch: LaunchPlan,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._launch = launch
        self._said = OutputCapture(head_bytes=0, tail_bytes=SAID_BYTES)
        self.reader = reader
        self.writer = writer

    async def ended(self) -> str:
        """Wait until none of its processes is left, and return how it ended. Only one task may wait."""
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(BLOCK_BYTES):
            self._said.add(piece)
        await self._process.wait()
        data = await asyncio.to_thread(self._launch.read_report)
        report = {name: value for line in data.splitlines() for name, value in json.loads(line).items()}
        self._launch.tidy_up()
        if fault := report.get("fault"):
            return f"it could not be started: {fault}"
        if stopped := report.get("stopped"):
            return str(stopped)
        code = report.get("code")
        return f"it ended with exit code {code}" if code is not None else "it was stopped"

    @property
    def stderr_tail(self) -> str:
        """The end of its standard error."""
        return " ".join(self._said.output().tail.decode(errors="replace").split())

    def stop(self) -> None:
        """Make the supervisor end it and all that it has started."""
        self.writer.close()
        assert self._process.stdin is not None
        self._process.stdin.close()


async def start(staying: ResidentJob, *, max_bytes: int) -> ResidentProcess:
    """Start a program; `most_bytes` is the maximum length of a line that is read from it."""
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_connection(sock=ours, limit=max_bytes)
        try:
            launch = await wait_out(
                lambda: asyncio.to_thread(_prepare, staying, theirs.fileno()), what="a long-running program"
            )
            try:
                process = await wait_out(
                    lambda: asyncio.create_subprocess_exec(
                        *launch.argv,
                        stdin=PIPE,
                        stdout=DEVNULL,
                        stderr=PIPE,
                        env={},
                        cwd="/",
                        pass_fds=(*launch.passed, theirs.fileno()),
                        start_new_session=True,
                    ),
                    what="a long-running program",
                )
            except BaseException:
                launch.tidy_up()
                raise
        except BaseException:
            writer.close()
            raise
    # From here on nothing waits: a caller that is cancelled has a program that it can stop.
    launch.let_go()
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(launch.order)
    return ResidentProcess(process, launch, reader, writer)


def _prepare(staying: ResidentJob, stream: int) -> LaunchPlan:
    report, reported = os.pipe()
    launch = LaunchPlan(argv=[], report=report, passed=[reported])
    try:
        if missing := tier_problem(Tier.OFF):
            raise SandboxUnavailable(f"Programs cannot be supervised here: {missing.reason}. {missing.remedy}")
        argv = [*staying.argv] if staying.cover is None else _covered(launch, staying, staying.cover)
        grouped = launch.grouped(staying.base, staying.bounds)
    except BaseException:
        launch.tidy_up()
        raise
    order = {
        "argv": argv,
        "folder": "/",
        "environment": dict(staying.environment),
        "limits": {},
        "confined": False,
        "stream": stream,
        "glance_seconds": POLL_SECONDS,
        "processes": staying.bounds.processes,
        "memory": staying.bounds.memory_bytes,
        "open_files": staying.bounds.open_files,
        **grouped,
    }
    launch.command(order, reported=reported)
    return launch


def _covered(launch: LaunchPlan, staying: ResidentJob, cover: HiddenPaths) -> list[str]:
    if missing := tier_problem(Tier.STRICT):
        raise SandboxUnavailable(f"It cannot be kept away from Palyra's own files: {missing.reason}. {missing.remedy}")
    lines = [find("bwrap") or "bwrap", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--new-session"]
    lines += ["--cap-drop", "ALL", *(() if cover.network else ("--unshare-net",))]
    lines += ["--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc"]
    lines += ["--size", str(SHARED_MEMORY_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm"]
    for location in _messengers():
        lines += ["--tmpfs", location] if os.path.isdir(location) else ["--ro-bind", os.devnull, location]
    lines += _mounts(launch, cover, by_descriptor=binds_by_descriptor(lines[0]))
    for file in (os.path.realpath(path) for path in cover.files if path.is_file()):
        lines += ["--ro-bind", os.devnull, file]
    if (program := seccomp.build(Tier.STRICT, counted=staying.base is not None, resident=True)) is not None:
        lines += ["--seccomp", str(launch.pass_on(memory_file(program)))]
    return [*lines, "--", *staying.argv]


def _mounts(launch: LaunchPlan, cover: HiddenPaths, *, by_descriptor: bool) -> list[str]:
    """Return the paths that bubblewrap covers, and those that stay writable, outer ones first."""
    hidden = {real_path(folder) for folder in cover.folders if folder.is_dir()}
    opened = {real_path(folder) for folder in cover.open if folder.is_dir()}
    named = dict(_opened(launch, path, cover.workspaces) for path in cover.writable)
    for path in named:
        installation.refuse_inside(path)
        if path == Path("/") or path.is_relative_to("/proc") or path.is_relative_to("/sys"):
            raise RootNotAllowed(f"{path} belongs to the system. Name the folders that the program may change.")
        if any(lies_in(path, folder) for folder in hidden):
            raise RootNotAllowed(
                f"{path} contains Palyra's own files, which no program may change. Use another folder."
            )
    free = {path for path in {*named, *(real_path(Path(name)) for name in TEMPORARY)} if path.exists()} | opened
    fixed = {folder for folder in installation.folders() if any(lies_in(folder, target_path) for target_path in free)}
    # A mounted folder cannot be renamed, so nothing can replace it.
    parents = {target_path for folder in hidden | fixed for target_path in folder.parents}
    above = {target_path for target_path in parents if any(lies_in(target_path, one) for one in free)}
    lines = []
    for target_path in sorted(free | above | hidden | fixed, key=lambda path: len(path.parts)):
        if target_path in hidden:
            lines += ["--perms", "0755", "--size", "65536", "--tmpfs", str(target_path)]
        elif target_path not in fixed and (descriptor := named.get(target_path)) is not None:
            if not by_descriptor:
                raise RootNotAllowed(f"{target_path} is inside a workspace. {NO_BIND_FD}")
            lines += ["--bind-fd", str(descriptor), str(target_path)]
        else:
            lines += ["--ro-bind" if target_path in fixed else "--bind", str(target_path), str(target_path)]
    return lines + [word for folder in sorted(hidden) for word in ("--remount-ro", str(folder))]


def _opened(launch: LaunchPlan, path: Path, workspaces: tuple[Path, ...]) -> tuple[Path, int | None]:
    """Return where a path leads; if agents could put a link there meanwhile, open it so that none is followed."""
    target_path, links = followed(path)
    around = [real_path(folder) for folder in workspaces]
    if link := next((link for link in links if any(lies_in(link, folder) for folder in around)), None):
        raise RootSymlinked(
            f"{link} is a symbolic link inside a workspace, and leads to what the program may change. "
            "Name the folder itself."
        )
    if target_path in around or not any(lies_in(target_path, folder) for folder in around):
        return target_path, None
    try:
        descriptor = open_path(target_path)
    except (FileNotFoundError, NotADirectoryError):
        return target_path, None
    except OSError as error:
        raise RootNotAllowed(f"{target_path} cannot be opened: {error.strerror}.") from None
    return target_path, launch.pass_on(descriptor)


def _messengers() -> list[str]:
    """Return the sockets of services that start programs on request, outside of every sandbox."""
    user = os.getuid()
    paths = [f"/run/user/{user}", *(("/run/dbus", "/run/systemd/private") if user == 0 else ())]
    return [location for location in paths if os.path.exists(location)]
