"""A server's tool as agents see it: judged by its arguments, subject to approval, its results untrusted."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from palyra.core.errors import Denied
from palyra.core.ids import PrincipalId
from palyra.core.mcp import McpServer, McpTool, display_url
from palyra.core.policy import labels
from palyra.core.policy.effect import Effect
from palyra.core.text.escaping import escape_line, escape_start, quote
from palyra.core.tool import CallRuntime, JsonObject, ToolSpec
from palyra.policy.call_effects import effect_of_call
from palyra.tools.base import Tool, ToolContext
from palyra.tools.call_slots import CallPool
from palyra.tools.execution_record import ExecutionRecorder
from palyra.tools.json_schema import ArgumentSchema, ValidArguments

SUMMARY_CHARS = 120

CALLS_AT_ONCE = 8
"""Calls of one principal to a server: those that hang must not use up its connections."""

CheckReady = Callable[[McpTool], Awaitable[object]]
"""Raises the error that would keep a call from being made now."""
Call = Callable[[McpTool, JsonObject, ExecutionRecorder], Awaitable[str]]


class McpServerNotAllowed(Denied):
    """This MCP server belongs to the owner. `principals` in its settings lists who else may use it."""


def make_tool(tool: McpTool, server: McpServer, *, owner: PrincipalId, check_ready: CheckReady, call: Call) -> Tool:
    """Return an accepted tool as it is offered to agents."""
    spec = ToolSpec(name=tool.name, description=tool.description, parameters=tool.parameters, risk=tool.risk)

    def is_for(principal: PrincipalId | None) -> bool:
        return principal == owner or bool({"*", principal} & set(server.principals))

    def check(context: ToolContext) -> None:
        # Others are not shown the tool; a call that was judged before the settings changed comes here.
        if not is_for(context.principal):
            raise McpServerNotAllowed

    async def preview(context: ToolContext, value: Any) -> Effect:
        check(context)
        return msgspec.structs.replace(
            # Off the event loop: a malicious command line can take a second.
            await asyncio.to_thread(effect_of_call, spec, value.values),
            summary=_summary(tool, value.values),
            detail=_detail(tool, server, value.values),
        )

    async def ready(context: ToolContext, value: Any) -> None:
        await check_ready(tool)

    async def run(context: ToolContext, value: msgspec.Struct) -> str:
        check(context)
        assert isinstance(value, ValidArguments)
        if server.command is None:
            return await call(tool, value.values, context.witness)
        # Its program may change the workspace while it works, with data from the network or from anywhere else.
        roots = await asyncio.to_thread(lambda: [root.real_path() for root in context.workspace.roots])
        async with context.witness.program(reads=roots, writes=roots, labels=(labels.WEB,)):
            return await call(tool, value.values, context.witness)

    return Tool(
        spec=spec,
        arguments=ArgumentSchema(tool.parameters),
        run=run,
        timeout_ms=server.timeout_seconds * 1000,
        preview=preview,
        ready=ready,
        label=labels.WEB,
        # The owner accepted what another person wrote, and it cannot change since; the owner still did not write it.
        described_by=labels.OTHER,
        runtime=CallRuntime.MCP,
        is_for=is_for,
        pool=CallPool(tool.name.removesuffix(tool.tool), CALLS_AT_ONCE),
    )


def _summary(tool: McpTool, arguments: JsonObject) -> str:
    return f"{tool.name} {escape_start(msgspec.json.encode(arguments).decode(), SUMMARY_CHARS)}"


def _detail(tool: McpTool, server: McpServer, arguments: JsonObject) -> str:
    kind = display_url(server.url) if server.url is not None else f"the program {server.command}"
    displayed = json.dumps(arguments, indent=2, ensure_ascii=False, sort_keys=True)
    return f"tool {tool.tool} of {escape_line(kind)}\narguments:\n{quote(displayed)}"
