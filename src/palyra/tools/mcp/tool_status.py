"""The status of each tool of a server: the owner's decision, compared with the server's current listing."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from palyra.core.mcp import (
    McpServer,
    McpTool,
    McpToolDecision,
    McpToolDefinition,
    McpToolState,
    full_name,
    risk_of,
    server_digest,
)
from palyra.tools.mcp.definitions import McpToolListing

MAX_DIFF_LINES = 200
MAX_LINES = 500
NOT_NAMED = "the configuration names other tools"


def tools_of(
    name: str, server: McpServer, pins: Mapping[str, McpToolDecision], listing: McpToolListing | None
) -> tuple[McpTool, ...]:
    """Return every tool, by name. While the server is not connected (no listing), the accepted definitions count."""
    return tuple(sorted(_tools(name, server, pins, listing), key=lambda tool: tool.tool))


def _tools(
    name: str, server: McpServer, pins: Mapping[str, McpToolDecision], listing: McpToolListing | None
) -> Iterator[McpTool]:
    location = server_digest(server)
    # A decision about another program, or another address, does not apply to this one.
    ours = {tool: pin for tool, pin in pins.items() if pin.server_digest == location}
    if listing is None:
        for pin in ours.values():
            state = McpToolState.ACCEPTED if pin.accepted else McpToolState.REJECTED
            yield _tool(name, server, pin.definition, state)
        return
    for definition in listing.definitions.values():
        decided = ours.get(definition.name)
        if decided is None:
            yield _tool(name, server, definition, McpToolState.NEW)
        elif not decided.accepted:
            yield _tool(name, server, definition, McpToolState.REJECTED)
        elif decided.definition.digest == definition.digest:
            yield _tool(name, server, definition, McpToolState.ACCEPTED)
        else:
            yield _tool(name, server, definition, McpToolState.CHANGED)
    for tool, reason in listing.unusable.items():
        yield McpTool(name=full_name(name, tool), tool=tool, state=McpToolState.UNUSABLE, reason=reason)
    for tool, pin in ours.items():
        if tool not in listing.definitions and tool not in listing.unusable:
            yield _tool(name, server, pin.definition, McpToolState.GONE)


def tools_with_changes(tools: Iterable[McpTool], pins: Mapping[str, McpToolDecision]) -> tuple[McpTool, ...]:
    """Return the tools with the changes of each. Takes a while if a server has changed many."""
    return tuple(
        msgspec.structs.replace(tool, diff=difference(pins[tool.tool].definition, tool))
        if tool.state is McpToolState.CHANGED and tool.tool in pins
        else tool
        for tool in tools
    )


def tools_summary(tools: Iterable[McpTool]) -> tuple[McpTool, ...]:
    """Return the tools without their definitions."""
    return tuple(msgspec.structs.replace(tool, description="", parameters={}) for tool in tools)


def difference(before: McpToolDefinition, now: McpToolDefinition | McpTool) -> tuple[str, ...]:
    """Return what has changed, line by line."""
    lines = list(difflib.unified_diff(_lines(before), _lines(now), "accepted", "now", lineterm=""))
    if not lines:
        return (
            (
                "(the difference is not shown to models: it is in a title, a hint or invisible characters, or "
                "too far down)"
            ),
        )
    left = len(lines) - MAX_DIFF_LINES
    more = [f"… {left} more changed lines; the full tool is shown below"] if left > 0 else []
    return (*lines[:MAX_DIFF_LINES], *more)


def _lines(definition: McpToolDefinition | McpTool) -> list[str]:
    parameters = json.dumps(definition.parameters, indent=2, ensure_ascii=False, sort_keys=True)
    hint = ["read-only"] if definition.reads_only else []
    # Comparing takes the square of their number, in the worst case.
    return [*definition.description.split("\n"), *hint, *parameters.split("\n")][:MAX_LINES]


def _tool(name: str, server: McpServer, definition: McpToolDefinition, state: McpToolState) -> McpTool:
    hidden = server.tools is not None and definition.name not in server.tools
    return McpTool(
        name=full_name(name, definition.name),
        tool=definition.name,
        state=McpToolState.HIDDEN if hidden else state,
        reason=NOT_NAMED if hidden else "",
        digest=definition.digest,
        risk=risk_of(server, definition),
        description=definition.description,
        parameters=definition.parameters,
        reads_only=definition.reads_only,
    )
