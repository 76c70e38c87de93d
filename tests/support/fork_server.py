"""Starts daemons and commands as forks of one process that has loaded their modules already.

Loading them is nine tenths of the processor time that a start takes, and the tests start both by the thousand. A
fork runs the same `main` as a daemon or a command that is started as a program: in a process of its own, with the
arguments, the environment, the folder and the descriptors that it is given. It dies with the server, and the server
ends with the tests.

The program below is the server. It has one thread and runs nothing of what it has loaded before it forks.
"""

import ctypes
import gc
import io
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import FrameType
from typing import Any, Literal, NamedTuple

MAX_REQUEST_BYTES = 1 << 20
MAX_DESCRIPTORS = 5
PR_SET_PDEATHSIG = 1
LOADED_LATE = ("cedarpy", "encodings.idna", "palyra.journal.engines.postgres", "tomlkit", "uvicorn.lifespan.off")
"""What programs load once they need it, and most of them do need it."""

Program = Literal["palyrad", "palyra"]


class ForkedProcess:
    """What the server has forked, with as much of `subprocess.Popen` as its users need."""

    def __init__(self, pid: int, ended: int) -> None:
        self.pid = pid
        self._ended = ended
        """Where the server writes the exit code."""
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0.0)
        return code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        # Once it has ended, another process may have its number.
        if self.poll() is None:
            os.kill(self.pid, number)

    def _look(self, seconds: float | None) -> int | None:
        with self._lock:
            if self._code is None and self._is_ended(seconds):
                said = os.read(self._ended, 64)
                os.close(self._ended)
                self._code = int(said) if said else -signal.SIGKILL  # the server itself was ended, and all with it
            return self._code

    def _is_ended(self, seconds: float | None) -> bool:
        waiting = select.poll()  # select takes no descriptor beyond 1023
        waiting.register(self._ended, select.POLLIN)
        return bool(waiting.poll(None if seconds is None else seconds * 1000))


class ForkServer:
    """The process that forks one of the programs. May be used from several threads."""

    def __init__(self, program: Program) -> None:
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST_BYTES)
        with theirs:
            # Not from a folder of the tests, as a daemon is not. Commands are started with PYTHONUTF8, which holds from
            # the start of an interpreter.
            options = ["-P", "-X", "utf8"] if program == "palyra" else ["-P"]
            command = [sys.executable, *options, str(Path(__file__)), program, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)

    def start_daemon(self, *, environ: Mapping[str, str], output: int, ready: int) -> ForkedProcess:
        """Fork a daemon that writes to `output`, and says to `ready` that it serves."""
        with open(os.devnull, "rb") as nothing:
            return self._start([], environ, [nothing.fileno(), output, output], ready)

    def start_command(
        self, arguments: Sequence[str], *, environ: Mapping[str, str], stdin: int, stdout: int, stderr: int
    ) -> ForkedProcess:
        """Fork a command."""
        return self._start(arguments, environ, [stdin, stdout, stderr])

    def _start(
        self, arguments: Sequence[str], environ: Mapping[str, str], streams: Sequence[int], *more: int
    ) -> ForkedProcess:
        ended, writer = os.pipe()
        request = {
            "arguments": list(arguments),
            "environ": dict(environ),
            "folder": os.getcwd(),
            "umask": _umask(),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        try:
            with self._lock:
                socket.send_fds(self._control, [json.dumps(request).encode()], [writer, *streams, *more])
                said = self._control.recv(64)
        finally:
            os.close(writer)
        if not said:
            os.close(ended)
            raise RuntimeError("the server that forks has ended")
        return ForkedProcess(int(said), ended)

    def close(self) -> None:
        """End the server, and everything that it has forked."""
        self._control.close()
        self._process.wait()


class _Fork(NamedTuple):
    """What the server has become in a fork."""

    arguments: list[str]
    more: list[int]
    """The descriptors beside the three that every program has."""


class _Server:
    """See the module; this half runs in the process that forks."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._ended: dict[int, int] = {}
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)

    def run(self) -> _Fork | None:
        """Fork until the tests are gone, and return None; in a fork return what it is to do."""
        signal.signal(signal.SIGCHLD, _nothing)
        signal.set_wakeup_fd(self._wake)
        waiting = select.poll()  # select takes no descriptor beyond 1023, which the tests may have opened before
        for descriptor in (self._control.fileno(), self._woken):
            waiting.register(descriptor, select.POLLIN)
        while True:
            found = [descriptor for descriptor, _ in waiting.poll()]
            if self._woken in found:
                self._reap()
            if self._control.fileno() in found:
                said, descriptors, _, _ = socket.recv_fds(self._control, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
                if not said:
                    return None
                ended, *given = descriptors
                if (fork := self._fork(json.loads(said), ended, given)) is not None:
                    return fork

    def _fork(self, request: Any, ended: int, given: list[int]) -> _Fork | None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._leave(ended)
            _become(request, streams=given[:3], parent=parent)
            return _Fork(request["arguments"], given[3:])
        for descriptor in given:
            os.close(descriptor)
        self._ended[pid] = ended
        self._control.send(str(pid).encode())
        return None

    def _leave(self, ended: int) -> None:
        """Leave everything of the server behind that a program would not have."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        for descriptor in (self._woken, self._wake, ended, *self._ended.values()):
            os.close(descriptor)

    def _reap(self) -> None:
        os.read(self._woken, 4096)
        while self._ended:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            ended = self._ended.pop(pid)
            os.write(ended, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(ended)


def _become(request: Any, *, streams: list[int], parent: int) -> None:
    """Have a fork look like a program that was just started."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    _open_streams()
    os.chdir(request["folder"])
    os.umask(request["umask"])
    resource.setrlimit(resource.RLIMIT_NOFILE, request["files"])
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    time.tzset()


def _open_streams() -> None:
    """Open stdin, stdout and stderr again: what Python has opened depends on what the descriptors were then."""
    for number, (name, mode) in enumerate((("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb"))):
        before = getattr(sys, name)
        raw = open(number, mode, closefd=False)
        lines = before.line_buffering or raw.isatty()
        stream = io.TextIOWrapper(raw, encoding=before.encoding, errors=before.errors, line_buffering=lines)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _umask() -> int:
    """Return the umask of this process. To ask the system for it is to change it."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask:")]
    return int(line.split()[1], 8)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Be a handler: only for signals that have one is the pipe written."""


def _load_daemon() -> Callable[[], None]:
    import palyra.daemon.serve  # noqa: F401
    from palyra.cli.daemon.serve import main

    _load(*LOADED_LATE)
    return main


def _load_command() -> Callable[[], None]:
    import palyra.cli
    import palyra.gateway.client
    from palyra.cli.app import main

    for package in (palyra.cli, palyra.gateway.client):
        _load(*(module.name for module in walk_packages(package.__path__, f"{package.__name__}.")))
    _load(*LOADED_LATE)
    return main


def _load(*modules: str) -> None:
    for module in modules:
        import_module(module)


if __name__ == "__main__":
    program = sys.argv[1]
    main = _load_daemon() if program == "palyrad" else _load_command()
    # Otherwise the first collection in each fork writes to, and so copies, all memory.
    gc.collect()
    gc.freeze()
    fork = _Server(socket.socket(fileno=int(sys.argv[2]))).run()
    if fork is not None:
        ready = [part for descriptor in fork.more for part in ("--ready-fd", str(descriptor))]
        sys.argv = [program, *fork.arguments, *ready]
        main()
