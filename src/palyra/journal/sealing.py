"""The vault's key, and what it seals: XChaCha20-Poly1305 under a key that is kept apart from the journal.

What a value is sealed with also names whose it is, its name, its version and what it may be used for. A row that was
given another name, another owner or other hosts does not open, and neither does one of which a single bit was changed.
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

from palyra.core.errors import Broken, Conflict
from palyra.core.ids import PrincipalId
from palyra.journal.whole import sync_folder, written
from palyra.references import Reference, ReferenceUnresolved, resolve

KEY_BYTES = Aead.KEY_SIZE

_HEX = re.compile(r"[0-9a-fA-F]{64}")
_HOW = "`openssl rand -hex 32` makes one"


class VaultKeyMissing(Conflict):
    """The vault's key is gone, and there are secrets that only it opens. Put it back from where you keep a copy."""


class VaultKeyUnreadable(Broken):
    """What should be the vault's key is none. Put the key back from where you keep a copy."""


class VaultKeyOther(Conflict):
    """The secret was sealed with another key than the one that the vault has now. Put that key back, or set it anew."""


class SecretDamaged(Broken):
    """The secret does not open: its row was changed. Set it anew, and find out who writes to the database."""


@dataclass(frozen=True, slots=True)
class Bond:
    """What a sealed value belongs to, and opens for."""

    principal: PrincipalId
    name: str
    version: int
    scope: str
    """As it is stored: read and written again by a later version, it might not be the same."""

    def to_bytes(self) -> bytes:
        """Write it down in its one form."""
        return msgspec.json.encode(["palyra-secret-1", self.principal, self.name, self.version, self.scope])


@dataclass(frozen=True, slots=True)
class VaultKey:
    """The key itself. It never shows itself."""

    raw: bytes = field(repr=False)

    @property
    def key_id(self) -> str:
        """What tells this key from others, and helps nobody to find it."""
        return hashlib.blake2b(b"vault key id", key=self.raw, digest_size=8).hexdigest()

    def marker_id(self, principal: PrincipalId, value: bytes) -> str:
        """Return the id under which a value found in a text is kept: always the same one for one principal.

        It tells nothing about the value to whoever has no key.
        """
        return base64.b32encode(self._keyed(b"sealed id", principal.encode(), value)[:10]).decode().lower()

    def proof(self, principal: PrincipalId, sealed_id: str, origin: str) -> str:
        """Return what proves that this key has recorded where a value came from."""
        return self._keyed(b"sealed origin", principal.encode(), sealed_id.encode(), origin.encode()).hex()

    def _keyed(self, purpose: bytes, *parts: bytes) -> bytes:
        digest = hashlib.blake2b(key=self.raw, digest_size=16, person=purpose)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()

    def seal(self, value: bytes, bond: Bond) -> str:
        """Return the value as nobody without the key can read or change it."""
        return base64.b64encode(Aead(self.raw).encrypt(value, bond.to_bytes())).decode()

    def open(self, sealed: str, bond: Bond) -> bytes:
        """Return the value, or raise `SecretDamaged` if anything about it is not as it was sealed."""
        try:
            return Aead(self.raw).decrypt(base64.b64decode(sealed, validate=True), bond.to_bytes())
        except (CryptoError, ValueError, binascii.Error) as error:
            raise SecretDamaged(
                f"The secret {bond.name} does not open: its row was changed. Set it anew with"
                f" `palyra secrets set {bond.name}`, and find out who writes to the database."
            ) from error


class KeyPlace:
    """Where the vault's key is: a file of the home, or what a setting refers to. Everything here blocks."""

    def __init__(self, file: Path, *, reference: Reference | None = None) -> None:
        self._file = file
        self._reference = reference

    def load(self) -> VaultKey | None:
        """Read the key, None if it was never made; what a setting refers to must be there."""
        if self._reference is not None:
            return self._referred(self._reference)
        try:
            if self._file.exists() and not self._file.is_file():
                # A pipe would be waited for.
                raise VaultKeyUnreadable(f"{self._file} is no file. Take it away, and put the key back.")
            text = self._file.read_text("ascii")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise VaultKeyUnreadable(f"{self._file} can not be read. Make it readable, or put the key back.") from error
        return _parse(text, str(self._file))

    def _referred(self, reference: Reference) -> VaultKey:
        try:
            text = resolve(reference, base=self._file.parent)
        except ReferenceUnresolved as error:
            raise VaultKeyUnreadable(f"The vault's key is not where the setting vault.key says: {error}") from error
        return _parse(text, f"vault.key ({reference})")

    def load_or_create(self) -> VaultKey:
        """Read the key, or make it. Of two who make it at once one does, and both get that one."""
        found = self.load()
        if found is not None:
            return found
        with written(self._file):
            _make(self._file)
        made = self.load()
        assert made is not None
        return made

    def missing(self) -> VaultKeyMissing:
        """Return the error for a key that is not there although something was sealed with it."""
        return VaultKeyMissing(
            f"The vault's key {self._file} is gone, and there are secrets that only it opens. Put it back from where"
            f" you keep a copy. If there is none they are lost: put a new key there ({_HOW}), then set them again."
        )

    def other(self, name: str, *, sealed_with: str, found: VaultKey) -> VaultKeyOther:
        """Return the error for a secret that another key has sealed."""
        where = f"vault.key ({self._reference})" if self._reference is not None else str(self._file)
        return VaultKeyOther(
            f"The secret {name} was sealed with the key {sealed_with}, and the vault's key is now {found.key_id}"
            f" ({where}). Put the earlier key back, or set the secret anew with `palyra secrets set {name}`."
        )


def _parse(text: str, where: str) -> VaultKey:
    if not _HEX.fullmatch(text.strip()):
        raise VaultKeyUnreadable(
            f"{where} holds no key: a key is 64 hexadecimal digits. Put it back from where you keep a copy. If there is"
            f" none, what it has sealed is lost: put a new key there ({_HOW}), then set the secrets anew."
        )
    return VaultKey(bytes.fromhex(text.strip()))


def _make(path: Path) -> None:
    """Write a fresh key, whole, under a name that nothing has yet."""
    fresh = path.with_name(f".{path.name}.{os.urandom(8).hex()}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(os.urandom(KEY_BYTES).hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        # A link, unlike a renaming, never takes the place of a key that is there.
        with suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        fresh.unlink()
    sync_folder(path.parent)
