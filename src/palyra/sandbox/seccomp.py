"""The filter on system calls: what no ordinary program needs and an attack on the kernel or other processes does.

It is a list of what is denied, so that programs nobody has thought of still run; the namespaces and Landlock decide
what can be reached. A call by another calling convention than the machine's own (32 bit, x32) ends the program, since
its numbers mean other things. `clone3` is answered as if the kernel were too old: its flags lie where no filter can
look, and every library then falls back to `clone`, whose flags are looked at.
"""

import errno
import platform
import socket
import struct
from dataclasses import dataclass

from palyra.sandbox.base import Tier

_LOAD, _JUMP_EQUAL, _JUMP_NOT_LESS, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000
_NEW_NAMESPACE = 0x7E020000
"""Every CLONE_NEW… flag that `clone` takes."""
_PUSH_INPUT, _CONSOLE = 0x5412, 0x541C
"""TIOCSTI and TIOCLINUX, which type into a terminal on somebody's behalf."""

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16)
"""Kinds of socket that a network namespace confines; 16 is netlink. Others (vsock) would reach past it."""


@dataclass(frozen=True, slots=True)
class _Machine:
    arch: int
    clone: int
    clone3: int
    ioctl: int
    socket: int
    denied: tuple[int, ...]
    modes: tuple[int, ...]
    """Calls that change the mode of a file."""
    attributes: tuple[int, ...]
    """Calls that change the extended attributes of a file, access lists among them."""


_MACHINES = {
    "x86_64": _Machine(
        arch=0xC000003E,
        clone=56,
        clone3=435,
        ioctl=16,
        socket=41,
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
    ),
    "aarch64": _Machine(
        arch=0xC00000B7,
        clone=220,
        clone3=435,
        ioctl=29,
        socket=198,
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
    ),
}


def build(tier: Tier, *, machine: str = platform.machine()) -> bytes | None:
    """Return the filter for a tier as the kernel takes it; None if the machine's calls are not known here.

    `strict` has a network of its own, so it may open sockets of the kinds that belong to it. `guarded` shares the
    network and the sockets of the machine, so it may open none: a program can still talk to its own children. And since
    Landlock does not look at modes and attributes, `guarded` leaves them as they are, wherever the file is. Changing a
    mode is answered as if it were done, because too many programs give up otherwise.
    """
    known = _MACHINES.get(machine)
    if known is None:
        return None
    refused = _ERRNO | errno.EPERM
    program = [
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_EQUAL, 1, 0, known.arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_NOT_LESS, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
    ]
    for number in known.denied:
        program += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, refused)]
    if tier is Tier.GUARDED:
        for number in known.modes:
            program += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO)]
        for number in known.attributes:
            program += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EOPNOTSUPP)]
    program += [(_JUMP_EQUAL, 0, 1, known.clone3), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    program += _when(known.clone, 0, [(_JUMP_SET, 0, 1, _NEW_NAMESPACE), (_RETURN, 0, 0, refused)])
    pushing = [
        line for code in (_PUSH_INPUT, _CONSOLE) for line in ((_JUMP_EQUAL, 0, 1, code), (_RETURN, 0, 0, refused))
    ]
    program += _when(known.ioctl, 1, pushing)
    families = FAMILIES if tier is Tier.STRICT else ()
    permitted = [line for family in families for line in ((_JUMP_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW))]
    program += _when(known.socket, 0, [*permitted, (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT)])
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in program)


def _when(number: int, argument: int, lines: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Return lines that look at the lower half of one argument of a call, and allow what they do not end."""
    body = [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), *lines, (_RETURN, 0, 0, _ALLOW)]
    return [(_JUMP_EQUAL, 0, len(body), number), *body]
