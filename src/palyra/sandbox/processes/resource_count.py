"""Counts what a program and all that it started use. Runs in the supervisor, and imports as little.

Where a control group counts memory, the kernel does. Elsewhere memory is more than what is resident in processes, and
everything that can be found is added up: page tables and swap, files in memory, sockets and pipes, and what mappings
share after they are gone. What cannot be measured counts with its maximum size.
"""

import os

TYPE_CHECKING = False  # as `typing` has it, which takes long to import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

DESCRIPTOR_BYTES, INODE_BYTES, SOCKET_OPTION_BYTES = 8 << 10, 2 << 10, 128 << 10
"""What a pipe can hold when its user has many, the record of a file in memory, and filters and options of a socket."""
IN_MEMORY = ("/tmp", "/dev/shm")
MAX_MAPPINGS = 65530
"""For one process, the kernel's default."""

_PAGE = os.sysconf("SC_PAGESIZE")


class MachineBaseline:
    """The state of the whole machine when the program was started."""

    def __init__(self) -> None:
        self.tasks = tasks()
        self.shared = self.shared_now()
        self.peak = 0
        """The maximum that one process of the program ever had mapped."""
        self.network = _sockstat("/proc/net/sockstat")[2]

    @staticmethod
    def shared_now() -> int:
        """Return the memory that files and mappings share, in bytes."""
        with open("/proc/meminfo", "rb") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith(b"Shmem:")), 0)


def tasks() -> int:
    """Return how many processes and threads the machine has."""
    with open("/proc/loadavg", "rb") as file:
        return int(file.read().split()[3].partition(b"/")[2])


def resources_used(order: "dict[str, Any]", before: MachineBaseline) -> tuple[int, int, int]:
    """Return the number of processes below this one, of their threads, and the memory of all of them in bytes."""
    below: dict[int, list[tuple[int, int, int]]] = {}
    for pid, parent, threads, resident in processes_of_machine():
        below.setdefault(parent, []).append((pid, threads, resident))
    threads = memory = 0
    result: list[int] = []
    level = [os.getpid()]
    inner: list[int] = []
    while level:
        children = [child for pid in level for child in below.pop(pid, ())]
        threads += sum(child[1] for child in children)
        memory += sum(child[2] for child in children)
        # Bubblewrap itself stays outside of the namespaces that it makes.
        inner += [child[0] for child in children if result]
        result += [child[0] for child in children]
        level = [child[0] for child in children]
    namespaces = inner if order.get("apart") else []
    if order.get("group"):
        return len(result), threads, _netlink_apart(namespaces)
    sockets = _sockets_apart(namespaces, before)
    memory += (
        sockets
        + sum(_of_kernel(pid, before) for pid in result)
        + _descriptors(result, order, spare=order["memory"] - memory)
    )
    files = _files_apart(namespaces)
    grown = MachineBaseline.shared_now() - before.shared
    if memory + grown > order["memory"]:
        # What was unmapped but still exists belongs to no process: it can be as much as was ever mapped at once.
        files = max(files, min(grown, sum(_shared_mappings(pid) for pid in result) * before.peak))
    return len(result), threads, memory + files


