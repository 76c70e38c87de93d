"""The limit of file descriptors is raised as far as it may be, and never lowered."""

import os
import resource
from collections.abc import Iterator

import pytest

from palyra.sandbox.processes import descriptors


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_to_what_is_wanted_or_to_the_hard_one() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    assert descriptors.raise_limit(300) == 400
    assert descriptors.raise_limit(500) == descriptors.limit() == 500
    if hard != resource.RLIM_INFINITY:
        assert descriptors.raise_limit(hard + 1) == descriptors.limit() == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == hard


def test_open_descriptors_are_counted() -> None:
    before = descriptors.used()
    opened = os.open("/dev/null", os.O_RDONLY)
    assert descriptors.used() == before + 1
    os.close(opened)
    assert descriptors.used() == before
