"""Randomness for the tape's digests."""

import os

SALT_BYTES = 16
AT_ONCE = 256


class Salts:
    """Hands out salts. The kernel is asked for many at once: one call costs more than hashing an entry."""

    def __init__(self) -> None:
        self._ready: list[str] = []

    def new(self) -> str:
        """Return a salt that was never handed out."""
        # Without a lock: no two threads are given the same item, and if both draw anew, one draft is lost.
        try:
            return self._ready.pop()
        except IndexError:
            drawn = os.urandom(SALT_BYTES * AT_ONCE).hex()
            width = 2 * SALT_BYTES
            fresh = [drawn[start : start + width] for start in range(0, len(drawn), width)]
            salt = fresh.pop()
            self._ready = fresh
            return salt
