"""The caller's own tools, and whether the model is free to call them."""

import re
from collections.abc import Callable, Sequence

import msgspec

from palyra.core.brief import ClientTool
from palyra.core.prompt import Choice
from palyra.gateway.http.openai.errors import ParameterRefused

MOST_TOOLS = 128
MOST_BYTES = 512 * 1024

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that the model is offered, and whether it must call one."""

    tools: tuple[ClientTool, ...] = ()
    choice: Choice = Choice.AUTO


def check(tools: Sequence[ClientTool], *, taken: Callable[[], Sequence[str]]) -> None:
    """Raise unless the tools can be offered; `taken` are names that mean something else already."""
    if len(tools) > MOST_TOOLS:
        raise ParameterRefused("tools", f"There may be {MOST_TOOLS} tools at the most.")
    seen: set[str] = set()
    for number, tool in enumerate(tools):
        if not _NAME.fullmatch(tool.name):
            raise ParameterRefused(
                f"tools[{number}]", "A tool's name has 1 to 64 letters, digits, underscores and dashes."
            )
        if tool.name in seen:
            raise ParameterRefused(f"tools[{number}]", f"There are two tools of the name {tool.name}.")
        seen.add(tool.name)
    if tools and len(msgspec.json.encode(tools)) > MOST_BYTES:
        raise ParameterRefused("tools", "The tools have more than 512 KiB. Describe them more briefly.")
    if tools and (both := sorted(seen.intersection(taken()))):
        raise ParameterRefused(
            "tools", f"The agent has a tool of the name {both[0]} itself. Call yours otherwise, or ask a plain model."
        )


def offer(tools: tuple[ClientTool, ...], *, choice: str, named: str | None, plain: bool) -> Offer:
    """Return what the model is offered. `choice` is auto, none or required; `named` is the only tool that it may call.

    An agent has tools of its own, which it must be free to use and to be done with.
    """
    if not plain:
        if choice == "required" or named is not None:
            raise ParameterRefused(
                "tool_choice", "An agent chooses its tools by itself: tool_choice may be auto or none, or ask a model."
            )
        return Offer(tools=() if choice == "none" else tools)
    if named is not None:
        only = tuple(tool for tool in tools if tool.name == named)
        if not only:
            raise ParameterRefused("tool_choice", f"There is no tool {named[:64]!r} among the tools.")
        return Offer(tools=only, choice=Choice.REQUIRED)
    if choice == "required" and not tools:
        raise ParameterRefused("tool_choice", "A tool can only be required if there are tools.")
    return Offer(tools=tools, choice=Choice(choice))
