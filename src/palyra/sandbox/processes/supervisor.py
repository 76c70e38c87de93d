"""The program that starts a guarded program, watches it, and leaves none of its processes behind.

It is started as a separate program and uses the standard library only, and of that as little as it can: each start
waits for these imports (`signal` alone imports enums, `json` regular expressions). Its input is the order, written
by `marshal` after its length; the input then stays open for as long as the program may run. When it ends, because
the daemon closed it or died, everything is killed. Everything that the program starts stays below this process, since
it adopts orphans, and so is found.

It also counts the processes and the memory of all that it watches. The kernel's own limit on processes does not
hold for root, so a program that forks without end must be outrun: this process asks for real-time priority, and
often reads a number that costs nothing to read before it counts one by one. If the program is in a control group of
its own, the kernel counts its memory and ends it as a whole. Otherwise this process adds up what belongs to processes,
files in memory, and sockets and pipes, each as if it were full; the filter on system calls denies what is left.

The program is confined between fork and exec: limits, no new privileges, no capabilities, Landlock, and the filter on
system calls last. If any of these fails, nothing is run. What went wrong, or how the program ended, is reported as one
line of JSON to the file descriptor that its one argument names.
"""

import ctypes
import marshal
import os
import resource
import select
import struct
import sys

from palyra.sandbox.processes.resource_count import MachineBaseline, processes_of_machine, resources_used, tasks

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all others
if TYPE_CHECKING:
    import signal
    from typing import Any
else:
    import _signal as signal

MIN_PAUSE_SECONDS, PAUSE_SECONDS = 0.0005, 0.01
"""Between two rounds of killing: short at first, since most end at once."""
POLL_SECONDS = 0.02
"""How often the number of all processes of the machine is read."""
THREADS_EACH = 16
"""How many threads are allowed for each allowed process. Except for root, the kernel allows fewer."""
POLLS_PER_CHECK = 10
"""After how many of them everything is counted. A long-running program is checked less often: it must cost nothing."""

_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_SECCOMP = 1, 24, 22
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 36, 38, 47, 4
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_CAPSET = {"x86_64": 126, "aarch64": 91}
_MAX_CAPABILITIES = 64

# The access rights to a file, as Landlock numbers them.
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE, _IOCTL = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_MAKE_CHARACTER_DEVICE, _MAKE_BLOCK_DEVICE = 1 << 6, 1 << 11
_EVERYTHING = (1 << 16) - 1
_ON_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_TCP, _SCOPES = 3, 3
"""Binding and connecting; abstract sockets and signals."""

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Execute the order, and report."""
    _call(_libc.prctl, _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A second way to notice the daemon's death, in case another process holds the other end of the input.
    _call(_libc.prctl, _PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    report_at = int(sys.argv[1])
    os.set_inheritable(report_at, False)
    order = _order()
    # The daemon has raised its own limit, which programs must not inherit.
    resource.setrlimit(resource.RLIMIT_NOFILE, (order["open_files"], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        pass  # only root may; for all others the kernel enforces the limit
    before = MachineBaseline()
    wakes, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    fault, faults = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(fault)
        _become(order, faults)
    os.close(faults)
    problem = b""
    while piece := os.read(fault, 65536):
        problem += piece
    status, stopped = (None, "") if problem else _watch(child, wakes, before=before, order=order)
    code = None if status is None else os.waitstatus_to_exitcode(status)
    _kill_all(child, group=order.get("group"))
    if code is None and (folder := order.get("temporary")):
        # The daemon may be gone, and could not do this.
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    os.write(report_at, _report(code, stopped=stopped, problem=problem.decode(errors="replace")))
    # Nothing is left to clean up in this process, and that would take time.
    os._exit(0)


def _report(code: int | None, *, stopped: str, problem: str) -> bytes:
    if not problem and not stopped and code is not None:
        return b'{"code": %d, "stopped": ""}\n' % code
    import json

    text = {"fault": problem} if problem else {"code": code, "stopped": stopped}
    return json.dumps(text).encode() + b"\n"


def _order() -> "dict[str, Any]":
    order: dict[str, Any] = marshal.loads(_exactly(int.from_bytes(_exactly(4), "big")))
    return order


def _exactly(size: int) -> bytes:
    # Not through a buffer: only the order may be read.
    match = b""
    while len(match) < size:
        piece = os.read(0, size - len(match))
        if not piece:
            sys.exit(1)
        match += piece
    return match


def _watch(child: int, wakes: int, *, before: MachineBaseline, order: "dict[str, Any]") -> tuple[int | None, str]:
    """Wait for the program's end: return its status, or None if it must be ended, and why if it used too much."""
    glances, seconds = 0, order.get("glance_seconds", POLL_SECONDS)
    while True:
        ready, _, _ = select.select([0, wakes], [], [], seconds)
        if wakes in ready:
            if signal.SIGTERM in os.read(wakes, 1024):
                return None, ""
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == child:
                    return status, _spent(order)
                if pid == 0:
                    break
        if 0 in ready:
            return None, ""
        glances += 1
        if glances % POLLS_PER_CHECK == 0 or tasks() - before.tasks > order["processes"]:
            processes, threads, memory = resources_used(order, before)
            if processes > order["processes"]:
                return None, f"it started more than {order['processes']} processes"
            if threads > order["processes"] * THREADS_EACH:
                return None, f"it started more than {order['processes'] * THREADS_EACH} threads"
            if memory > order["memory"]:
                return None, _too_much_memory(order)


