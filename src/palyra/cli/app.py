"""The `palyra` command: its options, its commands by name, and its error handling."""

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click
from click.exceptions import NoArgsIsHelpError, NoSuchCommand

from palyra.cli.options import Invocation, PalyraGroup
from palyra.core.version import VERSION

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "up": ("palyra.cli.daemon.lifecycle:up", "Start the daemon in the background."),
    "down": ("palyra.cli.daemon.lifecycle:down", "Stop the daemon. Unfinished runs resume at the next start."),
    "restart": ("palyra.cli.daemon.lifecycle:restart", "Restart the daemon."),
    "status": ("palyra.cli.daemon.lifecycle:status", "Show daemon status."),
    "stop": ("palyra.cli.stop:stop", "Emergency stop: stop all work until `palyra resume`."),
    "resume": ("palyra.cli.stop:resume", "Resume work after `palyra stop`."),
    "logs": ("palyra.cli.daemon.logs:logs", "Show the daemon's log."),
    "chat": ("palyra.cli.chat.command:chat", "Chat with the agent, or send it a message from stdin."),
    "run": ("palyra.cli.chat.run_command:run", "Send one message and print the answer."),
    "sessions": ("palyra.cli.sessions:sessions", "List, search, export and archive sessions."),
    "runs": ("palyra.cli.runs:runs", "List runs, show their tapes, attach to a run or cancel it."),
    "why": ("palyra.cli.why:why", "Trace a run, call, entry or file back to its causes."),
    "usage": ("palyra.cli.usage:usage", "Show model usage, costs and budgets."),
    "approvals": ("palyra.cli.approvals.commands:approvals", "List and answer approval requests."),
    "files": ("palyra.cli.files:files", "Show file changes made by agents, and restore files."),
    "agents": ("palyra.cli.agents:agents", "Create, change and bind agents."),
    "tokens": ("palyra.cli.tokens:tokens", "Create, list and revoke API tokens."),
    "secrets": ("palyra.cli.secrets:secrets", "Store, list and delete secrets."),
    "providers": ("palyra.cli.providers.commands:providers", "Add, test and choose model providers."),
    "policy": ("palyra.cli.policy.commands:policy", "Check, explain and test policies."),
    "mcp": ("palyra.cli.mcp:mcp", "List MCP servers and choose which of their tools agents may use."),
    "plugins": ("palyra.cli.plugins:plugins", "Install and remove plugins (tools in WebAssembly)."),
    "sandbox": ("palyra.cli.sandbox:sandbox", "Check which sandbox tiers work on this machine."),
    "config": ("palyra.cli.config.commands:config", "Check, show and reload settings."),
    "journal": ("palyra.cli.journal.commands:journal", "Verify, export and repair the journal."),
    "backup": ("palyra.cli.backup:backup", "Create, verify and restore backups."),
    "service": ("palyra.cli.daemon.service:service", "Run the daemon as a systemd or launchd service."),
    "completion": ("palyra.cli.completion:completion", "Print a shell completion script."),
    "doctor": ("palyra.cli.doctor.command:doctor", "Check this installation and suggest fixes."),
}


class LazyGroup(PalyraGroup):
    """Knows its commands by name and one line of help, and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            raise NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        # Overrides the group's own method, which would import every command to get its help.
        named = [(name, text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name, help=text) for name, text in named] + options

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, invoke_without_command=True, epilog="Run `palyra COMMAND --help` for more about a command.")
@click.version_option(VERSION, "--version", message="palyra %(version)s", help="Show the version.")
@click.option("--debug", is_flag=True, envvar="PALYRA_DEBUG", hidden=True, help="Show tracebacks.")
@click.pass_context
def palyra(ctx: click.Context, debug: bool) -> None:
    """A self-hosted daemon for AI agents that records every step.

    Without a command, shows the current state and what to do next.
    """
    invocation = ctx.ensure_object(Invocation)
    invocation.debug = debug
    if ctx.invoked_subcommand is None:
        from palyra.cli.overview import show_overview

        show_overview(invocation)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process with its exit code."""
    # Set by the script of `palyra completion` when a shell requests completions; a person never sets it.
    if request := os.environ.get("_PALYRA_COMPLETE"):
        from palyra.cli.completion import answer

        sys.exit(answer(palyra, request))
    # What a command writes into the home must not be readable by others, whatever the shell's umask is.
    os.umask(os.umask(0o077) | 0o022)
    sys.exit(run(palyra, args, prog="palyra"))


def run(command: click.Command, args: Sequence[str] | None, *, prog: str) -> int:
    """Run a command, print its errors in one line each, and return the exit code."""
    _repair_streams()
    invocation = Invocation()
    try:
        code = _invoke(command, sys.argv[1:] if args is None else args, prog=prog, invocation=invocation)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Python flushes stdout once more at exit, and would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except click.ClickException as error:
        return _print_usage_error(error, prog=prog)
    except (click.Abort, KeyboardInterrupt):
        return 130
    except Exception as error:
        from palyra.cli.errors import print_error

        if invocation.debug:
            raise
        return print_error(error, invocation=invocation, prog=prog)


def _repair_streams() -> None:
    """Make sure that everything can be printed: a closed stream or a missing character must not end the program."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _invoke(command: click.Command, args: Sequence[str], *, prog: str, invocation: Invocation) -> int:
    # Not `command.main`: it handles a closed pipe and Ctrl-C in its own way.
    try:
        with command.make_context(prog, list(args), obj=invocation) as context:
            code = command.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    return code if isinstance(code, int) else 0


def _print_usage_error(error: click.ClickException, *, prog: str) -> int:
    if isinstance(error, NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return 2
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else prog
    text = error.format_message()
    text = text if text.endswith((".", "?")) else f"{text}."
    click.echo(f"{prog}: {text} See `{path} --help`. [usage]", err=True)
    return 2
