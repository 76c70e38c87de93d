"""How many file descriptors the daemon may have, and how many the programs get that it starts."""

import os
import resource

INHERITED = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""The soft limit that this process was started with. Programs get it too, whatever the daemon needs for itself: some of
them fail with a higher one, since `select` supports 1,024 descriptors only."""


def raise_limit(requested: int) -> int:
    """Raise the soft limit of this process towards `wanted`, as far as the hard one allows; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < requested:
        soft = requested if hard == resource.RLIM_INFINITY else min(requested, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return requested if soft == resource.RLIM_INFINITY else soft


def limit() -> int:
    """Return how many descriptors this process may have; -1 if there is no limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def used() -> int:
    """Count the descriptors that this process has open. Blocks for a moment."""
    # The listing itself needs one.
    return len(os.listdir("/dev/fd")) - 1
