"""References to secrets: a setting says where a secret stands instead of holding it, and it is fetched when it is used.

`env:NAME` is a variable, `file:/path` a file, `keyring:SERVICE/NAME` an entry of the system's keyring, `vault:NAME` a
secret in Palyra's own vault. The vault is in the journal, so those who need a secret before it is open can not use it.
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

MOST_CHARS = 64 * 1024
"""Of a file that holds a secret, as of one in the vault."""

# An address such as postgresql://host is no reference.
_REFERENCE = re.compile(r"(?P<kind>[a-z]+):(?!//)(?P<rest>.*)", re.DOTALL)
_PASSWORD = re.compile(r"(?P<user>://[^:@/]*):.*@|(?P<word>\bpassword\s*=\s*)('[^']*'|[^&\s]*)", re.DOTALL)


class ReferenceInvalid(Invalid):
    """The reference to a secret can not be understood."""


class ReferenceUnresolved(Invalid):
    """The reference to a secret leads nowhere. Put the secret where it points, or change the reference."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a secret stands."""

    kind: str
    rest: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.rest}"


class SecretText(str):
    """A secret to be used as text, which shows something else in its place."""

    shown: str

    def __new__(cls, secret: str, *, shown: str) -> "SecretText":
        made = super().__new__(cls, secret)
        made.shown = shown
        return made

    def __repr__(self) -> str:
        return repr(self.shown)


def parse(text: str) -> Reference | None:
    """Return the reference that a text is, None if it is the secret itself."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        return None
    kind, rest = found["kind"], found["rest"]
    if kind not in KINDS:
        raise ReferenceInvalid(f"there is no kind of reference {kind!r}; there are {', '.join(KINDS.values())}")
    if not rest or (kind == "keyring" and not all(rest.partition("/"))):
        raise ReferenceInvalid(f"{text!r} is no whole reference; write it as {KINDS[kind]}")
    return Reference(kind, rest)


def secret_of(text: str, *, base: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Return the secret that a setting means: the text itself, or what it refers to. Blocks."""
    reference = parse(text)
    return text if reference is None else resolve(reference, base=base, environ=environ)


def resolve(reference: Reference, *, base: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Return what a reference leads to; a relative path begins at `base`. Blocks."""
    try:
        match reference.kind:
            case "env":
                found = environ.get(reference.rest, "")
            case "file":
                found = _from_file(reference, base / Path(os.path.expanduser(reference.rest)))
            case "keyring":
                found = _from_keyring(reference)
            case _:
                raise ReferenceUnresolved(f"{reference} can not be used here: the vault is not open yet.")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no UTF-8"
        raise ReferenceUnresolved(f"{reference} can not be read ({why}).") from error
    if not found.strip():
        raise ReferenceUnresolved(f"there is nothing at {reference}.")
    return found.strip()


def redacted(text: str) -> str:
    """Return an address without its password."""
    return _PASSWORD.sub(lambda found: f"{found['user']}:***@" if found["user"] else f"{found['word']}***", text)


def _from_file(reference: Reference, path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        found = file.read(MOST_CHARS + 1)
    if len(found) > MOST_CHARS:
        # A device, say, has no end.
        raise ReferenceUnresolved(f"{reference} holds more than {MOST_CHARS} characters, which is no secret.")
    return found


def _from_keyring(reference: Reference) -> str:
    service, _, name = reference.rest.partition("/")
    try:
        keyring: Any = import_module("keyring")
    except ImportError as error:
        raise ReferenceUnresolved(
            f"{reference} needs the package keyring, which is not installed. Install it: pip install 'palyra[keyring]'."
        ) from error
    try:
        return keyring.get_password(service, name) or ""
    except Exception as error:  # each of its backends raises what it likes
        said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ReferenceUnresolved(
            f"{reference} can not be read: the keyring says: {said}. Unlock it; where there is none, use env: or file:."
        ) from error
