"""Request rate limit per principal: a token bucket."""

from collections.abc import Callable
from datetime import timedelta

from palyra.core.clock import Clock
from palyra.core.errors import Unavailable
from palyra.core.ids import PrincipalId

MAX_BUCKETS = 4096


class RequestRateExceeded(Unavailable):
    """Your requests exceed the rate limit of this daemon. Wait a moment, then send them more slowly."""


class RateLimiter:
    """One bucket per principal: each request takes one out, and it refills every second, up to a burst.

    The limits (per second, burst) are read each time, so that they may change while the daemon runs.
    """

    def __init__(self, clock: Clock, limits: Callable[[], tuple[int, int]]) -> None:
        self._clock = clock
        self._limits = limits
        self._buckets: dict[PrincipalId, tuple[float, float]] = {}

    def take(self, principal: PrincipalId) -> None:
        """Count a request, or raise `RequestRateExceeded` with the time until the next one is allowed."""
        per_second, burst = self._limits()
        now = self._clock.monotonic()
        level, at = self._buckets.get(principal, (float(burst), now))
        level = min(burst, level + (now - at) * per_second)
        if level < 1:
            raise RequestRateExceeded(retry_after=timedelta(seconds=(1 - level) / per_second))
        if principal not in self._buckets and len(self._buckets) >= MAX_BUCKETS:
            # Memory is bounded; resetting everyone's bucket once is the lesser evil.
            self._buckets.clear()
        self._buckets[principal] = (level - 1, now)
