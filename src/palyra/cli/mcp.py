"""`palyra mcp`: the MCP servers of the settings, and decisions about their tools."""

import json
import sys
import time

import click

from palyra.cli.errors import ConfirmationRequired
from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.run_view.approval_prompt import detail_rows
from palyra.cli.terminal.output import facts, paint, screen_width, show, table
from palyra.cli.terminal.printable import printable_line
from palyra.core.mcp import McpServerState, McpServerStatus, McpTool, McpToolNotFound, McpToolState
from palyra.core.text.escaping import escape, escape_line
from palyra.gateway.client.http_mcp import McpCalls

RESPONSE_TIMEOUT_SECONDS = 90.0
"""A server that is being started, and has to download itself first, may take long to answer."""
UNDECIDED = (McpToolState.NEW, McpToolState.CHANGED)
_COLOURS = {
    McpToolState.ACCEPTED: "green",
    McpToolState.NEW: "yellow",
    McpToolState.CHANGED: "red",
    McpToolState.UNUSABLE: "red",
}


@click.group(cls=PalyraGroup, default="list")
def mcp() -> None:
    """List MCP servers and choose which of their tools agents may use. Without a command, lists the servers.

    Servers are configured in config.toml as [mcp.servers.NAME]. Agents can use a tool after you accept it, until the
    server changes it.
    """


@mcp.command("list")
def list_servers(invocation: Invocation) -> None:
    """List servers with their state and number of tools."""
    statuses = _calls(invocation).list()
    if invocation.printed_json({"servers": statuses}):
        return
    if not statuses:
        print("No MCP servers. Add one to config.toml as [mcp.servers.NAME], then run `palyra config reload`.")
        return
    rows = [[one.name, _state(one), _counts(one), one.address] for one in statuses]
    show(table(["SERVER", "STATUS", "TOOLS", "ADDRESS"], rows, stretch=3))
    for one in statuses:
        if one.reason:
            print(f"{one.name}: {printable_line(one.reason)}")
        if one.count(*UNDECIDED):
            print(f"{one.name}: `palyra mcp show {one.name}`, then `palyra mcp accept {one.name}` or `reject`.")


@mcp.command("show")
@click.argument("server")
@click.argument("tools", nargs=-1, metavar="[TOOL]...")
def show_server(invocation: Invocation, server: str, *, tools: tuple[str, ...]) -> None:
    """Show a server and its tools: their descriptions, and what changed since you accepted them."""
    status = _calls(invocation).get(server)
    if invocation.printed_json(status):
        return
    show(_about(status))
    for tool in status.tools:
        if not tools or tool.tool in tools or tool.name in tools:
            print()
            _show_tool(tool)


@mcp.command("accept")
@click.argument("server")
@click.argument("tools", nargs=-1, metavar="[TOOL]...")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def accept(invocation: Invocation, server: str, *, tools: tuple[str, ...], yes: bool) -> None:
    """Accept tools of a server in their current version. Without TOOL, all that are new or changed."""
    chosen = _chosen(_calls(invocation).get(server), tools)
    if not yes:
        for tool in chosen:
            _show_tool(tool)
            print()
        if sys.stdin is None or not sys.stdin.isatty():
            raise ConfirmationRequired(
                "Nothing was accepted: no terminal is attached to confirm it. Pass `--yes` once you have read it."
            )
        click.confirm(
            f"Let agents use {'this tool' if len(chosen) == 1 else f'these {len(chosen)} tools'}", abort=True, err=True
        )
    status = _calls(invocation).accept(server, _digests(chosen))
    _print_decision(invocation, status, "Accepted", chosen)


@mcp.command("reject")
@click.argument("server")
@click.argument("tools", nargs=-1, metavar="[TOOL]...")
def reject(invocation: Invocation, server: str, *, tools: tuple[str, ...]) -> None:
    """Reject tools of a server, in this and later versions. Without TOOL, all that are new or changed."""
    chosen = _chosen(_calls(invocation).get(server), tools)
    status = _calls(invocation).reject(server, _digests(chosen))
    _print_decision(invocation, status, "Rejected", chosen)


