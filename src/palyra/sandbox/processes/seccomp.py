"""The filter on system calls: denies what no ordinary program needs and attacks on the kernel or other processes use.

It is a list of denied calls, so that unforeseen programs still run; the namespaces and Landlock decide
what can be reached. A call by another calling convention than the machine's own (32 bit, x32) ends the program, since
its numbers mean other things. `clone3` and `openat2` are answered as if the kernel were too old: their arguments are
where no filter can read them, and every library then falls back to `clone` and `openat`, which are checked. So are the
calls for memory that belongs to a file without a name. No program leaves a file behind that runs with the rights of its
owner, who is not in the sandbox.

Where no control group counts what the kernel keeps for a program, calls are denied that would make it keep memory which
cannot be counted: see `_without_group`.
"""

import errno
import os
import platform
import socket
import struct

from palyra.sandbox.base import Tier
from palyra.sandbox.processes.syscalls import ARCHITECTURES, numbers

_LOAD, _JUMP_EQUAL, _JUMP_NOT_LESS, _JUMP_SET, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000
_LOW, _HIGH = 0, 4
"""Halves of an argument: all machines that are supported here store the lower one first."""
_NEW_NAMESPACE = 0x7E020000
"""Every CLONE_NEW… flag that `clone` takes."""
_PUSH_INPUT, _CONSOLE = 0x5412, 0x541C
"""TIOCSTI and TIOCLINUX, which type into a terminal on the user's behalf."""
_FILE_FLAGS = (0x40086602, 0x40046602, 0x40087602, 0x40047602, 0x401C5820)
"""FS_IOC_SETFLAGS, FS_IOC_SETVERSION and FS_IOC_FSSETXATTR, which also work on a file that is open for reading."""
_SET_LEASE = 1024
"""F_SETLEASE: another process that opens the file waits for up to 45 s, also outside."""
_MAKES_FILE, _OTHERS_RIGHTS = 0x400040, 0o6000
"""O_CREAT and O_TMPFILE; and the bits by which a program runs with the rights of its owner or group."""
_TYPE_BITS = 0xF
_LASTING_TYPES = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
"""Types of socket that stay connected to their first peer."""
_OF_A_USER = (2, 3)
"""The value with which `setpriority` and `ioprio_set` name all processes of a user."""
_UNCHANGED = 0xFFFFFFFF
"""The owner or group that `chown` leaves unchanged."""
_OF_SOCKET, _BUFFERS, _ZERO_COPY = 1, (7, 8, 32, 33), 60
"""SOL_SOCKET with SO_SNDBUF, SO_RCVBUF and their FORCE variants; SO_ZEROCOPY."""
_NETLINK, _ROUTE = 16, 0
MAX_SEGMENT_BYTES = 4096
"""For System V shared memory that no control group counts. The kernel makes 4,096 segments at most: 16 MiB in all."""

_Line = tuple[int, int, int, int]
_REFUSED: _Line = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
_PRETENDED: _Line = (_RETURN, 0, 0, _ERRNO)

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
"""Kinds of socket that a network namespace confines, besides netlink. Others (vsock) would reach past it."""

DENIED = """
    ptrace syslog uselib ustat sysfs vhangup modify_ldt pivot_root _sysctl adjtimex chroot acct settimeofday mount
    umount2 swapon swapoff reboot sethostname setdomainname iopl ioperm create_module init_module delete_module
    get_kernel_syms query_module quotactl quotactl_fd nfsservctl lookup_dcookie clock_settime clock_adjtime kexec_load
    kexec_file_load add_key request_key keyctl unshare setns perf_event_open fanotify_init name_to_handle_at
    open_by_handle_at process_vm_readv process_vm_writev kcmp finit_module bpf userfaultfd io_uring_setup io_uring_enter
    io_uring_register open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick pidfd_getfd mount_setattr
"""
TOO_NEW = "memfd_create memfd_secret clone3 openat2"
"""Answered as if the kernel were too old: memory that cannot be counted, and modes where no filter can read them."""
MODES = "chmod fchmod fchmodat fchmodat2"
ATTRIBUTES = """
    setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr setxattrat removexattrat file_setattr
"""
"""Extended attributes of a file, access lists among them, and its flags."""
OWNERS = {"chown": 1, "fchown": 1, "lchown": 1, "fchownat": 2}
"""Calls that change owner and group, with the index of these arguments."""
TIMES = "utime utimes futimesat"
WATCHES = "inotify_init inotify_init1 inotify_add_watch"
SHARED = """
    shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink
"""
"""Calls that reach memory, queues and semaphores of other processes by a number or a name."""
PINNING = "splice tee vmsplice sendfile"
"""They keep pages of memory or of files in a pipe or socket, a full huge page for a single byte."""
MODED = {"creat": 1, "chmod": 1, "fchmod": 1, "mknod": 1, "mknodat": 2, "fchmodat": 2, "fchmodat2": 2}
"""Calls that set a mode, with the index of that argument."""
OPENING = {"open": (1, 2), "openat": (2, 3)}
"""Calls that may create a file, with the indices of flags and mode."""
OF_PROCESS = "sched_setparam sched_setscheduler sched_setaffinity prlimit64 sched_setattr"
"""Calls that change the limits of the process that their first argument names; 0 is the caller."""
OF_GROUP = "setpriority ioprio_set"
"""Calls that do so for what their second argument names, in the way that the first says."""