def _of_kernel(pid: int, before: MachineBaseline) -> int:
    """Return the memory of a process that is not resident: in swap, and its page tables."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            sizes = {line[0]: int(line[1]) << 10 for line in map(bytes.split, file) if line[-1:] == [b"kB"]}
    except OSError:
        return 0
    before.peak = max(before.peak, sizes.get(b"VmPeak:", 0))
    return sizes.get(b"VmSwap:", 0) + sizes.get(b"VmPTE:", 0)


def _descriptors(pids: list[int], order: "dict[str, Any]", *, spare: int) -> int:
    """Return what open files can hold: pipes, and sockets where they are not counted by namespace."""
    counts = {pid: _open_files(pid, order) for pid in pids}
    held = sum(counts.values()) * DESCRIPTOR_BYTES
    socket = _socket_bytes()
    if order.get("apart") or sum(counts.values()) * socket + held < spare:
        return held
    return held + len({name for pid in pids for name in _sockets_of(pid, counts[pid])}) * socket


def _open_files(pid: int, order: "dict[str, Any]") -> int:
    try:
        # Linux 6.2 and newer report how many there are.
        return os.stat(f"/proc/{pid}/fd").st_size or len(os.listdir(f"/proc/{pid}/fd"))
    except FileNotFoundError:
        return 0
    except PermissionError:
        # It hides them, as programs with secrets do.
        return int(order["open_files"])


def _sockets_of(pid: int, count: int) -> "Iterator[str]":
    """Yield a name for each socket that a process has open; two processes may share one."""
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except FileNotFoundError:
                continue
            if target.startswith("socket:"):
                yield target
    except FileNotFoundError:
        return
    except PermissionError:
        yield from (f"{pid} {number}" for number in range(count))


def _sockets_apart(inner: list[int], before: MachineBaseline) -> int:
    """Return what the sockets of a network namespace can hold, including those that no process has open any more."""
    for pid in inner:
        try:
            used, tcp, pages = _sockstat(f"/proc/{pid}/net/sockstat")
        except OSError:
            continue
        # For TCP and UDP the kernel reports only how much the whole machine holds.
        return used * _socket_bytes() + (max(0, pages - before.network) * _PAGE if tcp else 0)
    return 0


def _netlink_apart(inner: list[int]) -> int:
    """Return what netlink sockets of a namespace can hold: no control group counts them."""
    for pid in inner:
        try:
            with open(f"/proc/{pid}/net/netlink", "rb") as file:
                # Those with the address 0 are the kernel's own.
                return sum(line.split()[2] != b"0" for line in file.readlines()[1:]) * _socket_bytes()
        except OSError:
            continue
    return 0


def _sockstat(path: str) -> tuple[int, bool, int]:
    """Return the number of sockets, whether some are of TCP or UDP, and the pages that those of the machine hold."""
    with open(path, "rb") as file:
        lines = {line[0]: dict(zip(line[1::2], line[2::2], strict=False)) for line in map(bytes.split, file)}
    tcp, udp = lines[b"TCP:"], lines[b"UDP:"]
    network = int(tcp[b"inuse"]) + int(tcp[b"orphan"]) + int(udp[b"inuse"]) > 0
    return int(lines[b"sockets:"][b"used"]), network, int(tcp[b"mem"]) + int(udp[b"mem"])


def _socket_bytes() -> int:
    with open("/proc/sys/net/core/wmem_default", "rb") as file:
        # The last message may be as large as all before it.
        return 2 * int(file.read()) + SOCKET_OPTION_BYTES


def _files_apart(inner: list[int]) -> int:
    """Return what the files in memory that belong to a mount namespace hold."""
    for pid in inner:
        try:
            stats = [os.statvfs(f"/proc/{pid}/root{location}") for location in IN_MEMORY if _is_apart(pid, location)]
        except OSError:
            continue
        return sum(
            (one.f_blocks - one.f_bfree) * one.f_frsize + (one.f_files - one.f_ffree) * INODE_BYTES for one in stats
        )
    return 0


def _is_apart(pid: int, location: str) -> bool:
    return os.stat(f"/proc/{pid}/root{location}").st_dev != os.stat(location).st_dev


def _shared_mappings(pid: int) -> int:
    """Count the mappings of a process that it shares without a file of its own."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return sum(b"/dev/zero" in line or b"/SYSV" in line for line in file)
    except FileNotFoundError:
        return 0
    except PermissionError:
        return MAX_MAPPINGS


def processes_of_machine() -> "Iterator[tuple[int, int, int, int]]":
    """Yield every process of the machine with its parent, the number of its threads and its resident memory."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The name of the program is in parentheses, and may contain anything.
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            yield int(name), int(fields[1]), int(fields[17]), int(fields[21]) * _PAGE
