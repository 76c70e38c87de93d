"""The command line as a process of its own, on the home of a daemon or on any other."""

import atexit
import os
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

from palyra.sandbox.base import Tier
from palyra.sandbox.processes.tiers import tier_problem
from tests.support.daemon import Daemon
from tests.support.fork_server import ForkServer

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
    return run(*args, environ=environ(home) | variables, stdin=stdin)


def run(*args: str, environ: Mapping[str, str], stdin: str | bytes = b"") -> subprocess.CompletedProcess[str]:
    """Run a command to its end in exactly that environment, where text is UTF-8."""
    written = stdin.encode() if isinstance(stdin, str) else stdin
    (theirs_in, ours_in), (ours_out, theirs_out), (ours_err, theirs_err) = os.pipe(), os.pipe(), os.pipe()
    try:
        process = _forks().start_command(args, environ=environ, stdin=theirs_in, stdout=theirs_out, stderr=theirs_err)
    finally:
        for descriptor in (theirs_in, theirs_out, theirs_err):
            os.close(descriptor)
    with ThreadPoolExecutor(3) as pool:
        pool.submit(_write, ours_in, written)
        output, errors = pool.submit(_read, ours_out), pool.submit(_read, ours_err)
        try:
            code = process.wait(SECONDS)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(args, code, output.result(), errors.result())


def _write(descriptor: int, data: bytes) -> None:
    # A command may end without having read everything.
    with suppress(BrokenPipeError), open(descriptor, "wb") as pipe:
        pipe.write(data)


def _read(descriptor: int) -> str:
    with open(descriptor, "rb") as pipe:
        return pipe.read().decode()


@cache
def _forks() -> ForkServer:
    server = ForkServer("palyra")
    atexit.register(server.close)
    return server


def beyond_sandbox(stderr: str) -> str:
    """Return what a command that starts a daemon warned of beyond a missing sandbox, of which it warns first."""
    if tier_problem(Tier.STRICT) is None:
        return stderr
    first, _, rest = stderr.partition("\n")
    assert first.startswith("palyra: Agents cannot run programs, because the strict sandbox is not available: "), stderr
    return rest


def environ(home: Path) -> dict[str, str]:
    """Return what a command on that home finds in its environment: nothing of ours but the home."""
    # Without .pyc files every start would compile all modules anew.
    ours = ("PALYRA_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"PALYRA_HOME": str(home), "PYTHONUTF8": "1"}
