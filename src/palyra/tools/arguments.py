"""Checks whether a call fits the tool that it names, and explains errors so that a model can fix them."""

import difflib
from dataclasses import dataclass

import msgspec

from palyra.core.tool import ToolCall
from palyra.tools.base import Tool
from palyra.tools.catalog import ToolCatalog
from palyra.tools.json_schema import ArgumentSchema

NEAREST = 3
ARGUMENTS_RULE = "arguments"


@dataclass(frozen=True, slots=True)
class CallProblem:
    """Why a call cannot be made."""

    reason: str
    rule: str = ARGUMENTS_RULE
    """The name of the check that refuses it, for the tape."""


def check(catalog: ToolCatalog, call: ToolCall) -> msgspec.Struct | CallProblem:
    """Return the arguments as the tool's own struct, or what is wrong with the call.

    Numbers and booleans written as text are converted: models write them so, and nothing is lost.
    """
    tool = catalog.get(call.tool)
    if tool is None:
        return CallProblem(_unknown(catalog, call.tool))
    if call.malformed:
        return CallProblem(f"{call.tool} was not called: {call.malformed}. {_usage(tool)}")
    try:
        if isinstance(tool.arguments, ArgumentSchema):
            return tool.arguments.read(call.arguments)
        return msgspec.convert(call.arguments, type=tool.arguments, strict=False)
    except msgspec.ValidationError as error:
        return CallProblem(f"{call.tool} was not called: {error}. {_usage(tool)}")
    except UnicodeError:
        # Half a surrogate instead of a number or a boolean: not a text that could be parsed as one.
        return CallProblem(f"{call.tool} was not called: an argument is not valid text. {_usage(tool)}")


def _unknown(catalog: ToolCatalog, name: str) -> str:
    displayed = name if len(name) <= 60 else name[:60] + "…"
    if name in catalog.hidden:
        return f"{displayed} was not called: it is not among your tools yet. Find it with tools.search, then call it."
    if not catalog.names():
        return f"Unknown tool {displayed!r}: no tools are available now. Answer without one."
    more = " Find others with tools.search." if catalog.hidden else ""
    if near := difflib.get_close_matches(name[:60], catalog.names(), n=NEAREST, cutoff=0.5):
        return f"Unknown tool {displayed!r}. Did you mean {' or '.join(near)}?{more}"
    return f"Unknown tool {displayed!r}. Available tools: {', '.join(catalog.names())}.{more}"


def _usage(tool: Tool) -> str:
    required = set(tool.spec.parameters.get("required", ()))
    names = tool.spec.parameters.get("properties", {})
    if not names:
        return "It takes no arguments: send {}."
    listed = ", ".join(name if name in required else f"{name} (optional)" for name in names)
    return f"Send one JSON object with: {listed}."
