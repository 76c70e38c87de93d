"""Providers in the settings file: add, change, remove, and make one the default."""

from collections.abc import Iterator, Mapping
from typing import Any

from palyra import config
from palyra.cli.config.editor import Change, ConfigChange, as_table, change, table_in
from palyra.cli.options import Invocation
from palyra.cli.providers.trial import patient_client
from palyra.cli.terminal.output import say
from palyra.config import SettingSource
from palyra.core.errors import Conflict
from palyra.core.model.catalog import ToolMode, split_model_name
from palyra.gateway.client.target import is_held
from palyra.settings import ModelSettings

OURS = ("dialect", "base_url", "path", "key", "model")
"""The fields that `palyra providers add` sets."""


class ProviderInUse(Conflict):
    """The provider is used elsewhere in the settings. Nothing was changed."""


def write_provider(name: str, fields: Mapping[str, str], *, default: bool = False) -> Change:
    """Add a provider; other fields of an existing one stay. Make it the default if that is wanted."""

    def what(tables: Any) -> None:
        providers = table_in(tables, "model", "providers")
        if name not in providers:
            providers[name] = as_table(tables, fields)
        else:
            for key in OURS:
                if key in fields:
                    providers[name][key] = fields[key]
                elif key in providers[name]:
                    del providers[name][key]
        if default:
            tables["model"]["provider"] = name

    return what


def put_tools(name: str, model: str, mode: ToolMode | None) -> Change:
    """Set how a model calls tools; None restores the default."""

    def what(tables: Any) -> None:
        provider = tables["model"]["providers"][name]
        if mode is not None:
            table_in(tables, "model", "providers", name, "models", model)["tools"] = mode
        elif "tools" in (card := provider.get("models", {}).get(model, {})):
            del card["tools"]
            if not card:
                del provider["models"][model]
            if not provider["models"]:
                del provider["models"]

    return what


def make_default(name: str) -> Change:
    """Make another provider the default."""

    def what(tables: Any) -> None:
        table_in(tables, "model")["provider"] = name

    return what


def remove_provider(name: str, settings: ModelSettings, *, default: str | None = None) -> Change:
    """Remove a provider, also from the fallbacks."""
    if rule := next(_rules_with(name, settings), None):
        raise ProviderInUse(f"Rule {rule} in [[model.rules]] names {name}. Change the rule first. Nothing was changed.")
    if split_model_name(settings.provider)[0] == name and (default is None or split_model_name(default)[0] == name):
        raise ProviderInUse(
            f"{name} is the default provider. Choose another with `--default NAME`, for example `embedded`. Nothing"
            " was changed."
        )
    left = [one for one in settings.fallback if split_model_name(one)[0] != name]

    def what(tables: Any) -> None:
        del tables["model"]["providers"][name]
        if not tables["model"]["providers"]:
            del tables["model"]["providers"]
        if len(left) != len(settings.fallback):
            tables["model"]["fallback"] = left
        if default is not None:
            tables["model"]["provider"] = default

    return what


def write(invocation: Invocation, what: Change) -> ConfigChange:
    """Change the settings and make a running daemon apply them."""
    done = change(invocation.home, what)
    reload(invocation)
    return done


def reload(invocation: Invocation) -> None:
    """Make a running daemon reload the settings."""
    if is_held(invocation.home):
        patient_client(invocation).reload_config()


def warn_if_overridden(invocation: Invocation) -> None:
    """Warn if a variable of this environment overrides the default provider of the file."""
    if config.read(invocation.home).sources.get("model.provider") is SettingSource.ENVIRONMENT:
        say(f"palyra: {config.variable_of('model.provider')} is set and overrides the default provider. Unset it.")


def _rules_with(name: str, settings: ModelSettings) -> Iterator[int]:
    for number, rule in enumerate(settings.rules, start=1):
        if any(split_model_name(one)[0] == name for one in rule.models):
            yield number
