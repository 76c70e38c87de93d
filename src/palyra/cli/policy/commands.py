"""`palyra policy`: list policies, check them, and show what they decide about a call."""

from pathlib import Path

import click

from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.policy.shadow import shadow
from palyra.cli.policy.simulate import explain, simulate
from palyra.cli.policy.test_cases import run_cases
from palyra.cli.policy.tools import misnamed_tools, tools_of
from palyra.cli.terminal.output import paint, show, show_json, table
from palyra.cli.terminal.printable import printable, printable_line
from palyra.core.errors import NotFound
from palyra.policy import cedar
from palyra.policy.cedar_source import Policy, permits_by_words
from palyra.policy.loader import SHIPPED, Policies, examine, load, shipped, user_files


class PolicyNotFound(NotFound):
    """There is no policy of that name. `palyra policy show` lists them."""


@click.group(cls=PalyraGroup)
def policy() -> None:
    """Say which calls run, which are asked about and which are denied.

    Your own policies stand in policy/*.cedar of the home folder, on top of those that Palyra is shipped with.
    `palyra config reload` lets a running daemon take them over.
    """


policy.add_command(explain)
policy.add_command(run_cases)
policy.add_command(simulate)
policy.add_command(shadow)


def _notes(invocation: Invocation, policies: list[Policy]) -> list[tuple[str, str]]:
    """Return what is valid in policies but hardly intended, and where."""
    notes = [
        (where, f"{what} What is said of it never holds.")
        for where, what in misnamed_tools(policies, tools_of(invocation))
    ]
    for found in permits_by_words(policies):
        notes.append((f"{found.file}:{found.line}:{found.column}", f"{found.what} {found.remedy}"))
    return notes


@policy.command("check")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
def check_policy(invocation: Invocation, files: tuple[Path, ...]) -> Exit:
    """Find everything that is wrong with policy files: FILES, or those of the home.

    \b
    Exit codes: 0 nothing is wrong, 1 something is.
    """
    paths = files or user_files(invocation.home)
    policies, problems = examine(paths)
    notes = _notes(invocation, policies) if not problems else []
    if invocation.json:
        told = [{"where": where, "what": what} for where, what in notes]
        named = [str(path) for path in paths]
        show_json({"ok": not problems, "files": named, "problems": problems, "notes": told})
    elif problems:
        for problem in problems:
            where = f"{problem.file}:{problem.line}:{problem.column}"
            print(f"{paint(printable_line(where), 'red')}: {printable_line(problem.what)}")
            print(f"    {printable_line(problem.remedy)}")
        print(f"\nProblems: {len(problems)}.")
    elif paths:
        print(f"Nothing is wrong (files: {len(paths)}, policies: {len(policies)}).")
        for where, what in notes:
            print(f"{paint(printable_line(where), 'yellow')}: {printable_line(what)}")
    else:
        print(f"Nothing is wrong: there is no file in {invocation.home.policy}, so the shipped policies count.")
    return Exit.FAILED if problems else Exit.DONE


@policy.command("show")
@click.argument("name", metavar="[ID]", required=False)
@click.option("--schema", is_flag=True, help="Print what policies can speak about.")
@click.option("--text", is_flag=True, help="Print all policies in full.")
@click.pass_obj
def show_policy(invocation: Invocation, name: str | None, *, schema: bool, text: bool) -> None:
    """Show the policies that count and where each is from; with an ID, that one in full."""
    if schema:
        print(cedar.schema_text(), end="")
        return
    loaded = load(invocation.home)
    items = [item for item in loaded.items if name in (None, item.id)]
    if not items:
        raise PolicyNotFound(f"There is no policy {name!r}. `palyra policy show` lists them.")
    if invocation.json:
        show_json({"hash": loaded.hash, "policies": items})
    elif name is not None or text:
        for item in items:
            print(f"{paint(f'// {printable_line(_origin(item))}', 'dim')}\n{printable(item.text)}\n")
    else:
        _print_policies(loaded, home=invocation.home.path)


def _print_policies(loaded: Policies, *, home: Path) -> None:
    rows = [
        [
            item.id,
            "permits" if item.permits else "forbids",
            _origin(item).removeprefix(f"{home}/"),
            item.reason or "(gives no reason)",
        ]
        for item in loaded.items
    ]
    show(table(["ID", "", "FROM", "REASON"], rows))
    print(f"\nHash: {loaded.hash}. `palyra policy show ID` prints one in full.")


def _origin(item: Policy) -> str:
    if item.file == SHIPPED:
        return "shipped"
    replaces = any(item.id == other.id for other in shipped())
    return f"{item.file}:{item.line}{', instead of the shipped one' if replaces else ''}"
