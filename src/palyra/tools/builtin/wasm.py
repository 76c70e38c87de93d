"""`wasm.run`: run a WebAssembly module of the workspace."""

import asyncio
import hashlib
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from palyra.core.policy.effect import Effect
from palyra.core.text.escaping import escape_line, escape_start, quote
from palyra.core.tool import CallRuntime, JsonObject, Risk
from palyra.sandbox.files.workspace import Workspace
from palyra.sandbox.wasm.module import MAX_MODULE_BYTES, ModuleJob, ModuleLimits, ModuleOutcome, ModuleTooLarge
from palyra.sandbox.wasm.runner import COMPILE_SECONDS
from palyra.tools.base import ToolContext, tool
from palyra.tools.call_slots import MODULES

DEFAULT_SECONDS = 10
MAX_SECONDS = 300
SUMMARY_CHARS = 100
FUEL_PER_SECOND = 2_000_000_000
"""More than any machine uses in a second, so that the time limit is what ends a module."""


@dataclass(frozen=True, slots=True)
class _Read:
    path: str
    module: bytes


async def _preview(context: ToolContext, value: Any) -> Effect:
    read = await asyncio.to_thread(_module, context.workspace, value.module)
    digest = hashlib.sha256(read.module).hexdigest()
    displayed = msgspec.json.format(msgspec.json.encode(value.input), indent=2).decode()
    return Effect(
        risk=Risk.MEDIUM,
        summary=f"run the module {escape_start(value.module, SUMMARY_CHARS)} ({len(read.module)} bytes)",
        detail=f"{escape_line(read.path)}\nsha256 {digest}\n\ninput:\n{quote(displayed)}\n\n"
        f"{value.seconds} s at most, no files, no network",
        paths=(read.path,),
        kind=f"module:{digest[:32]}",
    )


async def _ready(context: ToolContext, value: Any) -> None:
    read = await asyncio.to_thread(_module, context.workspace, value.module)
    await context.modules.check_ready(ModuleJob(module=read.module, input=msgspec.json.encode(value.input)))


@tool(
    name="wasm.run",
    risk=Risk.MEDIUM,
    repeatable=True,
    timeout_ms=round((MAX_SECONDS + COMPILE_SECONDS + 10) * 1000),
    preview=_preview,
    ready=_ready,
    runtime=CallRuntime.WASM,
    pool=MODULES,
)
async def run(
    context: ToolContext,
    *,
    module: str,
    input: JsonObject = {},  # noqa: B006
    seconds: Annotated[int, Meta(ge=1, le=MAX_SECONDS)] = DEFAULT_SECONDS,
) -> str:
    """Run a .wasm file of the workspace, a WASI command that reads the input as JSON; no files, no network."""
    read = await asyncio.to_thread(_module, context.workspace, module)
    context.witness.read(read.path)
    bounds = ModuleLimits(fuel=seconds * FUEL_PER_SECOND, wall=timedelta(seconds=seconds))
    outcome = await context.modules.run(
        ModuleJob(module=read.module, input=msgspec.json.encode(input), argv=(module,), bounds=bounds)
    )
    return _result_text(outcome)


def _module(workspace: Workspace, path: str) -> _Read:
    with workspace.reach(path) as reached:
        where = reached.path
    with workspace.open_read(path) as file:
        content = file.read(MAX_MODULE_BYTES + 1)
    if len(content) > MAX_MODULE_BYTES:
        raise ModuleTooLarge(f"{path} is larger than {MAX_MODULE_BYTES >> 20} MiB.")
    return _Read(where, content)


def _result_text(outcome: ModuleOutcome) -> str:
    how = f"exit code {outcome.exit_code}" if outcome.exit_code is not None else f"stopped: {outcome.stopped}"
    parts = [f"{how}, {outcome.took.total_seconds():.1f} s, {outcome.fuel} steps"]
    for name, output in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        parts.append(f"{name}:\n{output.text.rstrip()}" if output.text.strip() else f"{name}:\n(empty)")
    return "\n".join(parts)
