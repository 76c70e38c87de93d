"""Builders for what a tool runs in."""

from datetime import UTC, datetime
from pathlib import Path

from palyra.core.ids import CallId
from palyra.core.tool import JsonObject, ToolCall
from palyra.sandbox.files.workspace import Workspace
from palyra.tools.base import Delegation, Tool, ToolContext
from palyra.tools.catalog import ToolCatalog
from palyra.tools.execution import ToolResult, execute
from palyra.tools.toolbox import BUILTIN_ONLY


class StillClock:
    """A clock that stands still."""

    def now(self) -> datetime:
        return datetime(2026, 3, 1, 14, 5, 9, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0


def a_context(root: Path = Path("/nonexistent")) -> ToolContext:
    return ToolContext(workspace=Workspace((root,)), clock=StillClock())


def a_call(tool: str, arguments: JsonObject | None = None, *, malformed: str = "") -> ToolCall:
    return ToolCall(call_id=CallId("c1"), tool=tool, arguments=arguments or {}, malformed=malformed)


async def run(
    call: ToolCall,
    *,
    root: Path = Path("/nonexistent"),
    tools: tuple[Tool, ...] | None = None,
    timeout_ms: int = 60_000,
) -> ToolResult | Delegation:
    catalog = BUILTIN_ONLY.catalog(None) if tools is None else ToolCatalog(tools)
    return await execute(call, catalog=catalog, context=a_context(root), timeout_ms=timeout_ms)


async def outcome(
    call: ToolCall,
    *,
    root: Path = Path("/nonexistent"),
    tools: tuple[Tool, ...] | None = None,
    timeout_ms: int = 60_000,
) -> ToolResult:
    finished = await run(call, root=root, tools=tools, timeout_ms=timeout_ms)
    assert isinstance(finished, ToolResult)
    return finished
