"""The key that signs the daemon's anchors and attestations: created once, in the home, for its owner only."""

import os
from pathlib import Path

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from palyra.core.errors import Internal

KEY_BYTES = 32


class JournalKeyMissing(Internal):
    """The key that signs the journal is missing. Restore `journal.key` from your copy or from a backup."""


class JournalKeyMismatch(Internal):
    """This is not the key that signs the journal. Restore `journal.key` from your copy or from a backup."""


class JournalKeyNotReadable(Internal):
    """The signing key in the home folder cannot be read. Restore it from a backup."""


class KeySigner:
    """Signs with the home's Ed25519 key."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key

    @property
    def public_key(self) -> str:
        return bytes(self._key.verify_key).hex()

    def sign(self, data: bytes) -> str:
        return self._key.sign(data).signature.hex()


def load_or_create(path: Path) -> KeySigner:
    """Read the key; create it if there is none."""
    if not path.exists():
        fresh = path.with_suffix(".new")
        try:
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(os.urandom(KEY_BYTES).hex())
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
    return load(path)


def public_key(path: Path) -> str | None:
    """Return the public key of the key in a file, None if there is no such file."""
    return load(path).public_key if path.exists() else None


def load(path: Path) -> KeySigner:
    """Read the key in a file."""
    try:
        return KeySigner(SigningKey(bytes.fromhex(path.read_text().strip())))
    except OSError as error:
        raise JournalKeyNotReadable(
            f"{path} cannot be read: {error.strerror}. Make it readable for its owner only."
        ) from error
    except ValueError as error:
        raise JournalKeyNotReadable(f"{path} does not contain a signing key. Restore it from a backup.") from error


def is_signed(public_key: str, data: bytes, signature: str) -> bool:
    """Return whether the signature of the data was made with that key."""
    try:
        raw = bytes.fromhex(signature)
        VerifyKey(bytes.fromhex(public_key)).verify(data, raw)
    except (BadSignatureError, ValueError):
        return False
    # There is one way to write it: capitals or blanks in it would be an unnoticed change.
    return raw.hex() == signature
