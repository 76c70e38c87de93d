"""A process that may open nothing more."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from palyra import exhaustion


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def waits(caplog: pytest.LogCaptureFixture) -> bool:
    """Tell whether something was seen to wait for what the system does not have."""
    return any(record.name == exhaustion.__name__ and "waits" in record.getMessage() for record in caplog.records)
