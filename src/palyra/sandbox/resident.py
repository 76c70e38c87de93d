"""Programs that stay: started under the supervisor, spoken to over one stream, ended as a whole.

Such a program is one that the owner has chosen, so it sees the machine as the owner does, with two exceptions: Palyra's
own folders are covered, and other processes are out of its sight. That takes bubblewrap; where it is missing, nothing
is started unless the owner has said that it may run without. If the daemon dies, the supervisor ends everything.
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

from palyra.sandbox import seccomp
from palyra.sandbox.base import MIB, Bounds, Tier, TierUnavailable
from palyra.sandbox.capture import Capture
from palyra.sandbox.launch import Launch, memory_file
from palyra.sandbox.tiers import find, lack

BLOCK_BYTES = 64 * 1024
SAID_BYTES = 4 * 1024
"""How much is kept of the end of what a program says on its standard error."""
GLANCE_SECONDS = 0.1
BOUNDS = Bounds(memory_bytes=2048 * MIB)


@dataclass(frozen=True, slots=True)
class Cover:
    """What a program that stays does not see."""

    folders: tuple[Path, ...] = ()
    open: tuple[Path, ...] = ()
    """Folders below them that it sees all the same."""
    files: tuple[Path, ...] = ()
    network: bool = True


@dataclass(frozen=True, slots=True)
class Staying:
    """A program to start."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """All of it: nothing is passed on."""
    cover: Cover | None = None
    """None if it may do what Palyra's user may do."""
    bounds: Bounds = BOUNDS


class Resident:
    """A program that runs. Whoever started it must stop it."""

    def __init__(
        self,
        process: Process,
        launch: Launch,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._launch = launch
        self._said = Capture(head_bytes=0, tail_bytes=SAID_BYTES)
        self.reader = reader
        self.writer = writer

    async def ended(self) -> str:
        """Wait until nothing is left of it, and say how it ended. One task only may wait."""
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(BLOCK_BYTES):
            self._said.add(piece)
        await self._process.wait()
        told = await asyncio.to_thread(self._launch.read_report)
        report = {name: value for line in told.splitlines() for name, value in json.loads(line).items()}
        self._launch.tidy_up()
        if fault := report.get("fault"):
            return f"it could not be started: {fault}"
        if stopped := report.get("stopped"):
            return str(stopped)
        code = report.get("code")
        return f"it ended with exit code {code}" if code is not None else "it was ended"

    @property
    def said(self) -> str:
        """The end of what it has said on its standard error."""
        return " ".join(self._said.output().tail.decode(errors="replace").split())

    def stop(self) -> None:
        """Have the supervisor end it and all that it has started."""
        self.writer.close()
        assert self._process.stdin is not None
        self._process.stdin.close()


async def start(staying: Staying, *, most_bytes: int) -> Resident:
    """Start a program; `most_bytes` is the longest line that is read from it."""
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_connection(sock=ours, limit=most_bytes)
        try:
            launch = await asyncio.to_thread(_prepare, staying, theirs.fileno())
            try:
                process = await asyncio.create_subprocess_exec(
                    *launch.argv,
                    stdin=PIPE,
                    stdout=DEVNULL,
                    stderr=PIPE,
                    env={},
                    cwd="/",
                    pass_fds=(*launch.passed, theirs.fileno()),
                    start_new_session=True,
                )
            except BaseException:
                launch.tidy_up()
                raise
        except BaseException:
            writer.close()
            raise
    # From here on nothing waits: whoever is cancelled has a program in hand that can be stopped.
    launch.let_go()
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(launch.order)
    return Resident(process, launch, reader, writer)


def _prepare(staying: Staying, stream: int) -> Launch:
    report, reported = os.pipe()
    launch = Launch(argv=[], report=report, passed=[reported])
    try:
        if missing := lack(Tier.OFF):
            raise TierUnavailable(f"Programs can not be watched over here: {missing.reason}. {missing.remedy}")
        argv = [*staying.argv] if staying.cover is None else _covered(launch, staying.cover, staying.argv)
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
        "glance_seconds": GLANCE_SECONDS,
        "processes": staying.bounds.processes,
        "memory": staying.bounds.memory_bytes,
    }
    launch.command(order, reported=reported)
    return launch


def _covered(launch: Launch, cover: Cover, argv: tuple[str, ...]) -> list[str]:
    if missing := lack(Tier.STRICT):
        raise TierUnavailable(f"It can not be kept from Palyra's own files: {missing.reason}. {missing.remedy}")
    told = [find("bwrap") or "bwrap", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--new-session"]
    told += ["--cap-drop", "ALL", *(() if cover.network else ("--unshare-net",))]
    told += ["--dev-bind", "/", "/", "--proc", "/proc"]
    folders = [os.path.realpath(folder) for folder in cover.folders if folder.is_dir()]
    # What is mounted can not be renamed, so nothing can be put in the place of a covered folder.
    above = {str(place) for folder in folders for place in Path(folder).parents if place != Path("/")}
    for place in sorted(above, key=len):
        told += ["--dev-bind", place, place]
    for folder in folders:
        told += ["--perms", "0755", "--size", "65536", "--tmpfs", folder]
    for place in (os.path.realpath(path) for path in cover.open if path.is_dir()):
        told += ["--bind", place, place]
    for folder in folders:
        told += ["--remount-ro", folder]
    for file in (os.path.realpath(path) for path in cover.files if path.is_file()):
        told += ["--ro-bind", os.devnull, file]
    if (program := seccomp.build(Tier.STRICT, resident=True)) is not None:
        told += ["--seccomp", str(launch.pass_on(memory_file(program)))]
    return [*told, "--", *argv]
