"""`palyra secrets`: values that the daemon may use but never shows."""

import sys

import click

from palyra.cli.agents import find_agent
from palyra.cli.errors import SecretInArguments
from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.terminal.output import date_time, show, show_json, table
from palyra.cli.terminal.printable import printable_line
from palyra.core.secret import (
    MAX_VALUE_BYTES,
    SealedRecord,
    SecretRecord,
    SecretScope,
    check_name,
    check_scope,
    check_value,
)
from palyra.core.text.escaping import escape_line

DEFAULT_SCOPE = SecretScope()


@click.group(cls=PalyraGroup, invoke_without_command=True)
@click.pass_context
def secrets(ctx: click.Context) -> None:
    """Keep, list and delete secrets; without a command, the list. Values go in and are never shown.

    A secret with a host is sent there by the agent's http.fetch, in a header that the model does not see.

    Secrets that were found in messages and results are sealed: `palyra secrets sealed` lists them.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_secrets)


@secrets.command("list")
@click.pass_obj
def list_secrets(invocation: Invocation) -> None:
    """List secrets by name, with what each is for and when it was last used."""
    found = invocation.client.secrets.all()
    if invocation.json:
        show_json({"secrets": found})
    elif not found:
        print("There are no secrets. `palyra secrets set NAME` keeps one.")
    else:
        rows = [[s.name, _use(s), date_time(s.updated_at), date_time(s.last_used_at) or "never"] for s in found]
        show(table(["NAME", "FOR", "SET", "USED"], rows, stretch=1))


@secrets.command("set")
@click.argument("name")
@click.argument("value", nargs=-1, type=click.UNPROCESSED, metavar="")
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="Send it to this host, as in api.example.org.")
@click.option("--header", default=DEFAULT_SCOPE.header, show_default=True, help="The header in which it is sent.")
@click.option(
    "--format", "form", default=DEFAULT_SCOPE.format, show_default=True, help="How the header reads; {} is the value."
)
@click.option(
    "--agent", "agents", multiple=True, metavar="AGENT", help="Only for this agent; for all if none is named."
)
@click.option("--tool", "tools", multiple=True, metavar="TOOL", help="Only for this tool; for all if none is named.")
@click.option("--keep-newline", is_flag=True, help="Keep the line break at the end of what is piped in.")
@click.pass_obj
def set_secret(
    invocation: Invocation,
    name: str,
    *,
    value: tuple[str, ...],
    hosts: tuple[str, ...],
    header: str,
    form: str,
    agents: tuple[str, ...],
    tools: tuple[str, ...],
    keep_newline: bool,
) -> None:
    """Keep a secret under a name, in the place of an earlier one.

    The value is asked for without being shown, or read from stdin: 64 KiB at most, any bytes. It is never an argument.
    """
    if value:
        raise SecretInArguments(
            "Other programs can see a value on the command line, and the shell keeps it in its history."
            " Nothing was stored. Replace the secret, and type the new one when asked, or pipe it in."
        )
    check_name(name)
    # Before the value is asked for, so that it need not be typed twice.
    scope = check_scope(SecretScope(hosts=hosts, header=header, format=form, tools=tools))
    chosen = tuple(find_agent(invocation.client, agent).agent_id for agent in agents)
    scope = check_scope(SecretScope(hosts=scope.hosts, header=header, format=form, agents=chosen, tools=scope.tools))
    read = check_value(_value(name, keep_newline=keep_newline), scope)
    kept = invocation.client.secrets.set(name, read, scope)
    if invocation.json:
        show_json({"secret": kept})
    else:
        print(f"{kept.name} is kept, {_use(kept)}.")


@secrets.command("delete")
@click.argument("name")
@click.pass_obj
def delete_secret(invocation: Invocation, name: str) -> None:
    """Forget a secret. Whatever needs it fails from now on."""
    invocation.client.secrets.delete(name)
    if invocation.json:
        show_json({"deleted": name})
    else:
        print(f"The secret {printable_line(name)} is gone.")


@secrets.command("sealed")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000), help="How many to list.")
@click.pass_obj
def list_sealed(invocation: Invocation, *, limit: int) -> None:
    """List secrets that were found in messages and results, with where each came from."""
    found = invocation.client.secrets.sealed(limit=limit)
    if invocation.json:
        show_json({"sealed": found})
    elif not found:
        print("No secret was found in a message or a result.")
    else:
        rows = [[one.sealed_id, date_time(one.created_at), _sources(one)] for one in found]
        show(table(["MARKER", "SINCE", "FROM"], rows, stretch=2))


@secrets.command("reveal")
@click.argument("marker")
@click.pass_obj
def reveal(invocation: Invocation, marker: str) -> None:
    """Show the value that a marker stands for. MARKER is `[sealed:…]`, or its id."""
    value = invocation.client.secrets.reveal(_marker_id(marker))
    if invocation.json:
        show_json({"value": value})
    else:
        show([escape_line(line) for line in value.splitlines()])


@secrets.command("forget")
@click.argument("marker")
@click.pass_obj
def forget(invocation: Invocation, marker: str) -> None:
    """Delete the value that a marker stands for, for good. The marker stays, and stands for nothing."""
    sealed_id = _marker_id(marker)
    invocation.client.secrets.forget(sealed_id)
    if invocation.json:
        show_json({"forgotten": sealed_id})
    else:
        print(f"The value of {printable_line(sealed_id)} is gone.")


def _marker_id(text: str) -> str:
    return text.removeprefix("[sealed:").removesuffix("]")


def _sources(record: SealedRecord) -> str:
    told = [origin.partition(":")[2] if origin.startswith("file:") else origin for origin in record.origins]
    return escape_line(", ".join("the call itself" if one.startswith("call:") else one for one in told))


def _value(name: str, *, keep_newline: bool) -> bytes:
    if sys.stdin is not None and sys.stdin.isatty():
        typed: str = click.prompt(
            f"Value of {name} (not shown)", hide_input=True, default="", show_default=False, err=True
        )
        return typed.encode()
    # A little more than the maximum is enough to know that it is too long.
    data = sys.stdin.buffer.read(MAX_VALUE_BYTES + 8) if sys.stdin is not None else b""
    return data if keep_newline else data.removesuffix(b"\n").removesuffix(b"\r")


def _use(secret: SecretRecord) -> str:
    """Return what a secret is for."""
    scope = secret.scope
    if not scope.hosts:
        return f"for the configuration (vault:{secret.name})"
    parts = [f"sent to {', '.join(scope.hosts)} as {scope.header}: {scope.format}"]
    if scope.agents:
        parts.append(f"by {len(scope.agents)} agents" if len(scope.agents) > 1 else f"by agent {scope.agents[0]}")
    if scope.tools:
        parts.append(f"in {', '.join(scope.tools)}")
    return ", ".join(parts)
