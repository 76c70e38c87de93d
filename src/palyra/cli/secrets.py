"""`palyra secrets`: values that the daemon may use but never shows."""

import sys

import click

from palyra.cli.agents import find_agent
from palyra.cli.errors import SecretInArguments
from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.terminal.output import date_time, say, table
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


@click.group(cls=PalyraGroup, default="list")
def secrets() -> None:
    """Store, list and delete secrets. Without a command, lists them. Stored values are never shown.

    With --host, the agent's http.fetch sends the secret to that host in a header that the model does not see.

    Secrets found in messages and tool results are sealed in the vault. List them with `palyra secrets sealed`.
    """


@secrets.command("list")
def list_secrets(invocation: Invocation) -> None:
    """List secrets with their purpose and last use."""
    secret_records = invocation.client.secrets.all()
    rows = [[s.name, _use(s), date_time(s.updated_at), date_time(s.last_used_at) or "never"] for s in secret_records]
    listed = table(["NAME", "PURPOSE", "SET", "LAST USED"], rows, stretch=1)
    none = "No secrets. Store one with `palyra secrets set NAME`."
    invocation.report({"secrets": secret_records}, listed if rows else none)


@secrets.command("set")
@click.argument("name")
@click.argument("value", nargs=-1, type=click.UNPROCESSED, metavar="")
@click.option(
    "--host", "hosts", multiple=True, metavar="HOST", help="Send the secret to this host, such as api.example.org."
)
@click.option("--header", default=DEFAULT_SCOPE.header, show_default=True, help="Header that carries the secret.")
@click.option(
    "--format", "form", default=DEFAULT_SCOPE.format, show_default=True, help="Format of the header; {} is the secret."
)
@click.option("--agent", "agents", multiple=True, metavar="AGENT", help="Only for this agent. Default: all agents.")
@click.option("--tool", "tools", multiple=True, metavar="TOOL", help="Only for this tool. Default: all tools.")
@click.option("--keep-newline", is_flag=True, help="Keep the newline at the end of piped input.")
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
    """Store a secret under a name. Replaces an existing one.

    Prompts for the value without showing it, or reads it from stdin: up to 64 KiB, any bytes. The value cannot be given
    as an argument.
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
    secret_record = invocation.client.secrets.set(name, read, scope)
    invocation.report({"secret": secret_record}, f"Stored {secret_record.name}, {_use(secret_record)}.")


@secrets.command("delete")
@click.argument("name")
def delete_secret(invocation: Invocation, name: str) -> None:
    """Delete a secret. Everything that needs it fails from now on."""
    invocation.client.secrets.delete(name)
    invocation.report({"deleted": name}, f"Deleted secret {printable_line(name)}.")


@secrets.group("sealed", cls=PalyraGroup, default="list")
def sealed() -> None:
    """List, reveal and delete secrets that were found in messages and tool results. Without a command, lists them."""


@sealed.command("list")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000), help="Maximum number of secrets.")
def list_sealed(invocation: Invocation, *, limit: int = 50) -> None:
    """List sealed secrets with their source."""
    page = invocation.client.secrets.sealed(limit=limit)
    rows = [[one.sealed_id, date_time(one.created_at), _sources(one)] for one in page.sealed]
    listed = table(["MARKER", "SINCE", "SOURCE"], rows, stretch=2)
    invocation.report(page, listed if rows else "No sealed secrets.")
    if page.next_cursor and not invocation.json:
        say(f"Showing the first {limit}. Use --limit to see more.")


@sealed.command("reveal")
@click.argument("marker")
def reveal(invocation: Invocation, marker: str) -> None:
    """Show the secret behind a marker. MARKER is `[sealed:…]` or its id."""
    value = invocation.client.secrets.reveal(_marker_id(marker))
    invocation.report({"value": value}, [escape_line(line) for line in value.splitlines()])


@sealed.command("delete")
@click.argument("marker")
def delete_sealed(invocation: Invocation, marker: str) -> None:
    """Permanently delete the secret behind a marker. The marker stays in the texts."""
    sealed_id = _marker_id(marker)
    invocation.client.secrets.delete_sealed(sealed_id)
    invocation.report({"deleted": sealed_id}, f"Deleted the value of {printable_line(sealed_id)}.")


def _marker_id(text: str) -> str:
    return text.removeprefix("[sealed:").removesuffix("]")


def _sources(record: SealedRecord) -> str:
    lines = [origin.partition(":")[2] if origin.startswith("file:") else origin for origin in record.origins]
    return escape_line(", ".join("call arguments" if one.startswith("call:") else one for one in lines))


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
