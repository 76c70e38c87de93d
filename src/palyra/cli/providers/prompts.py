"""The prompts for adding a provider: which one, with which key, and which of its models."""

from collections.abc import Sequence
from dataclasses import dataclass

import click

from palyra.cli.providers.discovery import DiscoveredProvider, discover_providers
from palyra.cli.providers.presets import PROVIDER_PRESETS, ProviderPreset
from palyra.cli.terminal.output import paint, say, show, table
from palyra.cli.terminal.printable import printable_line
from palyra.core.model.catalog import DialectName

MAX_SHOWN = 25
OTHER = "other"
FILE = "file"
_BEYOND = (
    (OTHER, "another server with an OpenAI-compatible API"),
    (FILE, "a model file (GGUF) that the daemon runs"),
)


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """The provider that the person chose."""

    name: str
    preset: ProviderPreset | None = None
    base_url: str | None = None
    path: str | None = None


def ask_provider() -> ProviderChoice:
    """Show the discovered providers, and ask which one to add."""
    say("Looking for API keys and servers on this machine …")
    discovered_providers = {one.preset.name: one for one in discover_providers()}
    # Discovered providers come first; a server that does not answer cannot be chosen.
    names = [
        *discovered_providers,
        *(name for name, one in PROVIDER_PRESETS.items() if name not in discovered_providers and not one.is_server),
    ]
    offered = [(name, PROVIDER_PRESETS[name].title, _summary(discovered_providers.get(name))) for name in names]
    offered += [(name, "", what) for name, what in _BEYOND]
    rows = [[str(number), name, title, what] for number, (name, title, what) in enumerate(offered, start=1)]
    show(table(["", "NAME", "PROVIDER", ""], rows, stretch=3))
    chosen = _one_of([name for name, _, _ in offered], "Provider", default="1" if discovered_providers else None)
    if chosen == OTHER:
        url: str = click.prompt("Base URL, for example http://127.0.0.1:9000/v1", err=True)
        return ProviderChoice(_ask_name("custom"), base_url=url.strip())
    if chosen == FILE:
        path: str = click.prompt("Model file", err=True)
        return ProviderChoice(_ask_name("local"), path=path.strip())
    discovered_provider = discovered_providers.get(chosen)
    return ProviderChoice(
        chosen,
        PROVIDER_PRESETS[chosen],
        base_url=discovered_provider.base_url if discovered_provider is not None else None,
    )


def ask_dialect(name: str) -> DialectName:
    """Ask for the dialect of an unknown server."""
    spoken = [one.value for one in DialectName if one is not DialectName.LOCAL]
    value: str = click.prompt("API type", type=click.Choice(spoken), default=DialectName.OPENAI.value, err=True)
    return DialectName(value)


def ask_where(variable: str) -> str:
    """Ask where to keep a key that is in a variable: `vault` or `env`."""
    value: str = click.prompt(
        f"Found an API key in {variable}. Copy it to the vault, or refer to the variable",
        type=click.Choice(["vault", "env"]),
        default="vault",
        err=True,
    )
    if value == "env":
        say(f"palyra: {variable} must be set wherever the daemon is started, for example in its service.")
    return value


def ask_key(title: str, *, needed: bool) -> str:
    """Ask for a key, without showing it."""
    hint = "not shown" if needed else "not shown; leave empty if none is needed"
    while True:
        typed: str = click.prompt(
            f"API key for {title} ({hint})", hide_input=True, default="", show_default=False, err=True
        )
        if typed.strip() or not needed:
            return typed.strip()


def ask_model(models: Sequence[str]) -> str:
    """Ask for a model: by its number, its name, or a part that matches only one."""
    listed = list(models)
    while True:
        for number, model in enumerate(listed[:MAX_SHOWN], start=1):
            print(f"{paint(f'{number:>4}', 'dim')}  {printable_line(model)}")
        if len(listed) > MAX_SHOWN:
            print(f"      … {len(listed) - MAX_SHOWN} more; type part of a name to filter")
        value: str = click.prompt("Model", err=True, default="1" if len(listed) == 1 else None)
        value = value.strip()
        if value in models:
            return value
        if value.isdigit() and 1 <= int(value) <= min(len(listed), MAX_SHOWN):
            return listed[int(value) - 1]
        fitting = [model for model in models if value.lower() in model.lower()]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting:
            say(f"palyra: no model name contains {printable_line(value, width=60)!r}.")
        listed = fitting or list(models)


def _ask_name(default: str) -> str:
    name: str = click.prompt("Name", default=default, err=True)
    return name.strip()


def _summary(discovered_provider: DiscoveredProvider | None) -> str:
    return discovered_provider.summary if discovered_provider is not None else "needs an API key"


def _one_of(names: Sequence[str], question: str, *, default: str | None) -> str:
    while True:
        value: str = click.prompt(question, default=default, err=True)
        value = value.strip()
        if value in names:
            return value
        if value.isdigit() and 1 <= int(value) <= len(names):
            return names[int(value) - 1]
        say(f"palyra: type a number from 1 to {len(names)}, or a name.")
