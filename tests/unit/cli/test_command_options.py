"""Every command takes the options that it declares: the two are tied by name only."""

import importlib
import inspect
import pkgutil

import click

import palyra.cli


def commands() -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    for module in pkgutil.walk_packages(palyra.cli.__path__, "palyra.cli."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, click.Command) and value.callback is not None:
                found[f"{module.name}.{name}"] = value
    return found


def test_every_command_takes_the_options_that_it_declares() -> None:
    all_commands = commands()
    assert len(all_commands) > 60
    for where, command in all_commands.items():
        assert command.callback is not None
        taken = set(inspect.signature(inspect.unwrap(command.callback)).parameters)
        declared = {option.name for option in command.params if option.expose_value}
        assert declared <= taken, where
