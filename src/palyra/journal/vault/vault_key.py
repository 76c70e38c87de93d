"""The vault key, and encryption with it: XChaCha20-Poly1305 under a key that is stored apart from the journal.

The encryption of a value also covers its owner, its name, its version and its permitted uses. A row that was given
another name, another owner or other hosts cannot be decrypted, and neither can one with a single changed bit.
"""

import base64
import binascii
import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from nacl.exceptions import CryptoError
from nacl.secret import Aead

from palyra.core.errors import Conflict, Internal
from palyra.core.ids import PrincipalId
from palyra.journal.atomic_file import explain_write_errors, sync_folder
from palyra.secret_references import SecretReference, SecretReferenceNotFound, resolve

KEY_BYTES = Aead.KEY_SIZE

_HEX = re.compile(r"[0-9a-fA-F]{64}")
_HOW = "`openssl rand -hex 32` makes one"


class VaultKeyMissing(Conflict):
    """The vault key is missing, so stored secrets cannot be decrypted. Restore it from your copy."""


class VaultKeyInvalid(Internal):
    """The vault key is not valid. Restore it from your copy."""


class VaultKeyMismatch(Conflict):
    """The secret was encrypted with a different vault key. Restore that key, or set the secret again."""


class SecretDamaged(Internal):
    """The secret cannot be decrypted: its row was changed. Set it again, and find out who writes to the database."""


@dataclass(frozen=True, slots=True)
class SealedContext:
    """What an encrypted value belongs to, and may be decrypted for."""

    principal: PrincipalId
    name: str
    version: int
    scope: str
    """As it is stored: decoded and encoded again by a later version, it might differ."""

    def to_bytes(self) -> bytes:
        """Encode it in its one canonical form."""
        return msgspec.json.encode(["palyra-secret-1", self.principal, self.name, self.version, self.scope])


@dataclass(frozen=True, slots=True)
class VaultKey:
    """The key itself. Its repr does not show it."""

    raw: bytes = field(repr=False)

    @property
    def key_id(self) -> str:
        """The id of this key, which reveals nothing about the key."""
        return hashlib.blake2b(b"vault key id", key=self.raw, digest_size=8).hexdigest()

    def marker_id(self, principal: PrincipalId, value: bytes) -> str:
        """Return the id under which a value found in a text is stored: always the same for one principal.

        Without the key, it reveals nothing about the value.
        """
        return base64.b32encode(self._keyed(b"sealed id", principal.encode(), value)[:10]).decode().lower()

    def proof(self, principal: PrincipalId, sealed_id: str, origin: str) -> str:
        """Return the proof that this key has recorded where a value came from."""
        return self._keyed(b"sealed origin", principal.encode(), sealed_id.encode(), origin.encode()).hex()

    def _keyed(self, purpose: bytes, *parts: bytes) -> bytes:
        digest = hashlib.blake2b(key=self.raw, digest_size=16, person=purpose)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()

    def seal(self, value: bytes, bond: SealedContext) -> str:
        """Encrypt the value; without the key it cannot be read or changed."""
        return base64.b64encode(Aead(self.raw).encrypt(value, bond.to_bytes())).decode()

    def open(self, sealed: str, bond: SealedContext) -> bytes:
        """Decrypt the value; raise `SecretDamaged` if anything differs from when it was encrypted."""
        try:
            return Aead(self.raw).decrypt(base64.b64decode(sealed, validate=True), bond.to_bytes())
        except (CryptoError, ValueError, binascii.Error) as error:
            raise SecretDamaged(
                f"The secret {bond.name} cannot be decrypted: its row was changed. Set it again with "
                f"`palyra secrets set {bond.name}`, and find out who writes to the database."
            ) from error


class VaultKeySource:
    """Where the vault key is: a file of the home, or what a setting refers to. Everything here blocks."""

    def __init__(self, file: Path, *, reference: SecretReference | None = None) -> None:
        self._file = file
        self._reference = reference

    def load(self) -> VaultKey | None:
        """Read the key, None if it was never created; if a setting refers to it, it must exist."""
        if self._reference is not None:
            return self._referred(self._reference)
        try:
            if self._file.exists() and not self._file.is_file():
                # Reading a pipe would block.
                raise VaultKeyInvalid(f"{self._file} is not a file. Remove it, and restore the key from your copy.")
            text = self._file.read_text("ascii")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise VaultKeyInvalid(
                f"{self._file} cannot be read. Make it readable, or restore the key from your copy."
            ) from error
        return _parse(text, str(self._file))

    def _referred(self, reference: SecretReference) -> VaultKey:
        try:
            text = resolve(reference, base=self._file.parent)
        except SecretReferenceNotFound as error:
            raise VaultKeyInvalid(f"The vault key cannot be read from the reference in vault.key: {error}") from error
        return _parse(text, f"vault.key ({reference})")

    def load_or_create(self) -> VaultKey:
        """Read the key, or create it. If two processes create it at once, one succeeds and both get that key."""
        vault_key = self.load()
        if vault_key is not None:
            return vault_key
        with explain_write_errors(self._file):
            _make(self._file)
        made = self.load()
        assert made is not None
        return made

    def missing(self) -> VaultKeyMissing:
        """Return the error for a missing key with which something was encrypted."""
        return VaultKeyMissing(
            f"The vault key {self._file} is missing, so stored secrets cannot be decrypted. Restore it "
            f"from your copy. If you have no copy, they are lost: create a new key ({_HOW}) and set "
            "them again."
        )

    def other(self, name: str, *, sealed_with: str, vault_key: VaultKey) -> VaultKeyMismatch:
        """Return the error for a secret that was encrypted with another key."""
        where = f"vault.key ({self._reference})" if self._reference is not None else str(self._file)
        return VaultKeyMismatch(
            f"The secret {name} was encrypted with the key {sealed_with}, and the vault key is now "
            f"{vault_key.key_id} ({where}). Restore the earlier key, or set the secret again with `palyra "
            f"secrets set {name}`."
        )


def _parse(text: str, where: str) -> VaultKey:
    if not _HEX.fullmatch(text.strip()):
        raise VaultKeyInvalid(
            f"{where} does not contain a key: a key is 64 hexadecimal digits. Restore it from your "
            f"copy. If you have no copy, all stored secrets are lost: create a new key ({_HOW}) and set "
            "them again."
        )
    return VaultKey(bytes.fromhex(text.strip()))


def _make(path: Path) -> None:
    """Write a new key completely, under a name that does not exist yet."""
    fresh = path.with_name(f".{path.name}.{os.urandom(8).hex()}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(os.urandom(KEY_BYTES).hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        # A link, unlike a rename, never replaces an existing key.
        with suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        fresh.unlink()
    sync_folder(path.parent)
