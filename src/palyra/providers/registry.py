"""Which providers there are, and how one is built from its name."""

from pathlib import Path

from palyra.core.errors import Invalid
from palyra.providers.base import Provider
from palyra.providers.embedded.provider import Embedded
from palyra.providers.scripted import Scripted

KNOWN = ("embedded", "scripted")


class UnknownProvider(Invalid):
    """There is no such provider."""


class ScriptMissing(Invalid):
    """The provider "scripted" needs a script: name a JSON or TOML file with its rules."""


def build(name: str, *, script: Path | None) -> Provider:
    """Build the provider of that name. It may read a file, so it belongs to the start and not to the event loop."""
    match name:
        case "embedded":
            return Embedded()
        case "scripted":
            if script is None:
                raise ScriptMissing
            return Scripted.load(script)
        case _:
            raise UnknownProvider(f"There is no provider {name[:40]!r}. Known are: {', '.join(KNOWN)}.")
