"""The short conversation in which a provider is chosen: who, with which key, and which of its models."""

from collections.abc import Sequence
from dataclasses import dataclass

import click

from palyra.cli.output import paint, say, show, table
from palyra.cli.printable import printable_line
from palyra.cli.providers_found import Found, look_around
from palyra.cli.providers_known import KNOWN, Known
from palyra.core.model import Dialect

MOST_SHOWN = 25
OTHER = "other"
FILE = "file"
_BEYOND = (
    (OTHER, "any other server that speaks like OpenAI"),
    (FILE, "a model file (GGUF) that the daemon runs by itself"),
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Whom the person means."""

    name: str
    known: Known | None = None
    base_url: str | None = None
    path: str | None = None


def ask_provider() -> Chosen:
    """Say what there is on this machine, and ask who is meant."""
    say("Looking for keys and servers on this machine …")
    found = {one.known.name: one for one in look_around()}
    # What is there comes first; a server that does not answer can not be chosen.
    names = [*found, *(name for name, one in KNOWN.items() if name not in found and not one.is_server)]
    offered = [(name, KNOWN[name].title, _words(found.get(name))) for name in names]
    offered += [(name, "", what) for name, what in _BEYOND]
    rows = [[str(number), name, title, what] for number, (name, title, what) in enumerate(offered, start=1)]
    show(table(["", "NAME", "PROVIDER", ""], rows, stretch=3))
    chosen = _one_of([name for name, _, _ in offered], "Which one", default="1" if found else None)
    if chosen == OTHER:
        url: str = click.prompt("Its address, as in http://127.0.0.1:9000/v1", err=True)
        return Chosen(_ask_name("custom"), base_url=url.strip())
    if chosen == FILE:
        path: str = click.prompt("The model file", err=True)
        return Chosen(_ask_name("local"), path=path.strip())
    there = found.get(chosen)
    return Chosen(chosen, KNOWN[chosen], base_url=there.base_url if there is not None else None)


def ask_dialect(name: str) -> Dialect:
    """Ask how a server is spoken to that nobody knows."""
    spoken = [one.value for one in Dialect if one is not Dialect.LOCAL]
    given: str = click.prompt(
        f"How is {name} spoken to", type=click.Choice(spoken), default=Dialect.OPENAI.value, err=True
    )
    return Dialect(given)


def ask_where(variable: str) -> str:
    """Ask what becomes of a key that stands in a variable: `vault` or `env`."""
    given: str = click.prompt(
        f"The key is in {variable}. Copy it to the vault, or refer to the variable",
        type=click.Choice(["vault", "env"]),
        default="vault",
        err=True,
    )
    if given == "env":
        say(f"palyra: {variable} must then be set wherever the daemon is started, also by a service.")
    return given


def ask_key(title: str, *, needed: bool) -> str:
    """Ask for a key, without showing it."""
    hint = "not shown" if needed else "not shown; empty if it wants none"
    while True:
        typed: str = click.prompt(
            f"Key for {title} ({hint})", hide_input=True, default="", show_default=False, err=True
        )
        if typed.strip() or not needed:
            return typed.strip()


def ask_model(models: Sequence[str]) -> str:
    """Ask which model is meant: by its number, its name, or a part of it that fits one only."""
    listed = list(models)
    while True:
        for number, model in enumerate(listed[:MOST_SHOWN], start=1):
            print(f"{paint(f'{number:>4}', 'dim')}  {printable_line(model)}")
        if len(listed) > MOST_SHOWN:
            print(f"      … {len(listed) - MOST_SHOWN} more; a part of a name shows those that have it")
        given: str = click.prompt("Which model", err=True, default="1" if len(listed) == 1 else None)
        given = given.strip()
        if given in models:
            return given
        if given.isdigit() and 1 <= int(given) <= min(len(listed), MOST_SHOWN):
            return listed[int(given) - 1]
        fitting = [model for model in models if given.lower() in model.lower()]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting:
            say(f"palyra: it lists no model with {printable_line(given, width=60)!r} in its name.")
        listed = fitting or list(models)


def _ask_name(default: str) -> str:
    name: str = click.prompt("What shall it be called", default=default, err=True)
    return name.strip()


def _words(found: Found | None) -> str:
    return found.words if found is not None else "needs a key"


def _one_of(names: Sequence[str], question: str, *, default: str | None) -> str:
    while True:
        given: str = click.prompt(question, default=default, err=True)
        given = given.strip()
        if given in names:
            return given
        if given.isdigit() and 1 <= int(given) <= len(names):
            return names[int(given) - 1]
        say(f"palyra: type a number from 1 to {len(names)}, or a name.")
