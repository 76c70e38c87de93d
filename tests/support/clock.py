"""Clocks that a test can move."""

from datetime import UTC, datetime, timedelta
from time import monotonic

from tests.support.builders import AT


class FakeClock:
    """Stands still until it is moved."""

    def __init__(self, at: datetime = AT) -> None:
        self._at = at
        self._seconds = 0.0

    def now(self) -> datetime:
        return self._at

    def monotonic(self) -> float:
        return self._seconds

    def advance(self, by: timedelta) -> None:
        """Let time pass."""
        self._at += by
        self._seconds += by.total_seconds()

    def sleep(self, by: timedelta) -> None:
        """Let the clock jump, forwards or back: what measures how long something took does not notice."""
        self._at += by


class MovableClock:
    """Goes with the real time, and jumps ahead when a test says so."""

    def __init__(self, *, begins: datetime | None = None) -> None:
        """`begins` is what it shows at first; the real time if nothing is said."""
        self._ahead = begins - datetime.now(UTC) if begins is not None else timedelta()
        self._worked = timedelta()

    def now(self) -> datetime:
        now = datetime.now(UTC) + self._ahead
        return now.replace(microsecond=now.microsecond // 1000 * 1000)

    def monotonic(self) -> float:
        return monotonic() + self._worked.total_seconds()

    def advance(self, by: timedelta) -> None:
        """Let time pass."""
        self._ahead += by
        self._worked += by

    def sleep(self, by: timedelta) -> None:
        """Let time pass in which the machine slept: what measures how long something took does not notice."""
        self._ahead += by


def midday() -> MovableClock:
    """Return a clock that begins in the middle of a day and of a month: neither ends while a test runs."""
    return MovableClock(begins=datetime.now(UTC).replace(day=15, hour=12, minute=0, second=0, microsecond=0))
