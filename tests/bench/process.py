"""What the kernel knows of a process: its processor time, its memory, its open handles."""

import os
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_ms(pid: int) -> float:
    """Return the processor time of all threads so far; counted in nanoseconds, unlike that of /proc/PID/stat."""
    spent = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            spent += int((thread / "schedstat").read_text().split()[0])
        except FileNotFoundError:
            continue  # it ended just now
    return spent / 1e6


def rss_mb(pid: int) -> float:
    """Return the resident memory in MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES / 2**20


def handles(pid: int) -> int:
    """Return how many files, sockets and pipes are open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
