"""A daemon for the duration of a command: the running one, or one that is started for it."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from palyra.cli.daemon import process
from palyra.cli.options import Invocation
from palyra.cli.terminal.output import say
from palyra.gateway.client.client import Client
from palyra.gateway.client.errors import CONNECT_TIMEOUT_SECONDS
from palyra.gateway.client.target import DaemonTarget, find_daemon, find_target, is_held
from palyra.home import Home


class DaemonOnDemand:
    """A daemon that a command may use. It belongs to the command if it had to be started for it."""

    def __init__(self, home: Home, *, keep: bool) -> None:
        self._home = home
        self._keep = keep
        self._pid: int | None = None
        # A person can go on by hand when the daemon was stopped; a program must get its answer.
        self.client = Client(lambda: find_target(home)) if keep else Client(self._find, timeout=CONNECT_TIMEOUT_SECONDS)

    def take(self) -> None:
        """Make sure that a daemon runs."""
        started = process.start(self._home)
        if started.ours:
            self._pid = started.daemon.pid
            say(f"palyra: started the daemon at {started.daemon.address} (process {started.daemon.pid}).")

    def give_back(self) -> None:
        """Undo `take`: a daemon of our own keeps running if it is to be kept, and is stopped if not."""
        daemon = find_daemon(self._home)
        if daemon is None or daemon.pid != self._pid:
            return
        if self._keep or process.is_kept_running(self._home, daemon):
            say("palyra: the daemon keeps running in the background. Stop it with `palyra down`.")
        else:
            process.stop(self._home)

    def _find(self) -> DaemonTarget:
        # The daemon may have been started by another command that has stopped it again by now.
        if not is_held(self._home):
            self.take()
        return find_target(self._home)


@contextmanager
def daemon_on_demand(invocation: Invocation, *, keep: bool) -> Iterator[Client]:
    """Return a client of the daemon, which is started if none runs, and afterwards kept (`keep`) or stopped."""
    # Invalid settings are reported here, in full, rather than by a daemon that does not start.
    _ = invocation.settings
    loan = DaemonOnDemand(invocation.home, keep=keep)
    # If a supervisor ends it, the command must still stop what it started.
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        loan.take()
        try:
            yield loan.client
        finally:
            loan.give_back()
    finally:
        signal.signal(signal.SIGTERM, before)


def has_terminal() -> bool:
    """Return whether a terminal is attached."""
    return sys.stdin is not None and sys.stdin.isatty()


def _leave(_: int, __: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)
