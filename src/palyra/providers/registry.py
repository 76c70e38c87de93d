"""Which providers there are, and how one is built from the settings."""

import os
from importlib import import_module
from pathlib import Path
from typing import Protocol

from palyra.core.errors import Invalid
from palyra.core.model import BUILT_IN, Dialect, ModelProvider, is_model_name
from palyra.providers.base import Provider
from palyra.providers.dialect import Speaks
from palyra.providers.embedded.provider import Embedded
from palyra.providers.scripted import Scripted
from palyra.settings import ModelSettings


class UnknownProvider(Invalid):
    """There is no such provider."""


class ModelNotNamed(Invalid):
    """The provider has no model of its own: ask for PROVIDER/MODEL."""


class ModelNameInvalid(Invalid):
    """No model is called that: a name has up to 200 characters, all of which can be seen."""


class ScriptMissing(Invalid):
    """The provider "scripted" needs a script: name a JSON or TOML file with its rules."""


class Connect(Protocol):
    """Makes a provider of the configuration. Nothing is asked or loaded before it is used."""

    def __call__(self, name: str, model: str | None, settings: ModelProvider, /) -> Provider: ...


def build(settings: ModelSettings, name: str, model: str | None, *, connect: Connect) -> Provider:
    """Build the provider of that name. It may read a script, so the first time belongs to the start."""
    if model is not None:
        check_name(model)
    if name == "embedded":
        return Embedded()
    if name == "scripted":
        if settings.script is None:
            raise ScriptMissing
        return Scripted.load(Path(os.path.expanduser(settings.script)))
    table = settings.providers.get(name)
    if table is None:
        known = ", ".join((*BUILT_IN, *settings.providers))
        raise UnknownProvider(f"There is no provider {name[:40]!r}. Known are: {known}.")
    if model is None and table.model is None and table.dialect is not Dialect.LOCAL:
        raise ModelNotNamed(f"The provider {name!r} has no model of its own: ask for {name}/MODEL.")
    return connect(name, model or table.model, table)


def check_name(model: str) -> None:
    """Raise unless a model can have that name: callers choose it."""
    if not is_model_name(model):
        raise ModelNameInvalid


def dialect(which: Dialect) -> Speaks:
    """Return how such a provider is spoken to. The module is loaded when it is first needed."""
    speaks: Speaks = import_module(f"palyra.providers.{which.value}").DIALECT
    return speaks
