"""`palyra sandbox`: which sandboxes work on this machine."""

import asyncio
import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import click

from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.terminal.output import paint, show_json
from palyra.cli.terminal.printable import printable_line
from palyra.cli.terminal.wrapping import hang
from palyra.core.errors import PalyraError
from palyra.gateway.client.target import find_daemon
from palyra.home import Home
from palyra.sandbox.base import ProgramOutcome, ResourceLimits, SandboxJob, Tier
from palyra.sandbox.files.root import WorkspaceRoot
from palyra.sandbox.files.workspace import Workspace
from palyra.sandbox.processes import cgroups, seccomp
from palyra.sandbox.processes.mounts import HiddenFolders
from palyra.sandbox.processes.process import ProcessSandbox, private_to
from palyra.sandbox.processes.tiers import find, tier_problem
from palyra.sandbox.search.ripgrep import PROGRAM, names
from palyra.sandbox.search.search import RequiredWords, SearchQuery
from palyra.settings import Settings

TRIAL = ResourceLimits(wall=timedelta(seconds=10))
TIER_DESCRIPTIONS = {
    Tier.STRICT: "read-only system, access to its workspace; no network, no other processes",
    Tier.GUARDED: "reads the system, writes only to its workspace; no network; can see which files exist",
    Tier.OFF: "only resource limits apply",
}
MARGIN = 20
"""The column where the text about a tier begins."""


@dataclass(frozen=True, slots=True)
class TierCheck:
    """The status of a tier on this machine."""

    tier: Tier
    works: bool
    is_set: bool
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class SearchCheck:
    """How file searches are done on this machine."""

    ripgrep: bool
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class MemoryAccounting:
    """How the memory of programs is counted."""

    by_group: bool
    what: str
    remedy: str = ""


@click.group(cls=PalyraGroup)
def sandbox() -> None:
    """Check the sandbox for programs that agents run."""


@sandbox.command()
def check(invocation: Invocation) -> Exit:
    """Test every sandbox tier on this machine, how memory is limited, and whether ripgrep is used.

    \b
    Exit codes: 0 the configured tier works, 1 it does not.
    """
    requested_tier = Tier(invocation.settings.sandbox.tier)
    tier_checks = [
        check_tier(tier, requested_tier=requested_tier, home=invocation.home, settings=invocation.settings)
        for tier in Tier
    ]
    searching = try_search(requested_tier)
    counting = check_memory_accounting(invocation.home)
    if invocation.json:
        answer = {
            "tier": requested_tier,
            "ok": _works(tier_checks),
            "tiers": tier_checks,
            "search": searching,
            "memory": counting,
        }
        show_json(answer)
    else:
        _print_checks(tier_checks)
        print("\n" + hang(f"Memory: {counting.what}. {counting.remedy}".rstrip(), indent=0))
        print("\n" + hang(f"File search: {searching.what}. {searching.remedy}".rstrip(), indent=0))
    return Exit.DONE if _works(tier_checks) else Exit.FAILED


def check_tier(
    tier: Tier, *, requested_tier: Tier, home: Home | None = None, settings: Settings | None = None
) -> TierCheck:
    """Run a program in a tier, and return the result: the configured tier is tried in the workspace."""
    is_set = tier is requested_tier
    missing = tier_problem(tier)
    if missing is not None:
        return TierCheck(tier, False, is_set, missing.reason, missing.remedy)
    with tempfile.TemporaryDirectory(prefix="palyra-trial-") as folder:
        root, outside = Path(folder, "root"), Path(folder, "outside")
        root.mkdir()
        outside.write_text("seen")
        if is_set and settings is not None and settings.workspace.root is not None:
            root = Path(settings.workspace.root).expanduser()
        private = private_to(home) if home is not None else HiddenFolders()
        command = ("/bin/sh", "-c", 'cat "$0" 2>/dev/null; echo works', str(outside))
        job = SandboxJob(
            argv=command,
            roots=(WorkspaceRoot(root),),
            folder=Path(os.path.realpath(root)),
            read_only=True,
            bounds=TRIAL,
        )
        try:
            outcome = asyncio.run(ProcessSandbox(tier, private=private).run(job))
        except PalyraError as error:
            return TierCheck(tier, False, is_set, error.detail)
    return _judged(tier, outcome, is_set=is_set)


def _judged(tier: Tier, outcome: ProgramOutcome, *, is_set: bool) -> TierCheck:
    text = outcome.stdout.text
    if not text.endswith("works\n"):
        what = f"a program did not run: {outcome.stopped or outcome.stderr.text.strip() or outcome.exit_code}"
        return TierCheck(tier, False, is_set, what)
    if tier is not Tier.OFF and text != "works\n":
        return TierCheck(tier, False, is_set, "a program could read a file outside its workspace")
    unfiltered = tier is Tier.STRICT and seccomp.build(tier) is None
    more = f"; no system call filter, because {platform.machine()} is not supported" if unfiltered else ""
    return TierCheck(tier, True, is_set, TIER_DESCRIPTIONS[tier] + more)


def check_memory_accounting(home: Home) -> MemoryAccounting:
    """Return how a running daemon counts the memory of programs, or one that is started here would."""
    daemon = find_daemon(home)
    cgroup_support = cgroups.find(daemon.pid if daemon is not None else None)
    if cgroup_support.base is not None:
        return MemoryAccounting(True, f"limited by the kernel (control groups below {cgroup_support.base})")
    remedy = (
        "With systemd, `palyra service install` creates a control group for the daemon."
        if sys.platform == "linux"
        else ""
    )
    return MemoryAccounting(
        False, f"limited by the supervisor, which denies memory that it cannot count: {cgroup_support.reason}", remedy
    )


def try_search(tier: Tier) -> SearchCheck:
    """Make ripgrep find a file as a search of many files does, and return the result."""
    if tier is not Tier.STRICT:
        return SearchCheck(False, "reads every file, because ripgrep is used only in the strict tier")
    if missing := tier_problem(Tier.STRICT):
        return SearchCheck(False, f"reads every file: {missing.reason}", missing.remedy)
    program = find(PROGRAM)
    if program is None:
        remedy = "Install it for faster searches in large workspaces: `apt install ripgrep` or `dnf install ripgrep`."
        return SearchCheck(False, "reads every file, because ripgrep is not installed", remedy)
    with tempfile.TemporaryDirectory(prefix="palyra-trial-") as folder:
        Path(folder, "here").write_text("works\n")
        request = names(
            ProcessSandbox(Tier.STRICT, private=HiddenFolders()),
            Workspace((Path(folder),)),
            SearchQuery("works"),
            RequiredWords(("works",), any_case=True),
        )
        if asyncio.run(request) != frozenset({"here"}):
            return SearchCheck(False, f"reads every file, because {program} does not work in the strict sandbox")
    return SearchCheck(True, f"uses {program} for long searches")


def _works(tier_checks: list[TierCheck]) -> bool:
    return any(one.works for one in tier_checks if one.is_set)


def _print_checks(tier_checks: list[TierCheck]) -> None:
    for one in tier_checks:
        state = paint("works  ", "green") if one.works else paint("lacking", "red" if one.is_set else "yellow")
        print(f"{'*' if one.is_set else ' '} {one.tier:<8} {state}  {hang(printable_line(one.what), indent=MARGIN)}")
        if one.remedy:
            print(f"{' ' * MARGIN}{hang(printable_line(one.remedy), indent=MARGIN)}")
    print("\n* configured as sandbox.tier")
