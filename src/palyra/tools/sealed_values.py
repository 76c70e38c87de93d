"""What a tool that writes files needs from the vault: values in place of markers, and markers for what is shown."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from palyra.core.errors import Denied

NO_FILES: Mapping[str, str] = MappingProxyType({})


class SecretMarkerNotAllowed(Denied):
    """A marker is used for a secret that did not come from there. Nothing was done."""


class SealedValues(Protocol):
    """Knows the sealed values that one call may restore."""

    async def view(self, text: str, *, path: str) -> str:
        """Return the text of a file as the model has seen it: with markers for its secrets."""
        ...

    async def restore(self, text: str, *, path: str, target: str | None) -> str:
        """Return a text for a file with values in place of markers. `there` is the file's current content.

        Raises `SecretMarkerNotAllowed` for a marker whose value did not come from this file.
        """
        ...

    async def reseal(self, text: str, target: Mapping[str, str] = NO_FILES) -> str:
        """Return a text for a person with markers for secrets, also for those of the files in `there`, by path."""
        ...


class NoSealedValues:
    """For contexts without a vault: markers are plain text."""

    async def view(self, text: str, *, path: str) -> str:
        return text

    async def restore(self, text: str, *, path: str, target: str | None) -> str:
        return text

    async def reseal(self, text: str, target: Mapping[str, str] = NO_FILES) -> str:
        return text


NO_SEALED_VALUES = NoSealedValues()
