"""Where a provider's key comes from: it goes to the vault, or stays where a reference says. It is never shown."""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from palyra.cli import providers_ask as asking
from palyra.cli.providers_found import key_variable
from palyra.cli.providers_known import Known
from palyra.core.errors import Invalid
from palyra.references import KINDS, ReferenceInvalid, parse

MOST_BYTES = 8192
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class KeyNotGiven(Invalid):
    """The provider wants a key. Give it with --key-env, --key-file or --key-stdin, or say where it stands with
    --key-at. Nothing was stored."""


class KeyInArguments(Invalid):
    """A key on the command line is seen by every program of this machine, and stays in the shell's history. Nothing was
    stored. Use --key-env, --key-file or --key-stdin; and have the key changed, since it has been seen."""


class ProviderKeyMissing(Invalid):
    """There is no key where it should be. Nothing was stored."""


@dataclass(frozen=True, slots=True, repr=False)
class Key:
    """A key, on its way to the vault; or where it stands; or neither, if none is wanted."""

    value: str | None = None
    reference: str | None = None


NO_KEY = Key()


@dataclass(frozen=True, slots=True)
class Source:
    """How the key was given on the command line."""

    variable: str | None = None
    file: Path | None = None
    stdin: bool = False
    reference: str | None = None

    @property
    def count(self) -> int:
        """In how many ways."""
        return sum((self.variable is not None, self.file is not None, self.stdin, self.reference is not None))


def find_key(title: str, known: Known | None, source: Source, *, person: bool) -> Key:
    """Return the key of a provider, as it was given; or ask for it."""
    if source.reference is not None:
        return Key(reference=_reference(source.reference))
    if source.variable is not None:
        return Key(_from_variable(source.variable))
    if source.file is not None:
        return Key(_from_file(source.file))
    if source.stdin:
        data = sys.stdin.buffer.read(MOST_BYTES + 1) if sys.stdin is not None else b""
        return Key(_checked(data, "on stdin"))
    if known is not None and known.is_server:
        return NO_KEY
    variable = key_variable(known) if known is not None else None
    if person:
        return _asked(title, variable, needed=known is not None)
    if known is None:
        return NO_KEY
    hint = f" {variable} is set here: --key-env {variable} takes it from there." if variable is not None else ""
    raise KeyNotGiven(
        f"{title} wants a key.{hint} Give it with --key-env, --key-file or --key-stdin, or say where it stands with"
        " --key-at. Nothing was stored."
    )


def _asked(title: str, variable: str | None, *, needed: bool) -> Key:
    if variable is not None:
        by_reference = asking.ask_where(variable) == "env"
        return Key(reference=f"env:{variable}") if by_reference else Key(_from_variable(variable))
    typed = asking.ask_key(title, needed=needed)
    return Key(_checked(typed.encode(), "that was typed")) if typed else NO_KEY


def _reference(text: str) -> str:
    try:
        found = parse(text) if text.partition(":")[0] in KINDS else None
    except ReferenceInvalid as error:
        raise ProviderKeyMissing(f"--key-at: {error.detail}. Nothing was stored.") from None
    if found is None:
        raise KeyInArguments
    return text


def _from_variable(name: str) -> str:
    value = os.environ.get(name, "") if _VARIABLE.fullmatch(name) else ""
    if not value.strip():
        # What was given may be the key itself, and is not shown.
        raise ProviderKeyMissing(
            "--key-env names no variable that is set here. Write the variable's name, without a $. Nothing was stored."
        )
    return _checked(value.encode(), "in the variable")


def _from_file(path: Path) -> str:
    try:
        with path.expanduser().open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ProviderKeyMissing(
            f"The file of --key-file can not be read: {error.strerror}. Nothing was stored."
        ) from None
    return _checked(data, "in the file")


def _checked(data: bytes, where: str) -> str:
    """Return the key, or say why it is none; it is not shown."""
    text = data.decode("ascii", "replace").strip()
    if not text or len(data) > MOST_BYTES or not text.isascii() or not text.isprintable() or " " in text:
        raise ProviderKeyMissing(
            f"The key {where} is none: it is empty, too long, or has blanks, line breaks or other characters that no"
            " key has. Nothing was stored."
        )
    return text
