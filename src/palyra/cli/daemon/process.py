"""The daemon as a process on this machine: start it, stop it, find it."""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from palyra.cli.terminal.output import ProgressIndicator
from palyra.core.errors import Unavailable
from palyra.gateway.client.target import DaemonRecord, find_daemon, is_held
from palyra.home import Home, foreign_file_message

START_SECONDS = 30.0
STOP_SECONDS = 15.0
POLL_SECONDS = 0.05
_OLD_KEEP_FILE = "daemon.kept"
"""What `Home.keep_file` was called: a daemon that an earlier version started may still run."""


class DaemonStartFailed(Unavailable):
    """The daemon failed to start. See `palyra logs`."""

    # The code that the daemon itself gave, if it came so far.
    code: str  # type: ignore[misc]

    def __init__(self, detail: str, *, code: str = "daemon_start_failed") -> None:
        super().__init__(detail)
        self.code = code


class DaemonStopFailed(Unavailable):
    """The daemon did not stop."""


class HomeNotWritable(Unavailable):
    """The home folder cannot be created or written."""


@dataclass(frozen=True, slots=True)
class Started:
    """A daemon that answers, and whether this call started it."""

    daemon: DaemonRecord
    ours: bool


def start(home: Home) -> Started:
    """Return the daemon of this home; start one in a session of its own if none runs."""
    ours = False
    ends = time.monotonic() + START_SECONDS
    with ProgressIndicator("starting the daemon") as progress:
        while True:
            daemon = find_daemon(home)
            if daemon is not None:
                return Started(daemon, ours=ours)
            if not is_held(home):
                ours = _is_served(_spawn(home, progress))
            elif time.monotonic() >= ends:
                raise DaemonStartFailed("Another daemon uses this home, but its address is unknown. See `palyra logs`.")
            progress.tick()
            time.sleep(0 if ours else POLL_SECONDS)


def check(home: Home) -> None:
    """Raise `DaemonStartFailed` if a daemon could not be started in this home, also while one runs there."""
    with ProgressIndicator("checking what the daemon needs") as progress:
        _is_served(_spawn(home, progress, "--check"))


def keep_running(home: Home, daemon: DaemonRecord) -> None:
    """Keep a daemon running that another command may have started for itself alone."""
    try:
        home.keep_file.write_text(str(daemon.pid))
        (home.path / _OLD_KEEP_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise DaemonStartFailed(
            f"The daemon (process {daemon.pid}) is running, but may stop with the command that started it:"
            f" {home.keep_file} cannot be written ({error.strerror}). Try again, or run `palyra restart`."
        ) from error


def is_kept_running(home: Home, daemon: DaemonRecord) -> bool:
    """Return whether the daemon is to keep running."""
    for path in (home.keep_file, home.path / _OLD_KEEP_FILE):
        with suppress(OSError):
            return path.read_text() == str(daemon.pid)
    return False


def stop(home: Home) -> DaemonRecord | None:
    """Stop the daemon of this home and wait until it has exited; None if there was none."""
    daemon = find_daemon(home)
    if daemon is None:
        if is_held(home):
            raise DaemonStopFailed("The daemon is starting or stopping. Try again in a moment.")
        return None
    with suppress(ProcessLookupError):
        os.kill(daemon.pid, signal.SIGTERM)
    ends = time.monotonic() + STOP_SECONDS
    with ProgressIndicator("stopping the daemon") as progress:
        while is_held(home):
            if time.monotonic() >= ends:
                raise DaemonStopFailed(
                    f"The daemon (process {daemon.pid}) did not stop within {STOP_SECONDS:.0f} s. Force it with `kill"
                    f" -9 {daemon.pid}`; recorded entries are not lost."
                )
            progress.tick()
            time.sleep(POLL_SECONDS)
    return daemon


def _spawn(home: Home, progress: ProgressIndicator, *more: str) -> str:
    """Start the daemon and return the line that it prints when it serves or fails."""
    try:
        home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = os.open(home.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        if isinstance(error, PermissionError) and home.path.exists():
            raise foreign_file_message(home, home.log if home.log.exists() else home.path) from error
        raise HomeNotWritable(
            f"{home.path} cannot be used as home folder: {error.strerror}. Choose another with --home."
        ) from error
    reader, writer = os.pipe()
    # The path names the home in full; a profile in the environment would be appended to it again.
    environ = {name: value for name, value in os.environ.items() if name != "PALYRA_PROFILE"}
    try:
        child = subprocess.Popen(
            # -P: a file in the current folder must not replace a module.
            [
                sys.executable,
                "-P",
                "-m",
                "palyra.cli.daemon.serve",
                "--home",
                str(home.path),
                "--ready-fd",
                str(writer),
                *more,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home.path,
            env=environ,
            pass_fds=(writer,),
            start_new_session=True,
        )
    finally:
        os.close(writer)
        os.close(log)
    try:
        return _read_answer(reader, child, progress)
    finally:
        os.close(reader)


def _read_answer(reader: int, child: subprocess.Popen[bytes], progress: ProgressIndicator) -> str:
    text = b""
    ends = time.monotonic() + START_SECONDS
    while not text.endswith(b"\n"):
        if time.monotonic() >= ends:
            child.terminate()
            raise DaemonStartFailed(f"The daemon did not answer within {START_SECONDS:.0f} s. See `palyra logs`.")
        progress.tick()
        if select.select([reader], [], [], POLL_SECONDS)[0]:
            piece = os.read(reader, 4096)
            if not piece:
                code = child.wait(timeout=STOP_SECONDS)
                raise DaemonStartFailed(f"The daemon failed to start (exit code {code}). See `palyra logs`.")
            text += piece
    return text.decode(errors="replace").strip()


def _is_served(answer: str) -> bool:
    """Return whether the started daemon serves; False if another was faster, which will be used instead."""
    verdict, _, rest = answer.partition(" ")
    code, _, detail = rest.partition(" ")
    if verdict == "error" and code != "daemon_running":
        raise DaemonStartFailed(detail, code=code)
    return verdict == "ready"
