"""What tests and attacks need of the machine beyond Python, and what to do where it is missing.

A test says `@needs(BUBBLEWRAP)`, a fixture `require(BUBBLEWRAP)`. Where the machine lacks it, the test is skipped, with
the reason "no NAME: why"; `summary` counts those. In CI whatever can be installed must be there: the test fails.
"""

import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from ctypes.util import find_library
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from palyra.sandbox.base import Tier
from palyra.sandbox.processes.tiers import find, set_up_failed, tier_problem
from palyra.sandbox.search.ripgrep import PROGRAM
from tests.support import weights
from tests.support.postgres import PostgresMissing, find_binaries

_REASON = re.compile(r"no ([^:]+): ")


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a machine may lack."""

    name: str
    lack: Callable[[], str | None]
    """Return why it cannot be used, None if it can. Looks anew each time."""
    package: str = ""
    """The Debian package that brings it."""
    command: str = ""
    """What fetches it, if it is not in a package."""


def needs(*wanted: Need) -> pytest.MarkDecorator:
    """Mark a test that runs only where the machine has all of these."""
    return pytest.mark.needs(*wanted)


def skip(name: str, why: object) -> NoReturn:
    """Skip the test for something that only an attempt shows to be missing."""
    pytest.skip(f"no {name}: {why}")


def require(*wanted: Need) -> None:
    """Skip the test unless the machine has all of these."""
    for need in wanted:
        if reason := missing(need):
            if os.environ.get("CI") and (need.package or need.command):
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason)


@cache
def missing(need: Need) -> str | None:
    """Return the reason for a skip if the machine lacks it. Blocks for a moment, once."""
    why = need.lack()
    return None if why is None else f"no {need.name}: {why}"


def summary(reasons: Iterable[str], *, what: str) -> str:
    """Return in one line what was missing, how often a `what` was skipped for each, and how to install it."""
    counts = Counter(found[1] if (found := _REASON.match(reason)) else "" for reason in reasons)
    others = counts.pop("", 0)
    parts = [f"no {name} ({count})" for name, count in counts.most_common()]
    if others:
        parts.append(f"other reasons ({others})")
    total = counts.total() + others
    line = f"Skipped {total} {what}{'' if total == 1 else 's'}: {', '.join(parts)}."
    how = how_to_install([need for need in NEEDS if need.name in counts])
    return f"{line} Install: {how}" if how else line


def how_to_install(wanted: Iterable[Need]) -> str:
    """Return the commands that bring what can be installed, in one line."""
    wanted = list(wanted)
    packages = " ".join(need.package for need in wanted if need.package)
    commands = [f"apt-get install {packages}" if packages else "", *(need.command for need in wanted)]
    return "; ".join(command for command in commands if command)


def _lack_of_program(program: str) -> str | None:
    return None if shutil.which(program) else "it is not installed"


def _program(name: str, *, package: str = "") -> Need:
    return Need(name, lambda: _lack_of_program(name), package)


def _lack_of_postgres() -> str | None:
    try:
        find_binaries()
        if os.geteuid() == 0:
            pwd.getpwnam("postgres")  # the server refuses to run as root
    except PostgresMissing:
        return "it is not installed"
    except KeyError:
        return "there is no user postgres for it to run as"
    return None


def _lack_of_bubblewrap() -> str | None:
    if lacking := tier_problem(Tier.STRICT):
        return lacking.reason
    # That it is installed does not say that the kernel lets it make namespaces.
    command = [find("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/"]
    command += ["--proc", "/proc", "--dev", "/dev", "/bin/true"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    said = " ".join(done.stderr.split()).removeprefix("bwrap: ")
    return None if done.returncode == 0 else set_up_failed(Tier.STRICT, said).reason


def _lack_of_landlock() -> str | None:
    lacking = tier_problem(Tier.GUARDED)
    return None if lacking is None else lacking.reason


def _lack_of_weights() -> str | None:
    return None if weights.found() else f"they are not at {weights.place()}"


def _lack_of_repository() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--git-dir"]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return "git is not installed"
    return None if done.returncode == 0 else "these files are not in one"


def _lack_of_ipv6() -> str | None:
    # That Python was built with it does not say that the machine has it.
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return None
    except OSError as error:
        return f"nothing can listen on ::1: {error.strerror}"


def _lack_of_openmp() -> str | None:
    # What runs local models is linked with it, and does not bring it.
    return None if find_library("gomp") else "libgomp is not installed"


def _lack_of_ripgrep() -> str | None:
    return None if find(PROGRAM) else "it is not installed"


BUBBLEWRAP = Need("bubblewrap", _lack_of_bubblewrap, "bubblewrap")
LINUX = Need("Linux", lambda: None if sys.platform == "linux" else f"this is {sys.platform}")
ROOT = Need("root", lambda: None if os.geteuid() == 0 else "this is an ordinary user")
ORDINARY_USER = Need("ordinary user", lambda: "root may do everything" if os.geteuid() == 0 else None)
LANDLOCK = Need("Landlock", _lack_of_landlock)
RIPGREP = Need("ripgrep", _lack_of_ripgrep, "ripgrep")
POSTGRES = Need("PostgreSQL", _lack_of_postgres, "postgresql")
OPENSSL = _program("openssl", package="openssl")
GIT = _program("git", package="git")
CURL = _program("curl", package="curl")
BASH = _program("bash")
SYSTEMD_ANALYZE = _program("systemd-analyze")
MOUNT = _program("mount")
PERL = _program("perl")
IPV6 = Need("IPv6", _lack_of_ipv6)
REPOSITORY = Need("Git repository", _lack_of_repository)
OPENMP = Need("OpenMP", _lack_of_openmp, "libgomp1")
WEIGHTS = Need("model weights", _lack_of_weights, command=weights.COMMAND)
NEEDS = (BUBBLEWRAP, RIPGREP, POSTGRES, OPENSSL, GIT, CURL, OPENMP, WEIGHTS, LANDLOCK)

TIERS: dict[Tier, Need] = {Tier.STRICT: BUBBLEWRAP, Tier.GUARDED: LANDLOCK}
"""What each tier that confines needs."""
