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

from palyra.cli.exits import Exit
from palyra.cli.flow import hang
from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.output import paint, show_json
from palyra.cli.printable import printable_line
from palyra.core.errors import PalyraError
from palyra.gateway.target import find_daemon
from palyra.home import Home
from palyra.sandbox import groups, seccomp
from palyra.sandbox.base import Bounds, Job, Outcome, Tier
from palyra.sandbox.places import Private
from palyra.sandbox.process import ProcessSandbox, private_to
from palyra.sandbox.ripgrep import PROGRAM, names
from palyra.sandbox.root import Root
from palyra.sandbox.search import Needles, Query
from palyra.sandbox.tiers import find, lack
from palyra.sandbox.workspace import Workspace
from palyra.settings import Settings

TRIAL = Bounds(wall=timedelta(seconds=10))
SAID = {
    Tier.STRICT: "sees the system read-only and its workspace; no network, no other processes",
    Tier.GUARDED: "reads the system, changes its workspace; no network; can tell whether a file is there",
    Tier.OFF: "keeps a program from nothing but taking too much",
}
MARGIN = 20
"""Where the text about a tier begins."""


@dataclass(frozen=True, slots=True)
class Found:
    """How a tier stands on this machine."""

    tier: Tier
    works: bool
    is_set: bool
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Searching:
    """How long searches of files are made on this machine."""

    ripgrep: bool
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Counting:
    """How the memory of programs is counted."""

    by_group: bool
    what: str
    remedy: str = ""


@click.group(cls=PalyraGroup)
def sandbox() -> None:
    """What the programs that an agent runs are kept from."""


@sandbox.command()
@click.pass_obj
def check(invocation: Invocation) -> Exit:
    """Try every tier on this machine, say what the others lack, how memory is counted, and whether ripgrep is used.

    \b
    Exit codes: 0 the tier that is set works, 1 it does not.
    """
    wanted = Tier(invocation.settings.sandbox.tier)
    found = [try_out(tier, wanted=wanted, home=invocation.home, settings=invocation.settings) for tier in Tier]
    searching = try_search(wanted)
    counting = look_at_counting(invocation.home)
    if invocation.json:
        answer = {"tier": wanted, "ok": _works(found), "tiers": found, "search": searching, "memory": counting}
        show_json(answer)
    else:
        _tell(found)
        print("\n" + hang(f"Memory is counted {counting.what}. {counting.remedy}".rstrip(), indent=0))
        print("\n" + hang(f"Searches of files {searching.what}. {searching.remedy}".rstrip(), indent=0))
    return Exit.DONE if _works(found) else Exit.FAILED


def try_out(tier: Tier, *, wanted: Tier, home: Home | None = None, settings: Settings | None = None) -> Found:
    """Run a program in a tier, and say how it went: the one that is set is tried where programs will work."""
    is_set = tier is wanted
    missing = lack(tier)
    if missing is not None:
        return Found(tier, False, is_set, missing.reason, missing.remedy)
    with tempfile.TemporaryDirectory(prefix="palyra-trial-") as folder:
        root, outside = Path(folder, "root"), Path(folder, "outside")
        root.mkdir()
        outside.write_text("seen")
        if is_set and settings is not None and settings.workspace.root is not None:
            root = Path(settings.workspace.root).expanduser()
        private = private_to(home) if home is not None else Private()
        command = ("/bin/sh", "-c", 'cat "$0" 2>/dev/null; echo works', str(outside))
        job = Job(argv=command, roots=(Root(root),), folder=Path(os.path.realpath(root)), read_only=True, bounds=TRIAL)
        try:
            outcome = asyncio.run(ProcessSandbox(tier, private=private).run(job))
        except PalyraError as error:
            return Found(tier, False, is_set, error.detail)
    return _judged(tier, outcome, is_set=is_set)


def _judged(tier: Tier, outcome: Outcome, *, is_set: bool) -> Found:
    said = outcome.stdout.text
    if not said.endswith("works\n"):
        what = f"a program did not run: {outcome.stopped or outcome.stderr.text.strip() or outcome.exit_code}"
        return Found(tier, False, is_set, what)
    if tier is not Tier.OFF and said != "works\n":
        return Found(tier, False, is_set, "a program could read a file outside of its workspace")
    unfiltered = tier is Tier.STRICT and seccomp.build(tier) is None
    more = f"; no filter on system calls, since those of {platform.machine()} are not known here" if unfiltered else ""
    return Found(tier, True, is_set, SAID[tier] + more)


def look_at_counting(home: Home) -> Counting:
    """Say how a running daemon counts the memory of programs, or one that is started here would."""
    daemon = find_daemon(home)
    found = groups.find(daemon.pid if daemon is not None else None)
    if found.base is not None:
        return Counting(True, f"by the kernel, in control groups below {found.base}")
    remedy = "With systemd, `palyra service install` gives the daemon one." if sys.platform == "linux" else ""
    return Counting(False, f"by the supervisor, and what it cannot count is denied: {found.reason}", remedy)


def try_search(wanted: Tier) -> Searching:
    """Have ripgrep find a file as a search of many files does, and say how it went."""
    if wanted is not Tier.STRICT:
        return Searching(False, "read every file: ripgrep runs in the strict tier only")
    if missing := lack(Tier.STRICT):
        return Searching(False, f"read every file: {missing.reason}", missing.remedy)
    program = find(PROGRAM)
    if program is None:
        remedy = "Large workspaces are searched faster with it: `apt install ripgrep`, `dnf install ripgrep`."
        return Searching(False, "read every file: ripgrep is not installed", remedy)
    with tempfile.TemporaryDirectory(prefix="palyra-trial-") as folder:
        Path(folder, "here").write_text("works\n")
        asked = names(
            ProcessSandbox(Tier.STRICT, private=Private()),
            Workspace((Path(folder),)),
            Query("works"),
            Needles(("works",), any_case=True),
        )
        if asyncio.run(asked) != frozenset({"here"}):
            return Searching(False, f"read every file: {program} did not find one in the strict sandbox")
    return Searching(True, f"are helped by {program} if they take long")


def _works(found: list[Found]) -> bool:
    return any(one.works for one in found if one.is_set)


def _tell(found: list[Found]) -> None:
    for one in found:
        state = paint("works  ", "green") if one.works else paint("lacking", "red" if one.is_set else "yellow")
        print(f"{'*' if one.is_set else ' '} {one.tier:<8} {state}  {hang(printable_line(one.what), indent=MARGIN)}")
        if one.remedy:
            print(f"{' ' * MARGIN}{hang(printable_line(one.remedy), indent=MARGIN)}")
    print("\n* is set as sandbox.tier.")
