"""Which daemon a home has, and where it answers."""

import fcntl
import os
import re
from datetime import datetime

import msgspec
from msgspec import Struct

from palyra.gateway.remote import DaemonWaiting, NotRunning, TokenUnusable
from palyra.home import Home, foreign

_TOKEN = re.compile(rb"[\x21-\x7e]{1,1024}")


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
    waiting: str = ""
    """What it waits for before it serves; empty once it does."""


class Target(Struct, frozen=True, kw_only=True):
    """Where to knock, with which token, and which certificate must be shown there."""

    address: str
    grpc: str
    token: str
    token_file: str = ""
    """Where the token was read."""
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
    if daemon.waiting:
        raise DaemonWaiting(f"The daemon waits before it can serve. {daemon.waiting}")
    return Target(
        address=daemon.address,
        grpc=daemon.grpc,
        token=read_token(home),
        token_file=str(home.token),
        certificate=daemon.certificate,
    )


def read_token(home: Home) -> str:
    """Return the token of this home; raise `TokenUnusable` if there is none, or it could not even be sent."""
    try:
        token = home.token.read_bytes().strip()
    except OSError as error:
        raise TokenUnusable(
            f"The token {home.token} cannot be read: {error.strerror}. `palyra restart` makes a new one if it"
            " is missing; otherwise make it readable."
        ) from error
    if not _TOKEN.fullmatch(token):
        raise TokenUnusable(
            f"{home.token} does not hold a token, which is one word of ASCII. `palyra restart` makes a new one."
        )
    return token.decode()
