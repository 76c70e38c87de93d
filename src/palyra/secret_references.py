"""References to secrets: a setting says where a secret is stored, and the secret is read when it is used.

`env:NAME` is a variable, `file:/path` a file, `keyring:SERVICE/NAME` an entry of the system's keyring, `vault:NAME` a
secret in Palyra's own vault. The vault is in the journal, so it cannot hold a secret that opens the journal.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from palyra.core.errors import Invalid

KINDS = {
    "env": "env:NAME",
    "file": "file:/path",
    "keyring": "keyring:SERVICE/NAME",
    "vault": "vault:NAME",
}

MAX_CHARS = 64 * 1024
"""Maximum size of a file that holds a secret; the same as in the vault."""

# An address such as postgresql://host is not a reference.
_REFERENCE = re.compile(r"(?P<kind>[a-z]+):(?!//)(?P<rest>.*)", re.DOTALL)
_PASSWORD = re.compile(r"(?P<user>://[^:@/]*):.*@|(?P<word>\bpassword\s*=\s*)('[^']*'|[^&\s]*)", re.DOTALL)


class SecretReferenceInvalid(Invalid):
    """The secret reference is not valid."""


class SecretReferenceNotFound(Invalid):
    """The secret reference points to nothing. Put the secret there, or change the reference."""


@dataclass(frozen=True, slots=True)
class SecretReference:
    """Where a secret is stored."""

    kind: str
    rest: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.rest}"


class SecretText(str):
    """A secret that is used as text; its repr shows a replacement text."""

    display: str

    def __new__(cls, secret: str, *, displayed: str) -> "SecretText":
        made = super().__new__(cls, secret)
        made.display = displayed
        return made

    def __repr__(self) -> str:
        return repr(self.display)


def parse(text: str) -> SecretReference | None:
    """Parse a text as a reference; return None if it is the secret itself."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        return None
    kind, rest = match["kind"], match["rest"]
    if kind not in KINDS:
        raise SecretReferenceInvalid(f"{kind!r} is not a kind of secret reference; use {', '.join(KINDS.values())}")
    if not rest or (kind == "keyring" and not all(rest.partition("/"))):
        raise SecretReferenceInvalid(f"{text!r} is not a complete reference; write it as {KINDS[kind]}")
    return SecretReference(kind, rest)


def secret_of(text: str, *, base: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Return the secret of a setting: the text itself, or the secret that it refers to. Blocks."""
    reference = parse(text)
    return text if reference is None else resolve(reference, base=base, environ=environ)


def resolve(reference: SecretReference, *, base: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Return the secret that a reference points to; a relative path starts at `base`. Blocks."""
    try:
        match reference.kind:
            case "env":
                match = environ.get(reference.rest, "")
            case "file":
                match = _from_file(reference, base / Path(os.path.expanduser(reference.rest)))
            case "keyring":
                match = _from_keyring(reference)
            case _:
                raise SecretReferenceNotFound(f"{reference} cannot be used here, because the vault is not open yet.")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise SecretReferenceNotFound(f"{reference} cannot be read ({why}).") from error
    if not match.strip():
        raise SecretReferenceNotFound(f"{reference} is not set or does not exist.")
    return match.strip()


def redacted(text: str) -> str:
    """Return an address without its password."""
    return _PASSWORD.sub(lambda match: f"{match['user']}:***@" if match["user"] else f"{match['word']}***", text)


def _from_file(reference: SecretReference, path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        match = file.read(MAX_CHARS + 1)
    if len(match) > MAX_CHARS:
        # A device, for example, has no end.
        raise SecretReferenceNotFound(f"{reference} is longer than {MAX_CHARS} characters, so it is not a secret.")
    return match


def _from_keyring(reference: SecretReference) -> str:
    service, _, name = reference.rest.partition("/")
    try:
        keyring: Any = import_module("keyring")
    except ImportError as error:
        raise SecretReferenceNotFound(
            f"{reference} needs the package keyring, which is not installed. Install it: pip install 'palyra[keyring]'."
        ) from error
    try:
        return keyring.get_password(service, name) or ""
    except Exception as error:  # every keyring backend raises its own errors
        text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise SecretReferenceNotFound(
            f"{reference} cannot be read: the keyring reports {text}. Unlock it; if you have no "
            "keyring, use env: or file:."
        ) from error
