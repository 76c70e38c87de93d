"""The filter on system calls: what no ordinary program needs and an attack on the kernel or other processes does.

It is a list of what is denied, so that programs nobody has thought of still run; the namespaces and Landlock decide
what can be reached. A call by another calling convention than the machine's own (32 bit, x32) ends the program, since
its numbers mean other things. `clone3` and `openat2` are answered as if the kernel were too old: what they ask for lies
where no filter can look, and every library then falls back to `clone` and `openat`, which are looked at. So are the
calls for memory that belongs to a file without a name: nobody would count it. No program leaves a file behind that runs
with the rights of its owner, who is not in the sandbox.
"""

import errno
import platform
import socket
import struct
from dataclasses import dataclass

from palyra.sandbox.base import Tier

_LOAD, _JUMP_EQUAL, _JUMP_NOT_LESS, _JUMP_SET, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000
_LOW, _HIGH = 0, 4
"""Halves of an argument: all machines that are known here keep the lower one first."""
_NEW_NAMESPACE = 0x7E020000
"""Every CLONE_NEW… flag that `clone` takes."""
_PUSH_INPUT, _CONSOLE = 0x5412, 0x541C
"""TIOCSTI and TIOCLINUX, which type into a terminal on somebody's behalf."""
_MAKES_FILE, _OTHERS_RIGHTS = 0x400040, 0o6000
"""O_CREAT and O_TMPFILE; and the bits by which a program runs with the rights of whom it belongs to."""
_TYPE_BITS = 0xF
_LASTING_TYPES = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
"""Types of socket that stay connected to what they were connected to first."""
_OF_A_USER = (2, 3)
"""What `setpriority` and `ioprio_set` call all processes of a user."""
MOST_SEGMENT_BYTES = 1 << 20
"""Of shared memory as System V has it. The kernel makes 4,096 segments at most, so that they stay within bounds."""

_Line = tuple[int, int, int, int]
_REFUSED: _Line = (_RETURN, 0, 0, _ERRNO | errno.EPERM)

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16)
"""Kinds of socket that a network namespace confines; 16 is netlink. Others (vsock) would reach past it."""


@dataclass(frozen=True, slots=True)
class _Machine:
    arch: int
    clone: int
    ioctl: int
    socket: int
    socket_pair: int
    denied: tuple[int, ...]
    modes: tuple[int, ...]
    """Calls that change the mode of a file."""
    attributes: tuple[int, ...]
    """Calls that change the extended attributes of a file, access lists among them."""
    unknown: tuple[int, ...]
    """Calls that are answered as if the kernel were too old: memory that nobody counts, modes where no filter looks."""
    segment: int
    """`shmget`."""
    shared: tuple[int, ...]
    """Calls that reach memory, queues and semaphores of other processes by a number or a name."""
    moded: tuple[tuple[int, int], ...]
    """Calls that give a mode, with the place of that argument."""
    opening: tuple[tuple[int, int, int], ...]
    """Calls that may make a file, with the places of flags and mode."""
    of_process: tuple[int, ...]
    """Calls that change what the process may take that their first argument names; 0 is the caller."""
    of_group: tuple[int, ...]
    """Calls that do so with what their first argument says of their second."""


