"""Which tiers this machine supports, and what the others lack."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache

from palyra.sandbox.base import Tier
from palyra.sandbox.processes import seccomp

SEARCHED = "/usr/local/bin:/usr/bin:/bin"
"""Where the programs that make a sandbox are searched for: folders that only root can write."""
NEEDED_LANDLOCK = 6
"""The version that also keeps a program from signalling others, including the daemon: Linux 6.12."""

NO_BIND_FD = (
    "This bubblewrap cannot mount it by descriptor (--bind-fd), so it could be replaced by another. "
    "Install bubblewrap 0.10, or a security update from August 2024 or later."
)

_LANDLOCK_CREATE, _ASK_VERSION = 444, 1


@dataclass(frozen=True, slots=True)
class TierProblem:
    """Why a tier does not work here, and what to do about it."""

    reason: str
    remedy: str


def find(program: str) -> str | None:
    """Return the path of a program that makes a sandbox."""
    return shutil.which(program, path=SEARCHED)


@cache
def binds_by_descriptor(bwrap: str) -> bool:
    """Tell whether this bubblewrap can mount a folder that was opened before. Blocks."""
    try:
        text = subprocess.run([bwrap, "--help"], capture_output=True, stdin=subprocess.DEVNULL, env={}, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"--ro-bind-fd" in text.stdout


def tier_problem(tier: Tier) -> TierProblem | None:
    """Return what the machine lacks for a tier, as far as can be seen without trying it. Blocks for a moment."""
    if not sys.platform.startswith("linux"):
        return TierProblem(
            "it needs Linux", "Run Palyra on Linux, or set sandbox.tier to off after you have read what that means."
        )
    match tier:
        case Tier.STRICT:
            return _strict_problem()
        case Tier.GUARDED:
            return _guarded_problem()
        case Tier.OFF:
            return None


def set_up_failed(tier: Tier, text: str) -> TierProblem:
    """Return the problem behind a sandbox that could not be set up, by its error output."""
    if tier is Tier.STRICT and "mount proc" in text:
        return TierProblem(
            f"a part of /proc is covered here, so bubblewrap cannot give a program its own ({text})",
            "Uncover it: a systemd unit must not set ProtectKernelTunables, ProtectKernelLogs or ProcSubset;"
            " a container needs `--security-opt systempaths=unconfined` or the like.",
        )
    if tier is Tier.STRICT and any(word in text for word in ("namespace", "uid map", "loopback", "not permitted")):
        return TierProblem(
            f"bubblewrap may not create namespaces ({text})",
            "Allow them: `sysctl kernel.unprivileged_userns_clone=1` (Debian),"
            " `sysctl kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu) or"
            " `sysctl user.max_user_namespaces=10000` (where it is 0); in a container they need"
            " `--security-opt seccomp=unconfined` or the like.",
        )
    return TierProblem(f"it could not be set up ({text})", "See `palyra sandbox check`.")


def _strict_problem() -> TierProblem | None:
    for program, package in (("bwrap", "bubblewrap"), ("prlimit", "util-linux")):
        if find(program) is None:
            return TierProblem(
                f"{program} is not installed", f"Install it: `apt install {package}`, `dnf install {package}`."
            )
    return None


def _guarded_problem() -> TierProblem | None:
    version = landlock_version()
    if version < NEEDED_LANDLOCK:
        had = f"has version {version}" if version else "has none, or it is disabled at boot"
        return TierProblem(
            f"it requires Landlock version {NEEDED_LANDLOCK}, and this kernel {had}",
            "Use Linux 6.12 or newer with `landlock` in its `lsm=` list.",
        )
    if seccomp.build(Tier.GUARDED) is None:
        return TierProblem(f"it does not support {os.uname().machine}", "Use the strict tier.")
    return None


def landlock_version() -> int:
    """Return the version of Landlock that the kernel has, 0 for none."""
    # Imported here: only this function needs it, and the daemon would hold it from its start on.
    import ctypes

    libc = ctypes.CDLL(None)
    version = int(
        libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    )
    return max(version, 0)
