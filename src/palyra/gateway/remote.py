"""What a caller may meet at a daemon's doors: it is away, it refuses, it can not be understood."""

import time
from collections.abc import Callable
from typing import TypeVar

from palyra.core.errors import Broken, Denied, PalyraError, Unavailable

PATIENCE_SECONDS = 30.0
"""How long a daemon that went away is waited for: a restart takes a few seconds."""
PAUSE_SECONDS = 0.2
UNAUTHENTICATED = 401

T = TypeVar("T")


class DaemonUnreachable(Unavailable):
    """The daemon does not answer. `palyra logs` says what it was doing, `palyra restart` starts it anew."""


class NotRunning(DaemonUnreachable):
    """No daemon runs for this home. Start it with `palyra up`."""


class DaemonWaiting(DaemonUnreachable):
    """The daemon waits for space on its disk before it can serve. Free some; it goes on by itself."""


class GrpcDoorUnknown(Broken):
    """The daemon does not say where its gRPC door is; it is of an earlier version. Restart it with `palyra restart`."""


class AnswerUnreadable(Broken):
    """The daemon's answer can not be understood; it may be of another version. Restart it with `palyra restart`."""


class RemoteError(PalyraError):
    """The daemon refused."""

    # The daemon's code, not that of this class: it names the fact, and clients match on it.
    code: str  # type: ignore[misc]

    def __init__(self, code: str, detail: str, *, status: int, retry_after: float | None = None) -> None:
        """`status` is the number that HTTP has for this kind of refusal, whichever door it came from."""
        super().__init__(detail)
        self.code = code
        self.status = status
        self.retry_after = retry_after


class TokenUnusable(Denied):
    """The token of this home is missing, cannot be read, or is not a token. `palyra restart` makes a new one."""


class TokenRejected(RemoteError):
    """The daemon does not accept the token of this home. `palyra restart` makes a new one."""


def refused(code: str, detail: str, *, status: int, token_file: str, retry_after: float | None = None) -> RemoteError:
    """Return the error for a request that the daemon refused; `token_file` is where its token came from."""
    if status != UNAUTHENTICATED:
        return RemoteError(code, detail, status=status, retry_after=retry_after)
    why = detail.partition(". ")[0].removesuffix(".")
    return TokenRejected(
        code,
        f"The daemon does not accept the token in {token_file}: {why[:1].lower()}{why[1:]}."
        " `palyra restart` gives this home a valid one.",
        status=status,
    )


class Patience:
    """Waits for a daemon that is away, up to a time in all."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    def after(self, error: PalyraError) -> None:
        """Pause before the next attempt, or raise the error if the time is up."""
        if time.monotonic() >= self._ends:
            raise error
        time.sleep(PAUSE_SECONDS)


def patiently(attempt: Callable[[], T], *, seconds: float) -> T:
    """Try until the daemon is there and answers, up to a time in all."""
    wait = Patience(seconds)
    while True:
        try:
            return attempt()
        except DaemonUnreachable as error:
            wait.after(error)
        except RemoteError as error:
            if error.code != "engine_closed":
                raise
            wait.after(error)


def unreachable(address: str, reason: str) -> DaemonUnreachable:
    """Return the error for a door that does not answer."""
    return DaemonUnreachable(
        f"The daemon at {address} does not answer ({reason})."
        " `palyra logs` says what it was doing, `palyra restart` starts it anew."
    )


def reason_of(error: Exception) -> str:
    """Return why an attempt failed, in words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
