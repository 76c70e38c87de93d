"""`shell.run`: run a command line in the sandbox."""

import asyncio
import os
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from palyra.core.errors import Unavailable
from palyra.core.policy.effect import Effect, class_of_command
from palyra.core.text.escaping import escape_line, escape_start, quote
from palyra.core.tool import CallRuntime, FolderAccess, Risk
from palyra.policy.risk import highest, of_command
from palyra.sandbox.base import CapturedOutput, ProgramOutcome, Sandbox, SandboxJob, Tier
from palyra.sandbox.files.workspace import PathNotFolder, Workspace
from palyra.tools.base import ToolContext, tool
from palyra.tools.call_slots import CallPool

DEFAULT_SECONDS = 60
MAX_SECONDS = 600
SUMMARY_CHARS = 80
SHELLS = ("/bin/bash", "/bin/sh")
NO_NETWORK = (
    "[Programs have no network here: what needs one fails or times out. Use http.fetch to reach the "
    "web; ask the person to install what is missing.]"
)
READ_ONLY = (
    "[This command had access=read, so it could write to /tmp only. If it must change files in the "
    "workspace, propose it again with access=write.]"
)
READ_ENVIRONMENT = {"GIT_OPTIONAL_LOCKS": "0", "PYTHONDONTWRITEBYTECODE": "1"}
"""Makes programs that only read skip incidental writes."""
MAX_INSPECTED_BYTES = 16 * 1024

_WANTED_NETWORK = re.compile(
    rb"could not resolve|unable to resolve|name resolution|name or service not known|no such host"
    rb"|failed to lookup address|temporary failure resolving|network is unreachable|address family not supported"
    rb"|EAI_AGAIN|ENOTFOUND|ENETUNREACH",
    re.IGNORECASE,
)
"""How programs report that there is no network."""
_WANTED_TO_WRITE = re.compile(rb"read-?only (file ?system|database)|EROFS", re.IGNORECASE)
"""How programs report that a file cannot be changed."""


class ShellMissing(Unavailable):
    """There is no shell on this machine: neither /bin/bash nor /bin/sh can be run. Install one of them."""


async def _preview(context: ToolContext, value: Any) -> Effect:
    folder = await asyncio.to_thread(_folder, context.workspace, value.folder)
    tier = context.sandbox.tier
    # Off the event loop: a malicious command line can take a second.
    access, risk = await asyncio.to_thread(_judged, value, context.sandbox)
    where = f"in {escape_line(str(folder))}, {_text_of_access(value.access, access)}, {value.seconds} s at most"
    return Effect(
        risk=risk,
        summary=f"run {escape_start(value.command, SUMMARY_CHARS)}",
        detail=f"{quote(value.command)}\n\n{where}, sandbox: {_tier_text(tier)}",
        paths=(str(folder),),
        command=value.command,
        access=access,
        # Elsewhere the same text runs another program, or on other files. A critical call needs approval each time.
        kind=class_of_command(value.command, folder=str(folder), access=access) if risk is not Risk.CRITICAL else "",
    )


async def _ready(context: ToolContext, value: Any) -> None:
    await context.sandbox.check_ready(await _job(context, **msgspec.structs.asdict(value)))


PROGRAMS = CallPool("shell", 16)
"""Each may use the memory and the processes that the sandbox allows."""


@tool(
    name="shell.run",
    risk=Risk.MEDIUM,
    timeout_ms=(MAX_SECONDS + 30) * 1000,
    preview=_preview,
    ready=_ready,
    runtime=CallRuntime.SHELL,
    pool=PROGRAMS,
)
async def run(
    context: ToolContext,
    *,
    command: Annotated[str, Meta(min_length=1)],
    access: Literal["read", "write"] = "read",
    folder: str = ".",
    seconds: Annotated[int, Meta(ge=1, le=MAX_SECONDS)] = DEFAULT_SECONDS,
) -> str:
    """Run a shell command, offline. read writes to /tmp only; write changes files."""
    job = await _job(context, command=command, access=access, folder=folder, seconds=seconds)
    return _result_text(await context.sandbox.run(job), read_only=job.read_only)


def _judged(value: Any, sandbox: Sandbox) -> tuple[FolderAccess, Risk]:
    """Return the effective access, and the risk: low if the kernel limits the command to reading, whatever it runs."""
    if value.access == FolderAccess.READ and sandbox.enforces_read:
        return FolderAccess.READ, Risk.LOW
    # Without any sandbox every command is exceptional.
    lowest = Risk.HIGH if sandbox.tier is Tier.OFF else Risk.MEDIUM
    return FolderAccess.WRITE, highest([of_command(value.command)], at_least=lowest)


def _folder(workspace: Workspace, folder: str) -> Path:
    """Return the real path of a folder of the workspace, since that is where the sandbox shows it."""
    with workspace.reach(folder or ".") as reached:
        if reached.name is not None:
            raise PathNotFolder(f"{folder!r} is a file. Name a folder.")
        return Path(reached.path)


async def _job(context: ToolContext, *, command: str, access: str, folder: str, seconds: int) -> SandboxJob:
    shell = await asyncio.to_thread(_shell)
    return SandboxJob(
        argv=(shell, "-c", command),
        roots=context.workspace.roots,
        folder=await asyncio.to_thread(_folder, context.workspace, folder),
        read_only=access == "read",
        bounds=replace(context.sandbox.bounds, wall=timedelta(seconds=seconds)),
        environment=READ_ENVIRONMENT if access == "read" else {},
    )


def _shell() -> str:
    for shell in SHELLS:
        if os.access(shell, os.X_OK):
            return shell
    raise ShellMissing


def _result_text(outcome: ProgramOutcome, *, read_only: bool) -> str:
    how = f"exit code {outcome.exit_code}"
    if outcome.stopped:
        how = f"stopped: {outcome.stopped} ({how})"
    parts = [f"{how}, {outcome.took.total_seconds():.1f} s, sandbox {outcome.tier}"]
    parts += [
        f"{name}:\n{_output_text(output)}" for name, output in (("stdout", outcome.stdout), ("stderr", outcome.stderr))
    ]
    if _lacked_network(outcome):
        parts.append(NO_NETWORK)
    if read_only and outcome.exit_code and _output_matches(_WANTED_TO_WRITE, outcome.stderr, outcome.stdout):
        parts.append(READ_ONLY)
    return "\n".join(parts)


def _lacked_network(outcome: ProgramOutcome) -> bool:
    """Tell whether it seems to have needed a network; a command that timed out may have waited for it."""
    if outcome.tier is Tier.OFF or outcome.timed_out:
        return outcome.tier is not Tier.OFF
    looked_into = (outcome.stderr, outcome.stdout) if outcome.exit_code else (outcome.stderr,)
    return _output_matches(_WANTED_NETWORK, *looked_into)


def _output_matches(requested: re.Pattern[bytes], *outputs: CapturedOutput) -> bool:
    return any(requested.search((output.head + output.tail)[-MAX_INSPECTED_BYTES:]) for output in outputs)


def _output_text(output: CapturedOutput) -> str:
    return output.text.rstrip("\n") or "(empty)"


def _text_of_access(proposed: str, counted: FolderAccess) -> str:
    if proposed == counted:
        return f"access: {proposed}"
    return f"access: {proposed}, which this sandbox does not enforce, so it counts as {counted}"


def _tier_text(tier: Tier) -> str:
    match tier:
        case Tier.STRICT:
            return "strict (sees the system read-only and the workspace; no network)"
        case Tier.GUARDED:
            return "guarded (reads the system and changes the workspace; no network)"
        case Tier.OFF:
            return "off (may do whatever you may do)"
