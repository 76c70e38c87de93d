"""Starts daemons as forks of one process that has loaded their modules already.

Loading them is nine tenths of the processor time that a start takes, and the tests start daemons by the thousand. A
forked daemon runs the same `main` as one that is started as a program: in a process of its own, with the environment,
the folder and the descriptors that it is given. It dies with the server, and the server ends with the tests.

The program below is the server. It has one thread and runs nothing of what it has loaded before it forks.
"""

import ctypes
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
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

MAX_REQUEST_BYTES = 1 << 20
DESCRIPTORS = 3
PR_SET_PDEATHSIG = 1


class ForkedProcess:
    """A daemon that the server has forked, with as much of `subprocess.Popen` as its users need."""

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
            raise subprocess.TimeoutExpired("palyrad", timeout or 0.0)
        return code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        # Once it has ended, another process may have its number.
        if self.poll() is None:
            os.kill(self.pid, number)

    def _look(self, seconds: float | None) -> int | None:
        with self._lock:
            if self._code is None and select.select([self._ended], [], [], seconds)[0]:
                said = os.read(self._ended, 64)
                os.close(self._ended)
                self._code = int(said) if said else -signal.SIGKILL  # the server itself was ended, and all with it
            return self._code


class ForkServer:
    """The process that forks daemons. May be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST_BYTES)
        with theirs:
            # Not from a folder of the tests, as a daemon is not.
            command = [sys.executable, "-P", str(Path(__file__)), str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)

    def start(self, *, environ: Mapping[str, str], output: int, ready: int) -> ForkedProcess:
        """Fork a daemon that writes to `output`, and says to `ready` that it serves."""
        ended, writer = os.pipe()
        request = {
            "environ": dict(environ),
            "folder": os.getcwd(),
            "umask": _umask(),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        try:
            with self._lock:
                socket.send_fds(self._control, [json.dumps(request).encode()], [output, ready, writer])
                said = self._control.recv(64)
        finally:
            os.close(writer)
        if not said:
            os.close(ended)
            raise RuntimeError("the server that forks daemons has ended")
        return ForkedProcess(int(said), ended)

    def close(self) -> None:
        """End the server, and every daemon that it has forked."""
        self._control.close()
        self._process.wait()


class _Server:
    """See the module; this half runs in the process that forks."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._ended: dict[int, int] = {}
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)

    def run(self) -> int | None:
        """Fork until the tests are gone, and return None; in a fork return the descriptor for `--ready-fd`."""
        signal.signal(signal.SIGCHLD, _nothing)
        signal.set_wakeup_fd(self._wake)
        while True:
            found, _, _ = select.select([self._control.fileno(), self._woken], [], [])
            if self._woken in found:
                self._reap()
            if self._control.fileno() in found:
                said, descriptors, _, _ = socket.recv_fds(self._control, MAX_REQUEST_BYTES, DESCRIPTORS)
                if not said:
                    return None
                if (ready := self._fork(json.loads(said), *descriptors)) is not None:
                    return ready

    def _fork(self, request: Any, output: int, ready: int, ended: int) -> int | None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._leave(ended)
            _become(request, output=output, parent=parent)
            return ready
        os.close(output)
        os.close(ready)
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


def _become(request: Any, *, output: int, parent: int) -> None:
    """Have a fork look like a program that was just started."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    os.chdir(request["folder"])
    os.umask(request["umask"])
    resource.setrlimit(resource.RLIMIT_NOFILE, request["files"])
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()


def _umask() -> int:
    """Return the umask of this process. To ask the system for it is to change it."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask:")]
    return int(line.split()[1], 8)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Be a handler: only for signals that have one is the pipe written."""


def _load() -> None:
    """Load what daemons load at their start."""
    import palyra.cli.daemon.serve
    import palyra.daemon.serve  # noqa: F401


if __name__ == "__main__":
    _load()
    ready = _Server(socket.socket(fileno=int(sys.argv[1]))).run()
    if ready is not None:
        from palyra.cli.daemon.serve import main

        sys.argv = ["palyrad", "--ready-fd", str(ready)]
        main()
