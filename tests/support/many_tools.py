"""Many tools, as plugins and servers bring them."""

from collections.abc import Iterable

import msgspec

from palyra.core.tool import Risk, ToolSpec
from palyra.tools.base import Tool, ToolContext
from palyra.tools.json_schema import ArgumentSchema

THINGS = ("issue", "pull request", "branch", "release", "label", "milestone", "wiki page", "comment", "team", "webhook")
DEEDS = ("create", "read", "update", "delete", "list")
SERVERS = ("forge", "tracker", "mirror", "archive", "staging", "backup", "lab", "shop", "press", "field")


def a_tool(
    name: str, description: str, *, arguments: Iterable[str] = ("id",), answer: str = "", risk: Risk = Risk.LOW
) -> Tool:
    """Return a tool that says what it was called with."""
    properties = {argument: {"type": "string", "description": f"The {argument} of it."} for argument in arguments}
    schema = {"type": "object", "properties": properties, "required": list(properties)[:1]}

    async def run(context: ToolContext, given: msgspec.Struct) -> str:
        return answer or f"{name} was called"

    spec = ToolSpec(name=name, description=description, parameters=schema, risk=risk, repeatable=True)
    return Tool(spec=spec, arguments=ArgumentSchema(schema), run=run)


def crowd(servers: Iterable[str] = SERVERS) -> list[Tool]:
    """Return fifty tools for each server: every deed for every thing."""
    return [
        a_tool(
            f"mcp.{server}.{deed}_{thing.replace(' ', '_')}",
            f"{deed.capitalize()} a {thing} of the {server}, with its title, its text and the people who work on it.",
            arguments=("id", "title", "text", "people"),
        )
        for server in servers
        for thing in THINGS
        for deed in DEEDS
    ]
