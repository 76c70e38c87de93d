"""Random salts for the digests of tape entries."""

import os

SALT_BYTES = 16
BATCH_SIZE = 256


class Salts:
    """Generates salts. Random bytes are fetched for many at once: one call costs more than hashing an entry."""

    def __init__(self) -> None:
        self._ready: list[str] = []

    def new(self) -> str:
        """Return a salt that was never returned before."""
        # Without a lock: no two threads get the same item, and if both refill at once, one batch is lost.
        try:
            return self._ready.pop()
        except IndexError:
            drawn = os.urandom(SALT_BYTES * BATCH_SIZE).hex()
            width = 2 * SALT_BYTES
            fresh = [drawn[start : start + width] for start in range(0, len(drawn), width)]
            salt = fresh.pop()
            self._ready = fresh
            return salt
