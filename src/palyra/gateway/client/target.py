"""Finds the daemon of a home and its addresses."""

import fcntl
import os
import re
from datetime import datetime

import msgspec
from msgspec import Struct

from palyra.gateway.client.errors import DaemonNotRunning, DaemonWaiting, TokenUnusable
from palyra.home import Home, foreign_file_message

_TOKEN = re.compile(rb"[\x21-\x7e]{1,1024}")


class DaemonRecord(Struct, frozen=True, kw_only=True):
    """What a running daemon records about itself in its home folder."""

    pid: int
    address: str
    version: str
    started_at: datetime
    grpc: str = ""
    """The address of its gRPC API. Every daemon has one; a record without it is from an earlier version."""
    certificate: str | None = None
    """The file with the certificate that both APIs use, if they use TLS."""
    warning: str | None = None
    """A warning for the person who starts it: a tape does not verify."""
    waiting: str = ""
    """What it waits for before it serves; empty once it serves."""


class DaemonTarget(Struct, frozen=True, kw_only=True):
    """The addresses to call, the token to send, and the certificate to expect."""

    address: str
    grpc: str
    token: str
    token_file: str = ""
    """The file that the token was read from."""
    certificate: str | None = None

    @property
    def tls(self) -> bool:
        """Whether the APIs use TLS; both do, or neither."""
        return self.address.startswith("https:")


def is_held(home: Home) -> bool:
    """Return whether a running daemon holds this home. The record left by a killed one does not count."""
    try:
        lock = os.open(home.lock, os.O_RDONLY)
    except PermissionError as error:
        raise foreign_file_message(home, home.lock) from error
    except OSError:
        return False
    try:
        # Shared, so that two clients that check at the same moment do not take each other for a daemon.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def find_daemon(home: Home) -> DaemonRecord | None:
    """Return the record of this home's running daemon; None if there is none, or it is only just starting."""
    if not is_held(home):
        return None
    try:
        daemon = msgspec.json.decode(_record(home), type=DaemonRecord)
        # If the holder has just started, the record may still be that of a killed daemon.
        os.kill(daemon.pid, 0)
    except (OSError, msgspec.DecodeError):
        return None
    return daemon


def _record(home: Home) -> bytes:
    try:
        return home.daemon.read_bytes()
    except PermissionError as error:
        raise foreign_file_message(home, home.daemon) from error


def find_target(home: Home) -> DaemonTarget:
    """Return the target for this home's daemon."""
    daemon = find_daemon(home)
    if daemon is None:
        raise DaemonNotRunning
    if daemon.waiting:
        raise DaemonWaiting(f"The daemon waits before it can start. {daemon.waiting}")
    return DaemonTarget(
        address=daemon.address,
        grpc=daemon.grpc,
        token=read_token(home),
        token_file=str(home.token),
        certificate=daemon.certificate,
    )


def read_token(home: Home) -> str:
    """Return the token of this home; raise `TokenUnusable` if there is none, or it could not be sent."""
    try:
        token = home.token.read_bytes().strip()
    except OSError as error:
        raise TokenUnusable(
            f"The token {home.token} cannot be read: {error.strerror}. If it is missing, `palyra "
            "restart` creates a new one; otherwise make it readable."
        ) from error
    if not _TOKEN.fullmatch(token):
        raise TokenUnusable(
            f"{home.token} does not contain a token, which is one word of ASCII. `palyra restart` creates a new one."
        )
    return token.decode()