@mcp.command("restart")
@click.argument("server")
def restart(invocation: Invocation, server: str) -> None:
    """Restart a server now, without waiting for the next retry."""
    status = _calls(invocation).restart(server)
    invocation.report(status, f"Starting {status.name}. Wait for it with `palyra mcp test {status.name}`.")


@mcp.command("test")
@click.argument("server")
def test(invocation: Invocation, server: str) -> None:
    """List a server's tools and measure how long it takes.

    \b
    Exit codes: 0 the server answers, 1 it does not.
    """
    began = time.monotonic()
    status = _calls(invocation).test(server)
    took_ms = round((time.monotonic() - began) * 1000)
    if not invocation.printed_json({"took_ms": took_ms, "server": status}):
        text = f" as {printable_line(status.server_name)}" if status.server_name else ""
        print(f"{status.name} answers{text} within {took_ms} ms: {_counts(status)}.")


def _calls(invocation: Invocation) -> McpCalls:
    return invocation.client_within(RESPONSE_TIMEOUT_SECONDS).mcp


def _chosen(status: McpServerStatus, names: tuple[str, ...]) -> list[McpTool]:
    """Return the named tools, by either of their names."""
    if not status.tools and status.state is not McpServerState.READY:
        raise McpToolNotFound(
            f"{status.name} has not listed its tools yet (status: {status.state}). Try again when `palyra mcp list`"
            " shows ready."
        )
    if not names:
        chosen = [tool for tool in status.tools if tool.state in UNDECIDED]
    else:
        mcp_tools = {name: tool for tool in status.tools if tool.digest for name in (tool.tool, tool.name)}
        if unknown := [name for name in names if name not in mcp_tools]:
            raise McpToolNotFound(
                f"{status.name} has no tool {unknown[0]!r} to accept or reject. See `palyra mcp show {status.name}`."
            )
        chosen = [mcp_tools[name] for name in names]
    if not chosen:
        raise McpToolNotFound(f"{status.name} has no new or changed tools. Name the tools to accept or reject.")
    return chosen


def _digests(chosen: list[McpTool]) -> dict[str, str]:
    return {tool.tool: tool.digest for tool in chosen}


def _print_decision(invocation: Invocation, status: McpServerStatus, decision: str, chosen: list[McpTool]) -> None:
    if invocation.printed_json(status):
        return
    names = ", ".join(printable_line(tool.name) for tool in chosen)
    print(f"{decision}: {names}.")


def _about(status: McpServerStatus) -> list[str]:
    return facts(
        ("server", status.name),
        ("address", status.address),
        ("state", _state(status)),
        ("trouble", status.reason),
        ("name", status.server_name),
        ("protocol", f"{status.protocol} over {status.transport}" if status.protocol else status.transport),
        ("tools", _counts(status)),
        colours={"trouble": "red"},
    )


def _show_tool(tool: McpTool) -> None:
    state = paint(tool.state.value.replace("_", " "), _COLOURS.get(tool.state, "dim"))
    print(f"{printable_line(tool.name)}  {state}  risk {tool.risk}")
    if tool.reason:
        print(f"  {printable_line(tool.reason)}")
    width = screen_width()
    show(detail_rows(escape(tool.description), width=width))
    if tool.diff:
        print("  changes since it was accepted:")
        for line in tool.diff:
            colour = "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
            show(paint(row, colour) for row in detail_rows(escape_line(line), width=width))
    if tool.parameters:
        # All of it: models see every part, and not only the names of the arguments.
        print("  arguments:")
        show(detail_rows(escape(json.dumps(tool.parameters, indent=2, ensure_ascii=False)), width=width))


def _state(one: McpServerStatus) -> str:
    if one.state is McpServerState.FAILED and one.retry_in_seconds is not None:
        return f"down, next retry in {one.retry_in_seconds:.0f} s"
    return one.state.value


def _counts(one: McpServerStatus) -> str:
    counts = {state: one.count(state) for state in McpToolState}
    texts = [f"{count} {state.value.replace('_', ' ')}" for state, count in counts.items() if count]
    return ", ".join(texts) or "none"
