"""How each tool of a server stands: what the owner decided, against what the server says now."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from palyra.core.mcp import Definition, McpServer, McpTool, Pin, ToolState, full_name, place_digest, risk_of
from palyra.tools.mcp.definitions import Listing

MOST_DIFF_LINES = 200
MOST_LINES = 500
NOT_NAMED = "the configuration names other tools"


def tools_of(name: str, server: McpServer, pins: Mapping[str, Pin], listing: Listing | None) -> tuple[McpTool, ...]:
    """Return every tool, by name. While the server is not connected (no listing), what was accepted stands."""
    return tuple(sorted(_tools(name, server, pins, listing), key=lambda tool: tool.tool))


def _tools(name: str, server: McpServer, pins: Mapping[str, Pin], listing: Listing | None) -> Iterator[McpTool]:
    place = place_digest(server)
    # What was decided about another program, or another address, was not decided about this one.
    ours = {tool: pin for tool, pin in pins.items() if pin.place == place}
    if listing is None:
        for pin in ours.values():
            state = ToolState.ACCEPTED if pin.accepted else ToolState.REFUSED
            yield _tool(name, server, pin.definition, state)
        return
    for definition in listing.definitions.values():
        decided = ours.get(definition.name)
        if decided is None:
            yield _tool(name, server, definition, ToolState.NEW)
        elif not decided.accepted:
            yield _tool(name, server, definition, ToolState.REFUSED)
        elif decided.definition.digest == definition.digest:
            yield _tool(name, server, definition, ToolState.ACCEPTED)
        else:
            yield _tool(name, server, definition, ToolState.CHANGED)
    for tool, reason in listing.unusable.items():
        yield McpTool(name=full_name(name, tool), tool=tool, state=ToolState.UNUSABLE, reason=reason)
    for tool, pin in ours.items():
        if tool not in listing.definitions and tool not in listing.unusable:
            yield _tool(name, server, pin.definition, ToolState.GONE)


def in_full(tools: Iterable[McpTool], pins: Mapping[str, Pin]) -> tuple[McpTool, ...]:
    """Return the tools with what has changed of those that have. Takes a while if a server has changed many."""
    return tuple(
        msgspec.structs.replace(tool, diff=difference(pins[tool.tool].definition, tool))
        if tool.state is ToolState.CHANGED and tool.tool in pins
        else tool
        for tool in tools
    )


def in_brief(tools: Iterable[McpTool]) -> tuple[McpTool, ...]:
    """Return the tools without what they say of themselves."""
    return tuple(msgspec.structs.replace(tool, description="", parameters={}) for tool in tools)


def difference(before: Definition, now: Definition | McpTool) -> tuple[str, ...]:
    """Return what has changed, line by line."""
    lines = list(difflib.unified_diff(_lines(before), _lines(now), "accepted", "now", lineterm=""))
    if not lines:
        return ("(what differs is not shown to models: a title, a hint, or characters that nobody sees, or far down)",)
    left = len(lines) - MOST_DIFF_LINES
    more = [f"… the whole tool is shown below; of what has changed, {left} lines more"] if left > 0 else []
    return (*lines[:MOST_DIFF_LINES], *more)


def _lines(definition: Definition | McpTool) -> list[str]:
    parameters = json.dumps(definition.parameters, indent=2, ensure_ascii=False, sort_keys=True)
    hint = ["reads only"] if definition.reads_only else []
    # Comparing takes the square of their number, if somebody wants it to.
    return [*definition.description.split("\n"), *hint, *parameters.split("\n")][:MOST_LINES]


def _tool(name: str, server: McpServer, definition: Definition, state: ToolState) -> McpTool:
    left_out = server.tools is not None and definition.name not in server.tools
    return McpTool(
        name=full_name(name, definition.name),
        tool=definition.name,
        state=ToolState.LEFT_OUT if left_out else state,
        reason=NOT_NAMED if left_out else "",
        digest=definition.digest,
        risk=risk_of(server, definition),
        description=definition.description,
        parameters=definition.parameters,
        reads_only=definition.reads_only,
    )
