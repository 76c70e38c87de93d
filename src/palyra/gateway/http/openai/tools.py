"""The caller's own tools, and whether the model must call them."""

import re
from collections.abc import Callable, Sequence

import msgspec

from palyra.core.model.prompt import ToolChoice
from palyra.core.model.request_options import ClientTool
from palyra.gateway.http.openai.errors import ParameterUnsupported

MAX_TOOLS = 128
MAX_BYTES = 512 * 1024

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ToolOffer(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that the model is offered, and whether it must call one."""

    tools: tuple[ClientTool, ...] = ()
    choice: ToolChoice = ToolChoice.AUTO


def check(tools: Sequence[ClientTool], *, claimed: Callable[[], Sequence[str]]) -> None:
    """Raise unless the tools can be offered; `taken` are names that are already in use."""
    if len(tools) > MAX_TOOLS:
        raise ParameterUnsupported("tools", f"There may be at most {MAX_TOOLS} tools.")
    seen: set[str] = set()
    for number, tool in enumerate(tools):
        if not _NAME.fullmatch(tool.name):
            raise ParameterUnsupported(
                f"tools[{number}]", "A tool's name must have 1 to 64 letters, digits, underscores and dashes."
            )
        if tool.name in seen:
            raise ParameterUnsupported(f"tools[{number}]", f"Two tools have the name {tool.name}.")
        seen.add(tool.name)
    if tools and len(msgspec.json.encode(tools)) > MAX_BYTES:
        raise ParameterUnsupported("tools", "The tools are larger than 512 KiB. Describe them more briefly.")
    if tools and (both := sorted(seen.intersection(claimed()))):
        raise ParameterUnsupported(
            "tools", f"The agent itself has a tool named {both[0]}. Rename yours, or use a plain model."
        )


def offer(tools: tuple[ClientTool, ...], *, choice: str, named: str | None, plain: bool) -> ToolOffer:
    """Return what the model is offered. `choice` is auto, none or required; `named` is the only tool that it may call.

    An agent has tools of its own, which it must be free to use, and free to finish without.
    """
    if not plain:
        if choice == "required" or named is not None:
            raise ParameterUnsupported(
                "tool_choice", "An agent chooses its tools by itself: tool_choice must be auto or none, or use a model."
            )
        return ToolOffer(tools=() if choice == "none" else tools)
    if named is not None:
        only = tuple(tool for tool in tools if tool.name == named)
        if not only:
            raise ParameterUnsupported("tool_choice", f"Unknown tool {named[:64]!r}: it is not in the list of tools.")
        return ToolOffer(tools=only, choice=ToolChoice.REQUIRED)
    if choice == "required" and not tools:
        raise ParameterUnsupported("tool_choice", "A tool can only be required if there are tools.")
    return ToolOffer(tools=tools, choice=ToolChoice(choice))
