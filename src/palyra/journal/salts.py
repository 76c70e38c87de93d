"""Randomness for the tape's digests."""

import os
import threading

SALT_BYTES = 16
AT_ONCE = 256


class Salts:
    """Hands out salts. The kernel is asked for many at once: one call costs more than hashing an entry."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: list[str] = []

    def new(self) -> str:
        """Return a salt that was never handed out."""
        with self._lock:
            if not self._ready:
                drawn = os.urandom(SALT_BYTES * AT_ONCE).hex()
                width = 2 * SALT_BYTES
                self._ready = [drawn[start : start + width] for start in range(0, len(drawn), width)]
            return self._ready.pop()
