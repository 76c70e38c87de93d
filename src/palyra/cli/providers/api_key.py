"""Where a provider's key comes from: it goes to the vault, or a reference names it. It is never shown."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from palyra.cli.errors import SecretInArguments
from palyra.cli.providers import prompts as asking
from palyra.cli.providers.discovery import key_variable
from palyra.cli.providers.presets import ProviderPreset
from palyra.core.errors import Invalid
from palyra.secret_references import KINDS, SecretReferenceInvalid, parse

MAX_BYTES = 8192
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ProviderKeyRequired(Invalid):
    """The provider needs an API key. Pass it with --key-env, --key-file or --key-stdin, or refer to it with --key-ref.
    Nothing was stored."""


class ProviderKeyNotFound(Invalid):
    """The API key was not found. Nothing was stored."""


@dataclass(frozen=True, slots=True, repr=False)
class ProviderKey:
    """A key for the vault; or a reference to it; or neither, if none is needed."""

    value: str | None = None
    reference: str | None = None


NO_KEY = ProviderKey()


@dataclass(frozen=True, slots=True)
class KeyOptions:
    """The key options of the command line."""

    variable: str | None = None
    file: Path | None = None
    stdin: bool = False
    reference: str | None = None

    @property
    def count(self) -> int:
        """How many of them were used."""
        return sum((self.variable is not None, self.file is not None, self.stdin, self.reference is not None))


def find_key(title: str, preset: ProviderPreset | None, source: KeyOptions, *, person: bool) -> ProviderKey:
    """Return the key of a provider from the options; or ask for it."""
    if source.reference is not None:
        return ProviderKey(reference=_reference(source.reference))
    if source.variable is not None:
        return ProviderKey(_from_variable(source.variable))
    if source.file is not None:
        return ProviderKey(_from_file(source.file))
    if source.stdin:
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if sys.stdin is not None else b""
        return ProviderKey(_checked(data, "on stdin"))
    if preset is not None and preset.is_server:
        return NO_KEY
    variable = key_variable(preset) if preset is not None else None
    if person:
        return _ask_key(title, variable, needed=preset is not None)
    if preset is None:
        return NO_KEY
    hint = f" {variable} is set: use --key-env {variable}." if variable is not None else ""
    raise ProviderKeyRequired(
        f"{title} needs an API key.{hint} Pass it with --key-env, --key-file or --key-stdin, or refer to it with"
        " --key-ref. Nothing was stored."
    )


def _ask_key(title: str, variable: str | None, *, needed: bool) -> ProviderKey:
    if variable is not None:
        by_reference = asking.ask_where(variable) == "env"
        return ProviderKey(reference=f"env:{variable}") if by_reference else ProviderKey(_from_variable(variable))
    typed = asking.ask_key(title, needed=needed)
    return ProviderKey(_checked(typed.encode(), "that was typed")) if typed else NO_KEY


def _reference(text: str) -> str:
    try:
        secret_reference = parse(text) if text.partition(":")[0] in KINDS else None
    except SecretReferenceInvalid as error:
        raise ProviderKeyNotFound(f"--key-ref: {error.detail}. Nothing was stored.") from None
    if secret_reference is None:
        raise SecretInArguments(
            "Other programs can see a key on the command line, and the shell keeps it in its history."
            " Nothing was stored. Replace the key, and pass the new one with --key-env, --key-file or --key-stdin."
        )
    return text


def _from_variable(name: str) -> str:
    value = os.environ.get(name, "") if _VARIABLE.fullmatch(name) else ""
    if not value.strip():
        # The value may be the key itself, and is not shown.
        raise ProviderKeyNotFound(
            "The variable of --key-env is not set. Give its name without a $. Nothing was stored."
        )
    return _checked(value.encode(), "in the variable")


def _from_file(path: Path) -> str:
    try:
        with path.expanduser().open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProviderKeyNotFound(
            f"The file of --key-file cannot be read: {error.strerror}. Nothing was stored."
        ) from None
    return _checked(data, "in the file")


def _checked(data: bytes, where: str) -> str:
    """Return the key, or raise saying why it is not one; it is not shown."""
    text = data.decode("ascii", "replace").strip()
    if not text or len(data) > MAX_BYTES or not text.isascii() or not text.isprintable() or " " in text:
        raise ProviderKeyNotFound(
            f"The API key {where} is not valid: it is empty, too long, or has spaces, line breaks or other invalid"
            " characters. Nothing was stored."
        )
    return text
