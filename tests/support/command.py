"""The command line as a process of its own, on the home of a daemon or on any other."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.daemon import Daemon

SECONDS = 100.0
"""Long enough for a trial of a real model on a busy machine."""


def palyra(daemon: Daemon, *args: str, code: int = 0) -> str:
    """Run a command on the home and the database of a daemon, which ends with that code, and return what it says."""
    where = {"PALYRA_JOURNAL_DATABASE_URL": daemon.database_url} if daemon.database_url is not None else {}
    done = command(daemon.home.path, *args, **where)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def command(home: Path, *args: str, stdin: str | bytes = b"", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever that is; `variables` are added to what it finds in its environment."""
    done = subprocess.run(
        [sys.executable, "-m", "palyra", *args],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        timeout=SECONDS,
        check=False,
        env=environ(home) | variables,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def environ(home: Path) -> dict[str, str]:
    """Return what a command on that home finds in its environment: nothing of ours but the home."""
    # Without .pyc files every start would compile all modules anew.
    ours = ("PALYRA_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"PALYRA_HOME": str(home), "PYTHONUTF8": "1"}
