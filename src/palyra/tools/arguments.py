"""Whether a call fits the tool that it names, told so that a model can mend it."""

import difflib
from dataclasses import dataclass

import msgspec

from palyra.core.tool import ToolCall
from palyra.tools.base import Tool
from palyra.tools.catalog import Catalog
from palyra.tools.schema import Schema

NEAREST = 3
ARGUMENTS_RULE = "arguments"


@dataclass(frozen=True, slots=True)
class BadCall:
    """Why a call can not be made."""

    reason: str
    rule: str = ARGUMENTS_RULE
    """What refuses it, as the tape names it."""


def check(catalog: Catalog, call: ToolCall) -> msgspec.Struct | BadCall:
    """Return the arguments as the tool's own struct, or what is wrong with the call.

    Numbers and truth values written as text are taken for what they mean: models do that, and nothing is lost.
    """
    tool = catalog.get(call.tool)
    if tool is None:
        return BadCall(_unknown(catalog, call.tool))
    if call.malformed:
        return BadCall(f"{call.tool} was not called: {call.malformed}. {_usage(tool)}")
    try:
        if isinstance(tool.arguments, Schema):
            return tool.arguments.read(call.arguments)
        return msgspec.convert(call.arguments, type=tool.arguments, strict=False)
    except msgspec.ValidationError as error:
        return BadCall(f"{call.tool} was not called: {error}. {_usage(tool)}")
    except UnicodeError:
        # Half a surrogate where a number or a truth value is due: no text that could be read as one.
        return BadCall(f"{call.tool} was not called: an argument is not valid text. {_usage(tool)}")


def _unknown(catalog: Catalog, name: str) -> str:
    shown = name if len(name) <= 60 else name[:60] + "…"
    if name in catalog.hidden:
        return f"{shown} was not called: it is not among your tools yet. Find it with tools.search, then call it."
    if not catalog.names():
        return f"There is no tool {shown!r}: no tools are available now. Answer without one."
    more = " Others are found with tools.search." if catalog.hidden else ""
    if near := difflib.get_close_matches(name[:60], catalog.names(), n=NEAREST, cutoff=0.5):
        return f"There is no tool {shown!r}. Did you mean {' or '.join(near)}?{more}"
    return f"There is no tool {shown!r}. Available are: {', '.join(catalog.names())}.{more}"


def _usage(tool: Tool) -> str:
    required = set(tool.spec.parameters.get("required", ()))
    names = tool.spec.parameters.get("properties", {})
    if not names:
        return "It takes no arguments: send {}."
    listed = ", ".join(name if name in required else f"{name} (optional)" for name in names)
    return f"Send one JSON object with: {listed}."
