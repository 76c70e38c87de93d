"""Builds providers from the settings."""

import os
from importlib import import_module
from pathlib import Path
from typing import Protocol

from palyra.core.errors import Invalid
from palyra.core.model.catalog import (
    BUILT_IN,
    DialectName,
    ModelProvider,
    ModelRequired,
    ProviderNotFound,
    is_model_name,
)
from palyra.providers.base import Provider
from palyra.providers.dialect import Dialect
from palyra.providers.embedded.provider import EmbeddedProvider
from palyra.providers.scripted import ScriptedProvider
from palyra.settings import ModelSettings


class ModelNameInvalid(Invalid):
    """The model name is not valid. Use up to 200 printable characters."""


class ScriptMissing(Invalid):
    """The provider "scripted" needs a script. Name a JSON or TOML file with its rules."""


class ProviderFactory(Protocol):
    """Builds a configured provider. Nothing is requested or loaded before it is used."""

    def __call__(self, name: str, model: str | None, settings: ModelProvider, /) -> Provider: ...


def build(settings: ModelSettings, name: str, model: str | None, *, connect: ProviderFactory) -> Provider:
    """Build the provider of that name. It may read a script, so it is called first at start."""
    if model is not None:
        check_name(model)
    if name == "embedded":
        return EmbeddedProvider()
    if name == "scripted":
        if settings.script is None:
            raise ScriptMissing
        return ScriptedProvider.load(Path(os.path.expanduser(settings.script)))
    table = settings.providers.get(name)
    if table is None:
        known_name = ", ".join((*BUILT_IN, *settings.providers))
        raise ProviderNotFound(f"Unknown provider {name[:40]!r}. Known providers: {known_name}.")
    if model is None and table.model is None and table.dialect is not DialectName.LOCAL:
        raise ModelRequired(f"The provider {name!r} has no default model. Use {name}/MODEL.")
    return connect(name, model or table.model, table)


def check_name(model: str) -> None:
    """Raise unless the name is valid for a model: callers choose it."""
    if not is_model_name(model):
        raise ModelNameInvalid


def load_dialect(which: DialectName) -> Dialect:
    """Return a dialect. Its module is loaded when it is first needed."""
    speaks: Dialect = import_module(f"palyra.providers.dialects.{which.value}").DIALECT
    return speaks
