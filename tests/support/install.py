"""Installs what the tests need, as far as it may: packages as root on Debian, the weights of a small model as anybody.

What is still missing afterwards is named in one line. That is no failure: the tests that need it are skipped.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support import weights
from tests.support.needs import NEEDS, WEIGHTS, Need, how_to_install

POSTGRES_SETTINGS = Path("/etc/postgresql-common/createcluster.conf")


def main() -> None:
    """Install, and name what is still missing."""
    packages = [need.package for need in NEEDS if need.package and need.lack()]
    if packages and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(packages)
    if WEIGHTS.lack():
        _fetch_weights()
    still = [(need, why) for need in NEEDS if (need.package or need.command) and (why := need.lack())]
    if still:
        names = ", ".join(_with_reason(need, why) for need, why in still)
        how = how_to_install(need for need, _ in still)
        print(f"Missing: {names}. Tests that need them are skipped. Install: {how}", flush=True)


def _with_reason(need: Need, why: str) -> str:
    # Installing does not help where the kernel forbids it, say.
    return need.name if why.endswith("not installed") else f"{need.name} ({why.removesuffix('.')})"


def _install(packages: list[str]) -> None:
    print(f"Installing {' '.join(packages)}", flush=True)
    if "postgresql" in packages and not POSTGRES_SETTINGS.exists():
        # The tests start servers of their own; the one that the package would set up is not needed.
        POSTGRES_SETTINGS.parent.mkdir(exist_ok=True)
        POSTGRES_SETTINGS.write_text("create_main_cluster = false\n")
    install = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    # The package lists may be missing or old, so a failure gets one more try with fresh ones.
    done = _run(install)
    if done.returncode != 0 and (done := _run(["apt-get", "update"])).returncode == 0:
        done = _run(install)
    if done.returncode != 0:
        print(f"apt-get failed:\n{done.stdout}", file=sys.stderr, flush=True)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def _fetch_weights() -> None:
    print(f"Fetching the weights of a small model, {weights.SIZE // 1_000_000} MB", flush=True)
    try:
        weights.fetch()
    except (OSError, subprocess.CalledProcessError, weights.WrongWeights) as error:
        print(f"The weights could not be fetched: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
