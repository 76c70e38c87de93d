"""The tools of a home that policies can name, as far as they are known without a daemon."""

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from palyra.cli.options import Invocation
from palyra.core.tool import Risk, ToolSpec
from palyra.policy.cedar_source import Policy

if TYPE_CHECKING:
    from palyra.tools.catalog import ToolCatalog

MCP = "mcp."

_NAMED = re.compile(r'Tool::"([^"\\]+)"')


def tools_of(invocation: Invocation) -> "ToolCatalog":
    """Return the tools of the home: the built-in ones, and those of its plugins."""
    from palyra.tools.plugins.current import CurrentPlugins
    from palyra.tools.toolbox import Toolbox

    return Toolbox(CurrentPlugins(invocation.home).tools).catalog(None)


def spec_of(invocation: Invocation, catalog: "ToolCatalog", name: str) -> ToolSpec:
    """Return the spec of a tool; an unknown one may do anything that its arguments name."""
    tool = catalog.get(name)
    if tool is not None:
        return tool.spec
    risk = _risk_of_server(invocation, name) if name.startswith(MCP) else Risk.MEDIUM
    return ToolSpec(name=name, description="", parameters={}, risk=risk)


def unknown_note(catalog: "ToolCatalog", name: str) -> str:
    """Return a note that no tool has this name; empty if one may: only a daemon knows those of MCP servers."""
    if catalog.get(name) is not None or name.startswith(MCP):
        return ""
    near = get_close_matches(name, catalog.names(), n=1)
    return f"Unknown tool {name!r}{f'; did you mean {near[0]!r}?' if near else '.'}"


def misnamed_tools(policies: Iterable[Policy], catalog: "ToolCatalog") -> Iterator[tuple[str, str]]:
    """Yield where a policy names an unknown tool, with a note: that policy would never apply."""
    for policy in policies:
        for match in _NAMED.finditer(policy.text):
            if note := unknown_note(catalog, match[1]):
                line, column = policy.position(match.start())
                yield f"{policy.file}:{line}:{column}", note


def _risk_of_server(invocation: Invocation, name: str) -> Risk:
    """Return the risk that the settings set for a tool of an MCP server; `high` if they set none."""
    server, _, tool = name.removeprefix(MCP).partition(".")
    mcp_server = invocation.settings.mcp.servers.get(server)
    if mcp_server is None:
        return Risk.HIGH
    return mcp_server.risks.get(tool) or mcp_server.risk or Risk.HIGH
