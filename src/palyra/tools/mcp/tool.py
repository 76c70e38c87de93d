"""A tool of a server as agents have it: judged by its arguments, asked about, and its results not trusted."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from palyra.core import labels
from palyra.core.display import escape_line, escape_start, quote
from palyra.core.effect import Effect
from palyra.core.errors import Denied
from palyra.core.ids import PrincipalId
from palyra.core.mcp import McpServer, McpTool, shown_url
from palyra.core.tool import JsonObject, Runtime, ToolSpec
from palyra.policy.calls import of_call
from palyra.tools.base import Tool, ToolContext
from palyra.tools.schema import Given, Schema
from palyra.tools.shares import Pool
from palyra.tools.witness import Witness

SUMMARY_CHARS = 120

CALLS_AT_ONCE = 8
"""Calls of one principal to a server: those that hang must not use up its connections."""

CheckReady = Callable[[McpTool], Awaitable[object]]
"""Raises what would keep a call from being made now."""
Call = Callable[[McpTool, JsonObject, Witness], Awaitable[str]]


class McpNotYours(Denied):
    """This MCP server is the owner's: `principals` of its settings says who else may use it."""


def make(tool: McpTool, server: McpServer, *, owner: PrincipalId, check_ready: CheckReady, call: Call) -> Tool:
    """Return what agents are offered of a tool that was accepted."""
    spec = ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters, risk=tool.risk)

    def is_for(principal: PrincipalId | None) -> bool:
        return principal == owner or bool({"*", principal} & set(server.principals))

    def check(context: ToolContext) -> None:
        # Nobody else is shown the tool; a call that was judged before the settings changed comes here.
        if not is_for(context.principal):
            raise McpNotYours

    async def preview(context: ToolContext, given: Any) -> Effect:
        check(context)
        return msgspec.structs.replace(
            # Off the event loop: a command line that is made to hurt takes a second.
            await asyncio.to_thread(of_call, spec, given.values),
            summary=_summary(tool, given.values),
            detail=_detail(tool, server, given.values),
        )

    async def ready(context: ToolContext, given: Any) -> None:
        await check_ready(tool)

    async def run(context: ToolContext, given: msgspec.Struct) -> str:
        check(context)
        assert isinstance(given, Given)
        if server.command is None:
            return await call(tool, given.values, context.witness)
        # Its program may change the workspace while it works, by what it has from the network or from anywhere else.
        roots = await asyncio.to_thread(lambda: [root.real_path() for root in context.workspace.roots])
        async with context.witness.program(reads=roots, writes=roots, labels=(labels.WEB,)):
            return await call(tool, given.values, context.witness)

    return Tool(
        spec=spec,
        arguments=Schema(tool.parameters),
        run=run,
        timeout_ms=server.timeout_seconds * 1000,
        preview=preview,
        ready=ready,
        label=labels.WEB,
        # The owner has accepted what another person wrote, and it cannot change since: that makes it no owner's word.
        described_by=labels.OTHER,
        runtime=Runtime.MCP,
        is_for=is_for,
        pool=Pool(tool.name.removesuffix(tool.tool), CALLS_AT_ONCE),
    )


def _summary(tool: McpTool, arguments: JsonObject) -> str:
    return f"{tool.name} {escape_start(msgspec.json.encode(arguments).decode(), SUMMARY_CHARS)}"


def _detail(tool: McpTool, server: McpServer, arguments: JsonObject) -> str:
    kind = shown_url(server.url) if server.url is not None else f"the program {server.command}"
    shown = json.dumps(arguments, indent=2, ensure_ascii=False, sort_keys=True)
    return f"tool {tool.tool} of {escape_line(kind)}\narguments:\n{quote(shown)}"