_MACHINES = {
    "x86_64": _Machine(
        arch=0xC000003E,
        clone=56,
        ioctl=16,
        socket=41,
        socket_pair=53,
        denied=(
            101,  # ptrace
            103,  # syslog
            134,  # uselib
            136,  # ustat
            139,  # sysfs
            153,  # vhangup
            154,  # modify_ldt
            155,  # pivot_root
            156,  # _sysctl
            159,  # adjtimex
            161,  # chroot
            163,  # acct
            164,  # settimeofday
            165,  # mount
            166,  # umount2
            167,  # swapon
            168,  # swapoff
            169,  # reboot
            170,  # sethostname
            171,  # setdomainname
            172,  # iopl
            173,  # ioperm
            174,  # create_module
            175,  # init_module
            176,  # delete_module
            177,  # get_kernel_syms
            178,  # query_module
            179,  # quotactl
            180,  # nfsservctl
            212,  # lookup_dcookie
            227,  # clock_settime
            246,  # kexec_load
            248,  # add_key
            249,  # request_key
            250,  # keyctl
            272,  # unshare
            298,  # perf_event_open
            300,  # fanotify_init
            303,  # name_to_handle_at
            304,  # open_by_handle_at
            305,  # clock_adjtime
            308,  # setns
            310,  # process_vm_readv
            311,  # process_vm_writev
            312,  # kcmp
            313,  # finit_module
            320,  # kexec_file_load
            321,  # bpf
            323,  # userfaultfd
            425,  # io_uring_setup
            426,  # io_uring_enter
            427,  # io_uring_register
            428,  # open_tree
            429,  # move_mount
            430,  # fsopen
            431,  # fsconfig
            432,  # fsmount
            433,  # fspick
            438,  # pidfd_getfd
            442,  # mount_setattr
            443,  # quotactl_fd
            467,  # open_tree_attr
        ),
        modes=(90, 91, 268, 452),
        attributes=(188, 189, 190, 197, 198, 199, 463, 466),
        unknown=(319, 435, 437, 447),  # memfd_create, clone3, openat2, memfd_secret
        segment=29,
        shared=(29, 30, 31, 64, 65, 66, 67, 68, 69, 70, 71, 220, 240, 241),
        moded=((85, 1), (90, 1), (91, 1), (133, 1), (259, 2), (268, 2), (452, 2)),
        opening=((2, 1, 2), (257, 2, 3)),
        of_process=(142, 144, 203, 302, 314),
        of_group=(141, 251),
    ),
    "aarch64": _Machine(
        arch=0xC00000B7,
        clone=220,
        ioctl=29,
        socket=198,
        socket_pair=199,
        denied=(
            18,  # lookup_dcookie
            39,  # umount2
            40,  # mount
            41,  # pivot_root
            42,  # nfsservctl
            51,  # chroot
            58,  # vhangup
            60,  # quotactl
            89,  # acct
            97,  # unshare
            104,  # kexec_load
            105,  # init_module
            106,  # delete_module
            112,  # clock_settime
            116,  # syslog
            117,  # ptrace
            142,  # reboot
            161,  # sethostname
            162,  # setdomainname
            170,  # settimeofday
            171,  # adjtimex
            217,  # add_key
            218,  # request_key
            219,  # keyctl
            224,  # swapon
            225,  # swapoff
            241,  # perf_event_open
            262,  # fanotify_init
            264,  # name_to_handle_at
            265,  # open_by_handle_at
            266,  # clock_adjtime
            268,  # setns
            270,  # process_vm_readv
            271,  # process_vm_writev
            272,  # kcmp
            273,  # finit_module
            280,  # bpf
            282,  # userfaultfd
            294,  # kexec_file_load
            425,  # io_uring_setup
            426,  # io_uring_enter
            427,  # io_uring_register
            428,  # open_tree
            429,  # move_mount
            430,  # fsopen
            431,  # fsconfig
            432,  # fsmount
            433,  # fspick
            438,  # pidfd_getfd
            442,  # mount_setattr
            443,  # quotactl_fd
            467,  # open_tree_attr
        ),
        modes=(52, 53, 452),
        attributes=(5, 6, 7, 14, 15, 16, 463, 466),
        unknown=(279, 435, 437, 447),  # memfd_create, clone3, openat2, memfd_secret
        segment=194,
        shared=(180, 181, *range(186, 198)),
        moded=((33, 2), (52, 1), (53, 2), (452, 2)),
        opening=((56, 2, 3),),
        of_process=(118, 119, 122, 261, 274),
        of_group=(30, 140),
    ),
}


