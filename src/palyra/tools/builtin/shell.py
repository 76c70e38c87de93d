"""`shell.run`: run a command line in the sandbox."""

import asyncio
import os
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from palyra.core.display import escape_line, escape_start, quote
from palyra.core.effect import Effect
from palyra.core.tool import Risk, Runtime
from palyra.policy.risk import class_of_command, highest, of_command
from palyra.sandbox.base import Job, Outcome, Output, Tier
from palyra.sandbox.workspace import NotAFolder, Workspace
from palyra.tools.base import ToolContext, tool

USUAL_SECONDS = 60
MOST_SECONDS = 600
SUMMARY_CHARS = 80
SHELLS = ("/bin/bash", "/bin/sh")
NO_NETWORK = (
    "[Programs have no network here: what needs one fails, or waits for it. http.fetch reaches the web; what is to be"
    " installed, the person must install.]"
)
LOOKED_AT = 16 * 1024

_WANTED_NETWORK = re.compile(
    rb"could not resolve|unable to resolve|name resolution|name or service not known|no such host"
    rb"|failed to lookup address|temporary failure resolving|network is unreachable|address family not supported"
    rb"|EAI_AGAIN|ENOTFOUND|ENETUNREACH",
    re.IGNORECASE,
)
"""How programs say that there is no network."""


async def _preview(context: ToolContext, given: Any) -> Effect:
    folder = await asyncio.to_thread(_folder, context.workspace, given.folder)
    # Off the event loop: a line that is made to hurt takes a second.
    risk, kind = await asyncio.to_thread(_judged, given.command, folder, context.workspace)
    tier = context.sandbox.tier
    return Effect(
        # Nothing holds the program back, so that nothing about it is ordinary.
        risk=highest([risk], at_least=Risk.HIGH if tier is Tier.OFF else Risk.MEDIUM),
        summary=f"run {escape_start(given.command, SUMMARY_CHARS)}",
        detail=f"{quote(given.command)}\n\n"
        f"in {escape_line(str(folder))}, {given.seconds} s at most, sandbox: {_said_of(tier)}",
        paths=(str(folder),),
        command=given.command,
        kind=kind,
    )


@tool(
    name="shell.run",
    risk=Risk.MEDIUM,
    timeout_ms=(MOST_SECONDS + 30) * 1000,
    preview=_preview,
    runtime=Runtime.SHELL,
)
async def run(
    context: ToolContext,
    *,
    command: Annotated[str, Meta(min_length=1)],
    folder: str = ".",
    seconds: Annotated[int, Meta(ge=1, le=MOST_SECONDS)] = USUAL_SECONDS,
) -> str:
    """Run a shell command in the workspace, without network."""
    at = await asyncio.to_thread(_folder, context.workspace, folder)
    shell = await asyncio.to_thread(_shell)
    job = Job(
        argv=(shell, "-c", command),
        roots=context.workspace.roots,
        folder=at,
        bounds=replace(context.sandbox.bounds, wall=timedelta(seconds=seconds)),
    )
    return _told(await context.sandbox.run(job))


def _judged(command: str, folder: Path, workspace: Workspace) -> tuple[Risk, str]:
    """Return the risk and the class of a command line.

    The class is bound to the folder too: the same words run another program, or on other files, elsewhere.
    """
    kind = class_of_command(command)
    elsewhere = bool(kind) and folder != _folder(workspace, ".")
    return of_command(command), f"{kind} (in {folder})" if elsewhere else kind


def _folder(workspace: Workspace, folder: str) -> Path:
    """Return where a folder of the workspace really is, since that is where the sandbox shows it."""
    with workspace.reach(folder or ".") as reached:
        if reached.name is not None:
            raise NotAFolder(f"{folder!r} is a file. Name a folder.")
        return Path(reached.path)


def _shell() -> str:
    return next((shell for shell in SHELLS if os.access(shell, os.X_OK)), SHELLS[-1])


def _told(outcome: Outcome) -> str:
    how = f"exit code {outcome.exit_code}"
    if outcome.stopped:
        how = f"stopped: {outcome.stopped} ({how})"
    parts = [f"{how}, {outcome.took.total_seconds():.1f} s, sandbox {outcome.tier}"]
    parts += [f"{name}:\n{_shown(output)}" for name, output in (("stdout", outcome.stdout), ("stderr", outcome.stderr))]
    if _lacked_network(outcome):
        parts.append(NO_NETWORK)
    return "\n".join(parts)


def _lacked_network(outcome: Outcome) -> bool:
    """Tell whether it wanted a network, as far as can be seen; one that took too long may have waited for it."""
    if outcome.tier is Tier.OFF or outcome.timed_out:
        return outcome.tier is not Tier.OFF
    looked_into = (outcome.stderr, outcome.stdout) if outcome.exit_code else (outcome.stderr,)
    return any(_WANTED_NETWORK.search((output.head + output.tail)[-LOOKED_AT:]) for output in looked_into)


def _shown(output: Output) -> str:
    return output.text.rstrip("\n") or "(empty)"


def _said_of(tier: Tier) -> str:
    match tier:
        case Tier.STRICT:
            return "strict (sees the system read-only and the workspace; no network)"
        case Tier.GUARDED:
            return "guarded (reads the system and changes the workspace; no network)"
        case Tier.OFF:
            return "off (may do whatever you may do)"