def build(
    tier: Tier,
    *,
    read_only: bool = False,
    counted: bool = False,
    resident: bool = False,
    sets_times: bool = False,
    machine: str = platform.machine(),
) -> bytes | None:
    """Return the filter for a tier in the kernel's format; None if the machine's calls are not known here.

    `counted` says that a control group counts the program's memory. A `resident` uses the machine's network.
    `sets_times` lets a program of the tier `guarded` set the times of files that it has open.

    `strict` has a network of its own, so it may open sockets of the kinds that belong to it. `guarded` shares the
    network and the sockets of the machine, so it may open none: a program can still talk to its own children.

    A socket of another program on a read-only mount can still be connected to. So a `read_only` program has
    no sockets with a name; it has pairs, but none that could be connected to something else later.
    """
    if machine not in ARCHITECTURES:
        return None
    calls = _Calls(numbers(machine))
    program = [
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_NOT_LESS, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
    ]
    program += calls.answered(DENIED, errno.EPERM)
    program += calls.answered(TOO_NEW, errno.ENOSYS)
    if tier is Tier.GUARDED:
        program += _shared_machine(calls, sets_times=sets_times)
    if not counted:
        program += _without_group(calls)
    for name, mode in MODED.items():
        program += calls.when(name, _refused_if(mode, _JUMP_SET, _OTHERS_RIGHTS))
    for name, (flags, mode) in OPENING.items():
        program += calls.when(name, _unless(flags, _MAKES_FILE) + _refused_if(mode, _JUMP_SET, _OTHERS_RIGHTS))
    program += calls.when("clone", _refused_if(0, _JUMP_SET, _NEW_NAMESPACE))
    file_flags = _FILE_FLAGS if tier is Tier.GUARDED else ()
    program += calls.when("ioctl", _refused_if(1, _JUMP_EQUAL, _PUSH_INPUT, _CONSOLE, *file_flags))
    program += calls.when("fcntl", _refused_if(1, _JUMP_EQUAL, _SET_LEASE))
    if not (counted and resident):
        program += calls.when("setsockopt", _default_buffers())
    if read_only:
        program += calls.when("socketpair", _refused_unless_type(1, *_LASTING_TYPES))
    families = [family for family in FAMILIES if tier is Tier.STRICT and not (read_only and family == socket.AF_UNIX)]
    netlink = [] if tier is not Tier.STRICT else _netlink(None if resident else _ROUTE)
    permitted = [line for family in families for line in ((_JUMP_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW))]
    refused = (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT)
    program += calls.when("socket", [_load(0), *permitted, *netlink, refused])
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in program)


class _Calls:
    """Writes filter lines for calls by name, and none for those that the machine does not have."""

    def __init__(self, cached: dict[str, int]) -> None:
        self._known = cached

    def answered(self, names: str, error: int) -> list[_Line]:
        """Return lines that answer calls with an error, or with 0 as if they were done."""
        result = [self._known[name] for name in names.split() if name in self._known]
        return [line for number in result for line in ((_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error))]

    def when(self, name: str, lines: list[_Line]) -> list[_Line]:
        """Return lines that check the arguments of one call, and allow what they do not end."""
        if name not in self._known:
            return []
        body = [*lines, (_RETURN, 0, 0, _ALLOW)]
        return [(_JUMP_EQUAL, 0, len(body), self._known[name]), *body]


