"""The options that every command accepts, before or after its name, and the invocation that they form."""

from collections.abc import Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from palyra.gateway.client.client import Client
    from palyra.gateway.records.daemon import DaemonStatus
    from palyra.home import Home
    from palyra.settings import Settings


STATUS_SECONDS = 5.0
MAX_REPORTED_CHARS = 300
"""The help of a command is one sentence; none is longer."""


class Invocation:
    """The shared options of an invocation, for all commands."""

    def __init__(self) -> None:
        self.home_option: str | None = None
        self.profile: str | None = None
        self.json = False
        self.debug = False

    @cached_property
    def home(self) -> "Home":
        """The home that the options and the environment name."""
        from palyra.home import find_home

        return find_home(home=self.home_option, profile=self.profile)

    @cached_property
    def settings(self) -> "Settings":
        """The settings of the home."""
        from palyra.config import load

        return load(self.home)

    @cached_property
    def client(self) -> "Client":
        """A client of the home's daemon."""
        from palyra.gateway.client.client import Client
        from palyra.gateway.client.target import find_target

        return Client(lambda: find_target(self.home))

    def client_within(self, seconds: float) -> "Client":
        """Return a client of the home's daemon that waits so long for an answer."""
        from palyra.gateway.client.client import Client
        from palyra.gateway.client.target import find_target

        return Client(lambda: find_target(self.home), answer_seconds=seconds)

    def ask_status(self) -> "DaemonStatus":
        """Return the daemon's status, with a short timeout: whether it answers is part of the result."""
        return self.client_within(STATUS_SECONDS).status()

    def report(self, value: object, text: str | Iterable[str]) -> None:
        """Print a result: the value as JSON if that was requested, otherwise the text or its lines."""
        from palyra.cli.terminal.output import show

        if not self.printed_json(value):
            show([text] if isinstance(text, str) else text)

    def printed_json(self, value: object) -> bool:
        """Print the value as JSON if that was requested; return whether it was."""
        from palyra.cli.terminal.output import show_json

        if self.json:
            show_json(value)
        return self.json


class PalyraCommand(click.Command):
    """A command that accepts the shared options. Its function gets the invocation that they form."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "callback": click.pass_obj(kwargs["callback"])})
        share_options(self)


class PalyraGroup(click.Group):
    """A group that accepts the shared options, as do its commands."""

    command_class = PalyraCommand

    def __init__(self, *args: Any, default: str | None = None, **kwargs: Any) -> None:
        """`default` is the command that runs if none is named."""
        if default is not None:
            kwargs |= {"invoke_without_command": True, "callback": partial(self._run_default, default)}
        super().__init__(*args, **kwargs)
        share_options(self)

    def _run_default(self, name: str) -> None:
        ctx = click.get_current_context()
        if ctx.invoked_subcommand is None:
            ctx.invoke(self.commands[name])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Overrides the group's own method, which shortens the help of a command to fit one row.
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, one.get_short_help_str(MAX_REPORTED_CHARS))
            for name, one in named
            if one is not None and not one.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def share_options(command: click.Command) -> None:
    """Add --home, --profile and --json to the command. The last one given counts, wherever it is."""
    command.params.extend(
        (
            click.Option(
                ["--home"],
                metavar="DIR",
                expose_value=False,
                callback=_keep_home,
                help="Home folder. Default: PALYRA_HOME, or ~/.palyra.",
            ),
            click.Option(
                ["--profile"],
                metavar="NAME",
                expose_value=False,
                callback=_keep_profile,
                help="Use a separate home folder for this profile.",
            ),
            click.Option(
                ["--json"], is_flag=True, expose_value=False, callback=_keep_json, help="Print JSON instead of tables."
            ),
        )
    )


def _keep_home(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Invocation).home_option = value


def _keep_profile(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Invocation).profile = value


def _keep_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Invocation).json = True
