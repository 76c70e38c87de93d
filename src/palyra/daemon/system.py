"""The machine's clock and randomness, as the rest of the house asks for them."""

import os
import threading
from datetime import UTC, datetime
from time import monotonic, time

from palyra.core.clock import Clock, to_ms
from palyra.core.ids import RANDOM_BYTES, ulid


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.fromtimestamp(int(time() * 1000) / 1000, UTC)

    def monotonic(self) -> float:
        return monotonic()


class SystemIds:
    """New ids from the clock and the machine's randomness."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._random = b""

    def new(self) -> str:
        # The kernel is asked for many at once: one call costs more than all else here.
        with self._lock:
            if not self._random:
                self._random = os.urandom(RANDOM_BYTES * 256)
            randomness, self._random = self._random[:RANDOM_BYTES], self._random[RANDOM_BYTES:]
        return ulid(to_ms(self._clock.now()), randomness)
