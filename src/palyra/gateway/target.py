"""Which daemon a home has, and where it answers."""

import fcntl
import os
from datetime import datetime

import msgspec
from msgspec import Struct

from palyra.gateway.remote import DaemonUnreachable, NotRunning
from palyra.home import Home, foreign


class Daemon(Struct, frozen=True, kw_only=True):
    """What a running daemon says of itself in its home folder."""

    pid: int
    address: str
    version: str
    started_at: datetime
    grpc: str = ""
    """Where its gRPC door is. Every daemon has one; a record without it is of an earlier version."""
    certificate: str | None = None
    """The file with the certificate that both doors show, if they speak TLS."""
    warning: str | None = None
    """What whoever starts it should know: a tape does not verify."""


class Target(Struct, frozen=True, kw_only=True):
    """Where to knock, with which token, and which certificate must be shown there."""

    address: str
    grpc: str
    token: str
    certificate: str | None = None

    @property
    def tls(self) -> bool:
        """Whether the doors speak TLS; both do, or neither."""
        return self.address.startswith("https:")


def is_held(home: Home) -> bool:
    """Tell whether a living daemon holds this home. The record that a killed one left behind proves nothing."""
    try:
        lock = os.open(home.lock, os.O_RDONLY)
    except PermissionError as error:
        raise foreign(home, home.lock) from error
    except OSError:
        return False
    try:
        # Shared, so that two of us who look in the same moment do not take one another for a daemon.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def find_daemon(home: Home) -> Daemon | None:
    """Return what the living daemon of this home says of itself; None if there is none, or it is only just starting."""
    if not is_held(home):
        return None
    try:
        daemon = msgspec.json.decode(_record(home), type=Daemon)
        # The holder may be so young that the record is still that of one which was killed.
        os.kill(daemon.pid, 0)
    except (OSError, msgspec.DecodeError):
        return None
    return daemon


def _record(home: Home) -> bytes:
    try:
        return home.daemon.read_bytes()
    except PermissionError as error:
        raise foreign(home, home.daemon) from error


def find_target(home: Home) -> Target:
    """Return where the daemon of this home answers."""
    daemon = find_daemon(home)
    if daemon is None:
        raise NotRunning
    try:
        token = home.token.read_text().strip()
    except OSError as error:
        raise DaemonUnreachable(f"The token {home.token} can not be read: {error.strerror}.") from error
    return Target(address=daemon.address, grpc=daemon.grpc, token=token, certificate=daemon.certificate)
