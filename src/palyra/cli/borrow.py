"""A daemon for as long as a command needs it: the one that runs, or one that is started for it."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from palyra.cli import process
from palyra.cli.options import Invocation
from palyra.cli.output import say
from palyra.gateway.client import Client
from palyra.gateway.remote import PATIENCE_SECONDS
from palyra.gateway.target import Target, find_daemon, find_target, is_held
from palyra.home import Home


class Loan:
    """A daemon that a command may use. It is the command's own if it had to be started for it."""

    def __init__(self, home: Home, *, keep: bool) -> None:
        self._home = home
        self._keep = keep
        self._pid: int | None = None
        # A conversation goes on by hand when somebody stops the daemon; a program must get its answer.
        self.client = Client(lambda: find_target(home)) if keep else Client(self._find, patience=PATIENCE_SECONDS)

    def take(self) -> None:
        """Have a daemon run."""
        started = process.start(self._home)
        if started.ours:
            self._pid = started.daemon.pid
            say(f"palyra: started the daemon at {started.daemon.address} (process {started.daemon.pid}).")

    def give_back(self) -> None:
        """Leave things as they were: a daemon of our own goes on if it is to be kept, and is ended if not."""
        daemon = find_daemon(self._home)
        if daemon is None or daemon.pid != self._pid:
            return
        if self._keep or process.is_kept(self._home, daemon):
            say("palyra: the daemon goes on in the background; `palyra down` ends it.")
        else:
            process.stop(self._home)

    def _find(self) -> Target:
        # Whoever started the daemon may be another command that has ended it again by now.
        if not is_held(self._home):
            self.take()
        return find_target(self._home)


@contextmanager
def borrowed_daemon(invocation: Invocation, *, keep: bool) -> Iterator[Client]:
    """Give the way to a daemon, which is started if none runs, and afterwards goes on (`keep`) or is ended."""
    # Wrong settings are told here, in full, rather than by a daemon that does not start.
    _ = invocation.settings
    loan = Loan(invocation.home, keep=keep)
    # Ended by a supervisor, the command must still end what it started.
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        loan.take()
        try:
            yield loan.client
        finally:
            loan.give_back()
    finally:
        signal.signal(signal.SIGTERM, before)


def has_person() -> bool:
    """Tell whether somebody sits at a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def _leave(_: int, __: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)
