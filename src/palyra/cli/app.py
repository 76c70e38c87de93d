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
    "down": ("palyra.cli.daemon.lifecycle:down", "Stop the daemon; unfinished runs go on at the next start."),
    "restart": ("palyra.cli.daemon.lifecycle:restart", "Stop the daemon and start it again."),
    "status": ("palyra.cli.daemon.lifecycle:status", "Show how the daemon stands."),
    "stop": ("palyra.cli.stop:stop", "Stop all work at once, until it is resumed."),
    "resume": ("palyra.cli.stop:resume", "Let work go on that was stopped."),
    "logs": ("palyra.cli.daemon.logs:logs", "Show what the daemon has logged."),
    "chat": ("palyra.cli.chat.command:chat", "Talk to the agent; a piped-in message gets its answer on stdout."),
    "run": ("palyra.cli.chat.run_command:run", "Send one message and print the answer."),
    "sessions": ("palyra.cli.sessions:sessions", "List, search and tidy up conversations."),
    "runs": ("palyra.cli.runs:runs", "Look at runs and their tapes; attach to one or cancel it."),
    "why": ("palyra.cli.why:why", "Trace a run, a call, a message or a file back to its causes."),
    "usage": ("palyra.cli.usage:usage", "See what models were used for, what it cost, and how the budgets stand."),
    "approvals": ("palyra.cli.approvals.commands:approvals", "See what waits for your word, and answer."),
    "files": ("palyra.cli.files:files", "See what agents changed in files, and bring a file back."),
    "agents": ("palyra.cli.agents:agents", "List, make, change and bind agents."),
    "tokens": ("palyra.cli.tokens:tokens", "List, make and revoke tokens."),
    "secrets": ("palyra.cli.secrets:secrets", "Keep, list and delete secrets; their values are never shown."),
    "providers": ("palyra.cli.providers.commands:providers", "Add, try and choose models; see why one was asked."),
    "policy": ("palyra.cli.policy.commands:policy", "See what the policies say about calls; check, try and test them."),
    "mcp": ("palyra.cli.mcp:mcp", "See MCP servers, and decide which of their tools agents may use."),
    "plugins": ("palyra.cli.plugins:plugins", "Install and remove plugins: tools that are WebAssembly modules."),
    "sandbox": ("palyra.cli.sandbox:sandbox", "See what programs are kept from on this machine."),
    "config": ("palyra.cli.config.commands:config", "Check and show the settings; which daemon they lead to."),
    "journal": ("palyra.cli.journal.commands:journal", "Prove that nothing recorded was changed; export it."),
    "backup": ("palyra.cli.backup:backup", "Copy the journal, check a copy, bring one back."),
    "service": ("palyra.cli.daemon.service:service", "Have systemd or launchd run the daemon."),
    "completion": ("palyra.cli.completion:completion", "Print the script that lets a shell finish commands."),
    "doctor": ("palyra.cli.doctor.command:doctor", "Check this installation and say how to mend it."),
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


@click.group(
    cls=LazyGroup, invoke_without_command=True, epilog="`palyra COMMAND --help` tells more about each command."
)
@click.version_option(VERSION, "--version", message="palyra %(version)s", help="Show the version.")
@click.option("--debug", is_flag=True, envvar="PALYRA_DEBUG", hidden=True, help="Show tracebacks.")
@click.pass_context
def palyra(ctx: click.Context, debug: bool) -> None:
    """A self-hosted daemon for AI agents whose every step is on a durable tape.

    Without a command it says where things stand and what to do next.
    """
    invocation = ctx.ensure_object(Invocation)
    invocation.debug = debug
    if ctx.invoked_subcommand is None:
        from palyra.cli.overview import show_overview

        show_overview(invocation)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process with its exit code."""
    # Set by the script of `palyra completion` when a shell requests completions; a person never sets it.
    if asked := os.environ.get("_PALYRA_COMPLETE"):
        from palyra.cli.completion import answer

        sys.exit(answer(palyra, asked))
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
