"""The clock that all other code uses."""

from datetime import UTC, datetime, timedelta
from typing import Protocol

MAX_AHEAD_MS = 10 * 60_000
"""A recorded time further in the future than this was written while the clock was wrong. The clocks of two machines
that share a journal differ by less."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """The time. `now` may jump when the system clock is set; `monotonic` never goes back."""

    def now(self) -> datetime:
        """Return the current time: aware, in UTC, in whole milliseconds."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start, for measuring durations."""
        ...


def to_ms(moment: datetime) -> int:
    """Return milliseconds since 1970, as stored in the database."""
    since = moment - _EPOCH
    return since.days * 86_400_000 + since.seconds * 1_000 + since.microseconds // 1_000


def from_ms(ms: int) -> datetime:
    """Return the aware datetime of a stored time."""
    return _EPOCH + timedelta(milliseconds=ms)
