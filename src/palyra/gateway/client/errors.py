"""Errors of the client: the daemon is unreachable, refuses a request, or sends an invalid response."""

import time
from collections.abc import Callable
from typing import TypeVar

from palyra.core.errors import Denied, Internal, JournalClosed, PalyraError, Unavailable

CONNECT_TIMEOUT_SECONDS = 30.0
"""How long to wait for a daemon that went away: a restart takes a few seconds."""
PAUSE_SECONDS = 0.2
UNAUTHENTICATED = 401

T = TypeVar("T")


class DaemonUnreachable(Unavailable):
    """The daemon does not answer. `palyra logs` shows what it was doing, and `palyra restart` restarts it."""


class DaemonNotRunning(DaemonUnreachable):
    """No daemon is running for this home. Start it with `palyra up`."""


class DaemonWaiting(DaemonUnreachable):
    """The daemon waits for disk space before it can start. Free some space; it then continues by itself."""


class GrpcEndpointUnknown(Internal):
    """The daemon does not report its gRPC endpoint, because it is of an earlier version. Restart it with `palyra
    restart`.
    """


class DaemonResponseInvalid(Internal):
    """The daemon's response is not valid; it may be of another version. Restart it with `palyra restart`."""


class RemoteError(PalyraError):
    """The daemon refused the request."""

    # The daemon's code, not that of this class: it names the fact, and clients match on it.
    code: str  # type: ignore[misc]

    def __init__(self, code: str, detail: str, *, status: int, retry_after: float | None = None) -> None:
        """`status` is the HTTP status for this kind of error, whichever API it came from."""
        super().__init__(detail)
        self.code = code
        self.status = status
        self.retry_after = retry_after


class TokenUnusable(Denied):
    """The token of this home is missing, unreadable or not valid. `palyra restart` creates a new one."""


class TokenRejected(RemoteError):
    """The daemon does not accept the token of this home. `palyra restart` creates a new one."""


def refused(code: str, detail: str, *, status: int, token_file: str, retry_after: float | None = None) -> RemoteError:
    """Return the error for a request that the daemon refused; `token_file` is where its token was read from."""
    if status != UNAUTHENTICATED:
        return RemoteError(code, detail, status=status, retry_after=retry_after)
    why = detail.partition(". ")[0].removesuffix(".")
    return TokenRejected(
        code,
        f"The daemon does not accept the token in {token_file}: {why[:1].lower()}{why[1:]}."
        " `palyra restart` gives this home a valid one.",
        status=status,
    )


class RetryDeadline:
    """Waits for an unreachable daemon, up to a total time."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    def after(self, error: PalyraError) -> None:
        """Pause before the next attempt, or raise the error if the time is up."""
        if time.monotonic() >= self._ends:
            raise error
        time.sleep(PAUSE_SECONDS)


def retry_until_reachable(attempt: Callable[[], T], *, seconds: float) -> T:
    """Retry until the daemon answers, up to a total time."""
    wait = RetryDeadline(seconds)
    while True:
        try:
            return attempt()
        except DaemonUnreachable as error:
            wait.after(error)
        except RemoteError as error:
            if error.code != JournalClosed.code:
                raise
            wait.after(error)


def unreachable(address: str, reason: str) -> DaemonUnreachable:
    """Return the error for an endpoint that does not answer."""
    return DaemonUnreachable(
        f"The daemon at {address} does not answer ({reason}). `palyra logs` shows what it was doing, "
        "and `palyra restart` restarts it."
    )


def reason_of(error: Exception) -> str:
    """Return why an attempt failed, as text."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