def _kill_all(child: int, *, group: str | None) -> None:
    """Kill everything below this process, until nothing is left, and remove the control group."""
    pause = MIN_PAUSE_SECONDS
    while True:
        if group is not None:
            _write(f"{group}/cgroup.kill", b"1")
        # The group first and at once: a fork in progress fails when its group is being killed.
        _kill(-child)
        try:
            # This process adopts orphans. So every process below it is a child of it, or has one above.
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            if group is None or _is_removed(group):
                return
        for pid in _children():
            _kill(pid)
        select.select([], [], [], pause)
        pause = min(2 * pause, PAUSE_SECONDS)


def _is_removed(group: str) -> bool:
    try:
        os.rmdir(group)
    except FileNotFoundError:
        pass
    except OSError:
        return False  # the last of its processes is still exiting
    return True


def _write(path: str, value: bytes) -> None:
    """Write a setting that not every kernel knows."""
    try:
        with open(path, "wb", buffering=0) as file:
            file.write(value)
    except OSError:
        pass


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _children() -> list[int]:
    """Return the children of this process. One that starts or ends meanwhile may be missing: the next one finds it."""
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        # Not every kernel has such a list.
        return [pid for pid, parent, _, _ in processes_of_machine() if parent == me]


def _spent(order: "dict[str, Any]") -> str:
    """Return why the kernel ended all processes of the control group, if it did."""
    if order.get("group"):
        with open(f"{order['group']}/memory.events", "rb") as file:
            if any(line.startswith(b"oom_kill ") and line.split()[1] != b"0" for line in file):
                return _too_much_memory(order)
    return ""


def _too_much_memory(order: "dict[str, Any]") -> str:
    return f"it used more than {order['memory'] >> 20} MiB of memory"


def _become(order: "dict[str, Any]", faults: int) -> None:
    """Confine this process and turn it into the program; never returns."""
    try:
        # If the machine runs out of memory all the same, the kernel ends the program, and not the daemon.
        _write("/proc/self/oom_score_adj", b"1000")
        if "group" in order:
            with open(f"{order['group']}/cgroup.procs", "wb", buffering=0) as file:
                file.write(b"0")
        os.setsid()
        if "stream" in order:
            # This one connects to the program, in both directions.
            os.dup2(order["stream"], 0)
            os.dup2(order["stream"], 1)
            os.close(order["stream"])
        else:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(order["folder"])
        for folder in order.get("held", ()):
            os.set_inheritable(folder, False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        for name, value in order["limits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        _call(_libc.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if order["confined"]:
            _drop_capabilities()
            _landlock(order)
            _filter(bytes.fromhex(order["filter"]))
        os.execve(order["argv"][0], order["argv"], order["environment"])
    except BaseException as error:
        os.write(faults, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(127)


def _drop_capabilities() -> None:
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for number in range(_MAX_CAPABILITIES):
        # Fails for numbers that the kernel lacks, and for users who have no capabilities to drop.
        _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    header = ctypes.create_string_buffer(struct.pack("=II", 0x20080522, 0))
    _call(_libc.syscall, _CAPSET[os.uname().machine], header, ctypes.create_string_buffer(bytes(24)))


def _landlock(order: "dict[str, Any]") -> None:
    attributes = struct.pack("=QQQ", _EVERYTHING, _TCP, _SCOPES)
    ruleset = _call(_libc.syscall, _LANDLOCK_CREATE, ctypes.create_string_buffer(attributes), len(attributes), 0)
    for path in order["readable"]:
        _permit(ruleset, path, _EXECUTE | _READ | _LIST)
    for path in order["writable"]:
        _permit(ruleset, path, _EVERYTHING & ~(_MAKE_CHARACTER_DEVICE | _MAKE_BLOCK_DEVICE))
    for path in order["devices"]:
        _permit(ruleset, path, _READ | _WRITE | _TRUNCATE | _IOCTL)
    _call(_libc.syscall, _LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _permit(ruleset: int, path: "str | int", access: int) -> None:
    """Allow access to a path, or to a folder that was opened before."""
    try:
        index = os.open(path, os.O_PATH | os.O_CLOEXEC) if isinstance(path, str) else path
    except FileNotFoundError:
        return
    if not os.path.isdir(index):
        access &= _ON_FILES
    rule = ctypes.create_string_buffer(struct.pack("=Qi", access, index))
    _call(_libc.syscall, _LANDLOCK_ADD, ruleset, 1, rule, 0)
    os.close(index)


def _filter(program: bytes) -> None:
    code = ctypes.create_string_buffer(program)
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    _call(_libc.prctl, _PR_SET_SECCOMP, 2, header, 0, 0)


def _call(function: "Any", *arguments: "Any") -> int:
    """Make a system call that the standard library lacks, with every number as wide as the kernel takes it."""
    wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = int(function(*wide))
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


if __name__ == "__main__":
    main()
