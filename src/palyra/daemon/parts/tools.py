"""Builds what the tools of a daemon work with."""

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path

from palyra.daemon.parts.home import HomeParts
from palyra.runs.engine.tool_contexts import ToolParts
from palyra.runs.system import System
from palyra.sandbox.processes import cgroups, process
from palyra.sandbox.wasm.runner import IDLE_WORKERS, WasmRunner
from palyra.tools.mcp.servers import McpServers
from palyra.tools.toolbox import Toolbox

log = logging.getLogger(__name__)


async def find_control_group() -> Path | None:
    """Return the control group in which the groups of programs are created; None if there is none."""
    control = await asyncio.to_thread(cgroups.take)
    log.info("memory of programs is counted by %s", control.base or f"the supervisor: {control.reason}")
    return control.base


def build_tools(
    files: HomeParts, system: System, mcp: McpServers, stack: AsyncExitStack, *, control_group: Path | None
) -> ToolParts:
    """Return the tools of the home; idle WASM workers are ended when the stack is closed."""
    modules = WasmRunner(keep=IDLE_WORKERS)
    stack.push_async_callback(modules.close)
    return ToolParts(
        toolbox=Toolbox(files.plugins.tools, mcp.tools),
        gate=lambda: files.policies.gate,
        workspaces=files.workspaces,
        sandbox=process.build(files.home, system.config.now.sandbox, base=control_group),
        modules=modules,
    )
