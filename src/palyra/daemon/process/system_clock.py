"""The system clock and random ids, as implementations of `Clock` and `IdSource`."""

import os
import threading
from datetime import UTC, datetime
from time import monotonic, time

from palyra.core.clock import Clock, to_ms
from palyra.core.ids import RANDOM_BYTES, ulid


class SystemClock:
    """The system clock."""

    def now(self) -> datetime:
        return datetime.fromtimestamp(int(time() * 1000) / 1000, UTC)

    def monotonic(self) -> float:
        return monotonic()


class SystemIds:
    """New ids from the clock and the system's random numbers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._random = b""

    def new(self) -> str:
        # Random bytes are fetched for many ids at once: the system call costs more than all the rest.
        with self._lock:
            if not self._random:
                self._random = os.urandom(RANDOM_BYTES * 256)
            randomness, self._random = self._random[:RANDOM_BYTES], self._random[RANDOM_BYTES:]
        return ulid(to_ms(self._clock.now()), randomness)