def _shared_machine(calls: _Calls, *, sets_times: bool) -> list[_Line]:
    """Return lines for a program that only Landlock keeps from the files and processes of its user.

    Landlock checks neither modes, owners, times, attributes and flags of a file nor who watches it: they stay as
    they are, wherever the file is. Where too many programs would give up otherwise, the call is answered as if it were
    done. Nor does it check memory that processes share by a number, or which process sets whose limits.
    """
    program = calls.answered(MODES, 0) + calls.answered(ATTRIBUTES, errno.EOPNOTSUPP)
    program += calls.answered(WATCHES, errno.ENOSYS) + calls.answered(SHARED, errno.ENOSYS)
    for name, owner in OWNERS.items():
        lines = _refused_unless(owner, _UNCHANGED, os.getuid()) + _refused_unless(owner + 1, _UNCHANGED, os.getgid())
        program += calls.when(name, [*lines, _PRETENDED])
    program += calls.answered(TIMES, 0)
    # Without a path the call is about an open file, which Landlock has checked. With one it can be any.
    by_path = [line for half in (_LOW, _HIGH) for line in (_load(1, half), (_JUMP_EQUAL, 1, 0, 0), _PRETENDED)]
    program += calls.when("utimensat", by_path if sets_times else [_PRETENDED])
    for name in OF_PROCESS.split():
        program += calls.when(name, _refused_unless(0, 0))
    for name in OF_GROUP.split():
        program += calls.when(name, _refused_unless(1, 0) + _refused_if(0, _JUMP_EQUAL, *_OF_A_USER))
    return program


def _without_group(calls: _Calls) -> list[_Line]:
    """Return lines against memory that the kernel keeps for a program and that belongs to none of its processes.

    The supervisor counts sockets, each as if it were full, so none may have larger buffers than the default. What
    it cannot count is denied. EINVAL is what programs expect where files or pipes cannot be spliced: they copy.
    """
    too_large = (_RETURN, 0, 0, _ERRNO | errno.EINVAL)
    is_small = [_load(1, _HIGH), (_JUMP_EQUAL, 1, 0, 0), too_large]
    program = calls.when("shmget", [*is_small, _load(1), (_JUMP_NOT_LESS, 0, 1, MAX_SEGMENT_BYTES + 1), too_large])
    return program + calls.answered("semget msgget", errno.ENOSYS) + calls.answered(PINNING, errno.EINVAL)


def _default_buffers() -> list[_Line]:
    """Return lines for `setsockopt` that leave buffers as they are: a requested size is only a hint to the kernel."""
    pretended = [line for option in _BUFFERS for line in ((_JUMP_EQUAL, 0, 1, option), _PRETENDED)]
    is_about_sockets = [_load(1), (_JUMP_EQUAL, 1, 0, _OF_SOCKET), (_RETURN, 0, 0, _ALLOW)]
    return [*is_about_sockets, _load(2), *pretended, (_JUMP_EQUAL, 0, 1, _ZERO_COPY), _REFUSED]


def _netlink(protocol: int | None) -> list[_Line]:
    """Return lines that permit netlink sockets of one protocol, of all if it is None."""
    chosen = [] if protocol is None else [_load(2), (_JUMP_EQUAL, 0, 1, protocol)]
    return [(_JUMP_EQUAL, 0, len(chosen) + 1, _NETLINK), *chosen, (_RETURN, 0, 0, _ALLOW)]


def _load(argument: int, half: int = _LOW) -> _Line:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * argument + half)


def _unless(argument: int, bits: int) -> list[_Line]:
    """Return lines that allow the call unless one of the bits is set in an argument."""
    return [_load(argument), (_JUMP_SET, 1, 0, bits), (_RETURN, 0, 0, _ALLOW)]


def _refused_if(argument: int, jump: int, *values: int) -> list[_Line]:
    """Return lines that refuse the call if the lower half of an argument is one of the values, or has its bits."""
    return [_load(argument), *(line for value in values for line in ((jump, 0, 1, value), _REFUSED))]


def _refused_unless(argument: int, *values: int) -> list[_Line]:
    """Return lines that refuse the call unless the lower half of an argument is one of the values."""
    result = [(_JUMP_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [_load(argument), *result, _REFUSED]


def _refused_unless_type(argument: int, *types: int) -> list[_Line]:
    """Return lines that refuse the call unless the type of socket in an argument is one of these."""
    allowed = [line for one in types for line in ((_JUMP_EQUAL, 0, 1, one), (_RETURN, 0, 0, _ALLOW))]
    return [_load(argument), (_AND, 0, 0, _TYPE_BITS), *allowed, _REFUSED]