def build(tier: Tier, *, read_only: bool = False, machine: str = platform.machine()) -> bytes | None:
    """Return the filter for a tier as the kernel takes it; None if the machine's calls are not known here.

    `strict` has a network of its own, so it may open sockets of the kinds that belong to it. `guarded` shares the
    network and the sockets of the machine, so it may open none: a program can still talk to its own children. And since
    Landlock does not look at modes and attributes, `guarded` leaves them as they are, wherever the file is. Changing a
    mode is answered as if it were done, because too many programs give up otherwise. Nor does Landlock look at memory
    that processes share by a number, or at who sets whose limits: `guarded` shares nothing and sets its own.

    A socket of another program that lies on a read-only mount can still be connected to. So a `read_only` program has
    no sockets with a name; it has pairs, but none that could be connected to something else later.
    """
    known = _MACHINES.get(machine)
    if known is None:
        return None
    program = [
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_EQUAL, 1, 0, known.arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_NOT_LESS, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
    ]
    program += _answered(known.denied, errno.EPERM)
    program += _answered(known.unknown, errno.ENOSYS)
    program += _of_the_machine(known) if tier is Tier.GUARDED else _of_its_own(known)
    for number, mode in known.moded:
        program += _when(number, _refused_if(mode, _JUMP_SET, _OTHERS_RIGHTS))
    for number, flags, mode in known.opening:
        program += _when(number, _unless(flags, _MAKES_FILE) + _refused_if(mode, _JUMP_SET, _OTHERS_RIGHTS))
    program += _when(known.clone, _refused_if(0, _JUMP_SET, _NEW_NAMESPACE))
    program += _when(known.ioctl, _refused_if(1, _JUMP_EQUAL, _PUSH_INPUT, _CONSOLE))
    families = [family for family in FAMILIES if tier is Tier.STRICT and not (read_only and family == socket.AF_UNIX)]
    if read_only:
        program += _when(known.socket_pair, _refused_unless_type(1, *_LASTING_TYPES))
    permitted = [line for family in families for line in ((_JUMP_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW))]
    program += _when(known.socket, [_load(0), *permitted, (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT)])
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in program)


def _of_its_own(known: _Machine) -> list[_Line]:
    """Return lines for a program that has memory, queues and limits to itself."""
    too_large = (_RETURN, 0, 0, _ERRNO | errno.EINVAL)
    is_small = [_load(1, _HIGH), (_JUMP_EQUAL, 1, 0, 0), too_large]
    return _when(known.segment, [*is_small, _load(1), (_JUMP_NOT_LESS, 0, 1, MOST_SEGMENT_BYTES + 1), too_large])


def _of_the_machine(known: _Machine) -> list[_Line]:
    """Return lines for a program that is one among all others of its user."""
    program = _answered(known.modes, 0) + _answered(known.attributes, errno.EOPNOTSUPP)
    program += _answered(known.shared, errno.ENOSYS)
    for number in known.of_process:
        program += _when(number, _refused_unless_zero(0))
    for number in known.of_group:
        program += _when(number, _refused_unless_zero(1) + _refused_if(0, _JUMP_EQUAL, *_OF_A_USER))
    return program


def _answered(numbers: tuple[int, ...], error: int) -> list[_Line]:
    """Return lines that answer calls with an error, or with 0 as if they were done."""
    return [line for number in numbers for line in ((_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | error))]


def _when(number: int, lines: list[_Line]) -> list[_Line]:
    """Return lines that look at the arguments of one call, and allow what they do not end."""
    body = [*lines, (_RETURN, 0, 0, _ALLOW)]
    return [(_JUMP_EQUAL, 0, len(body), number), *body]


def _load(argument: int, half: int = _LOW) -> _Line:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * argument + half)


def _unless(argument: int, bits: int) -> list[_Line]:
    """Return lines that allow the call unless one of the bits is set in an argument."""
    return [_load(argument), (_JUMP_SET, 1, 0, bits), (_RETURN, 0, 0, _ALLOW)]


def _refused_if(argument: int, jump: int, *values: int) -> list[_Line]:
    """Return lines that refuse the call if the lower half of an argument is one of the values, or has its bits."""
    return [_load(argument), *(line for value in values for line in ((jump, 0, 1, value), _REFUSED))]


def _refused_unless_type(argument: int, *types: int) -> list[_Line]:
    """Return lines that refuse the call unless the type of socket in an argument is one of these."""
    allowed = [line for one in types for line in ((_JUMP_EQUAL, 0, 1, one), (_RETURN, 0, 0, _ALLOW))]
    return [_load(argument), (_AND, 0, 0, _TYPE_BITS), *allowed, _REFUSED]


def _refused_unless_zero(argument: int) -> list[_Line]:
    return [_load(argument), (_JUMP_EQUAL, 1, 0, 0), _REFUSED]
