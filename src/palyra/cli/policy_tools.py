"""What the policies are asked about, as far as it is known without a daemon: the tools of a home."""

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from palyra.cli.options import Invocation
from palyra.core.tool import Risk, ToolSpec
from palyra.policy.source import Policy

if TYPE_CHECKING:
    from palyra.tools.catalog import Catalog

MCP = "mcp."

_NAMED = re.compile(r'Tool::"([^"\\]+)"')


def tools_of(invocation: Invocation) -> "Catalog":
    """Return the tools of the home: the built-in ones, and those of its plugins."""
    from palyra.tools.plugins.current import CurrentPlugins
    from palyra.tools.toolbox import Toolbox

    return Toolbox(CurrentPlugins(invocation.home).tools).catalog(None)


def spec_of(invocation: Invocation, catalog: "Catalog", name: str) -> ToolSpec:
    """Return what is known of a tool; one that is not here may do anything that its arguments name."""
    found = catalog.get(name)
    if found is not None:
        return found.spec
    risk = _risk_of_server(invocation, name) if name.startswith(MCP) else Risk.MEDIUM
    return ToolSpec(name=name, description="", parameters={}, risk=risk)


def unknown_note(catalog: "Catalog", name: str) -> str:
    """Say that no tool is called so; empty if there is one, or may be one: only a daemon knows those of MCP servers."""
    if catalog.get(name) is not None or name.startswith(MCP):
        return ""
    near = get_close_matches(name, catalog.names(), n=1)
    return f"There is no tool {name!r} here{f'; did you mean {near[0]!r}?' if near else '.'}"


def misnamed_tools(policies: Iterable[Policy], catalog: "Catalog") -> Iterator[tuple[str, str]]:
    """Yield where a policy names a tool that is not here, with what to say of it: it would never hold."""
    for policy in policies:
        for found in _NAMED.finditer(policy.text):
            if note := unknown_note(catalog, found[1]):
                line, column = policy.place(found.start())
                yield f"{policy.file}:{line}:{column}", note


def _risk_of_server(invocation: Invocation, name: str) -> Risk:
    """Return the risk that the settings give a tool of an MCP server; `high` if they say nothing."""
    server, _, tool = name.removeprefix(MCP).partition(".")
    found = invocation.settings.mcp.servers.get(server)
    if found is None:
        return Risk.HIGH
    return found.risks.get(tool) or found.risk or Risk.HIGH
