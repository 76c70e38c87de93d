"""Providers in the settings' file: put in, changed, taken out, and made the one that answers."""

from collections.abc import Iterator, Mapping
from typing import Any

from palyra import config
from palyra.cli.config_file import Change, Written, as_table, change, table_in
from palyra.cli.options import Invocation
from palyra.cli.output import say
from palyra.cli.providers_trial import admin
from palyra.config import Source
from palyra.core.errors import Conflict
from palyra.core.model import ToolMode, split
from palyra.gateway.target import is_held
from palyra.settings import ModelSettings

OURS = ("dialect", "base_url", "path", "key", "model")
"""What `palyra providers add` says of a provider."""


class InUse(Conflict):
    """The provider is still named elsewhere in the settings. Nothing was changed."""


def put(name: str, fields: Mapping[str, str], *, default: bool = False) -> Change:
    """Write a provider in; of one that has that name already, what else is set stays. Let it answer if that is
    wanted."""

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
    """Set how a model calls tools; None leaves that to its default."""

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
    """Let another one answer."""

    def what(tables: Any) -> None:
        table_in(tables, "model")["provider"] = name

    return what


def take_out(name: str, settings: ModelSettings, *, default: str | None = None) -> Change:
    """Take a provider out, also from those that answer when another can not."""
    if rule := next(_rules_with(name, settings), None):
        raise InUse(f"Rule {rule} in [[model.rules]] names {name}. Change the rule first. Nothing was changed.")
    if split(settings.provider)[0] == name and (default is None or split(default)[0] == name):
        raise InUse(
            f"{name} is the one that answers. Name another with `--default NAME`, be it embedded. Nothing was changed."
        )
    left = [one for one in settings.fallback if split(one)[0] != name]

    def what(tables: Any) -> None:
        del tables["model"]["providers"][name]
        if not tables["model"]["providers"]:
            del tables["model"]["providers"]
        if len(left) != len(settings.fallback):
            tables["model"]["fallback"] = left
        if default is not None:
            tables["model"]["provider"] = default

    return what


def write(invocation: Invocation, what: Change) -> Written:
    """Make a change to the settings and have a daemon that runs take it over."""
    done = change(invocation.home, what)
    reload(invocation)
    return done


def reload(invocation: Invocation) -> None:
    """Have the daemon, if one runs, read the settings again."""
    if is_held(invocation.home):
        admin(invocation).ask(dict[str, Any], "POST", "/config/reload", body={})


def warn_if_overridden(invocation: Invocation) -> None:
    """Say so if a variable of this environment decides who answers, whatever the file says."""
    if config.read(invocation.home).sources.get("model.provider") is Source.ENVIRONMENT:
        say(f"palyra: {config.variable_of('model.provider')} is set and decides who answers; take it away.")


def _rules_with(name: str, settings: ModelSettings) -> Iterator[int]:
    for number, rule in enumerate(settings.rules, start=1):
        if any(split(one)[0] == name for one in rule.models):
            yield number
