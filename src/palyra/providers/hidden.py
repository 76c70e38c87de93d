"""The secrets that are sent to a provider, and how they are kept out of what it says."""

from palyra.core.redact import HIDDEN, hide_values, redact
from palyra.providers.base import ProviderFailed

LEAST_KEY_CHARS = 20
"""Shorter ones, such as servers of one's own are content with, are words that an answer may hold."""
SHORTEST_TRACE = 4
"""So many characters of a key that was cut off tell something of it."""


class Hidden:
    """The secrets that were sent: a server may say them back."""

    def __init__(self) -> None:
        self._secrets: dict[str, str] = {}
        self._keys: list[bytes] = []

    def add(self, secret: str, reference: str) -> None:
        """Take in one that is about to be sent, and where it stands."""
        self._secrets[secret] = reference
        if len(secret) >= LEAST_KEY_CHARS:
            self._keys.append(secret.encode())

    def out_of_bytes(self, piece: bytes) -> bytes:
        """Return a piece of an answer without them: it goes onto the tape, and to whoever asked."""
        for key in self._keys:
            if key in piece:
                piece = piece.replace(key, HIDDEN.encode())
        return piece

    def out_of(self, failed: ProviderFailed) -> ProviderFailed:
        """Return the failure without them."""
        detail = hide_values(failed.detail, ((secret.encode(), name) for secret, name in self._secrets.items()))
        for secret in self._secrets:
            # Where the server's words were cut, one may have been cut with them.
            for cut in range(min(len(secret), len(detail)), SHORTEST_TRACE - 1, -1):
                detail = detail.replace(f"{secret[:cut]}…", f"{HIDDEN}…")
        return ProviderFailed(redact(detail), kind=failed.kind, retry_after=failed.retry_after, refused=failed.refused)
