"""`palyra policy`: list policies, check them, and show what they decide about a call."""

from pathlib import Path

import click

from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.policy.shadow import shadow
from palyra.cli.policy.simulate import explain, simulate
from palyra.cli.policy.test_cases import run_cases
from palyra.cli.policy.tools import misnamed_tools, tools_of
from palyra.cli.terminal.output import paint, plural, show, show_json, table
from palyra.cli.terminal.printable import printable, printable_line
from palyra.core.errors import NotFound
from palyra.policy import cedar
from palyra.policy.cedar_source import Policy, permits_by_words
from palyra.policy.loader import SHIPPED, Policies, examine, load, shipped, user_files


class PolicyNotFound(NotFound):
    """Unknown policy id. List them with `palyra policy show`."""


@click.group(cls=PalyraGroup)
def policy() -> None:
    """Check, explain and test policies: which calls are allowed, need approval or are denied.

    Your policies are in policy/*.cedar in the home folder, in addition to the built-in ones. After a change, run
    `palyra config reload`.
    """


policy.add_command(explain)
policy.add_command(run_cases)
policy.add_command(simulate)
policy.add_command(shadow)


def _notes(invocation: Invocation, policies: list[Policy]) -> list[tuple[str, str]]:
    """Return what is valid in policies but hardly intended, and where."""
    notes = [
        (where, f"{what} The policy never applies.") for where, what in misnamed_tools(policies, tools_of(invocation))
    ]
    for policy_problem in permits_by_words(policies):
        notes.append(
            (
                f"{policy_problem.file}:{policy_problem.line}:{policy_problem.column}",
                f"{policy_problem.what} {policy_problem.remedy}",
            )
        )
    return notes


@policy.command("check")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def check_policy(invocation: Invocation, files: tuple[Path, ...]) -> Exit:
    """Check policy files and list all problems: FILES, or those in the home folder.

    \b
    Exit codes: 0 no problems, 1 problems found.
    """
    paths = files or user_files(invocation.home)
    policies, problems = examine(paths)
    notes = _notes(invocation, policies) if not problems else []
    if invocation.json:
        lines = [{"where": where, "what": what} for where, what in notes]
        named = [str(path) for path in paths]
        show_json({"ok": not problems, "files": named, "problems": problems, "notes": lines})
    elif problems:
        for problem in problems:
            where = f"{problem.file}:{problem.line}:{problem.column}"
            print(f"{paint(printable_line(where), 'red')}: {printable_line(problem.what)}")
            print(f"    {printable_line(problem.remedy)}")
        print(f"\nProblems: {len(problems)}.")
    elif paths:
        print(f"No problems ({plural(len(paths), 'file')}, {plural(len(policies), 'policy')}).")
        for where, what in notes:
            print(f"{paint(printable_line(where), 'yellow')}: {printable_line(what)}")
    else:
        print(f"No problems. {invocation.home.policy} has no files, so the built-in policies apply.")
    return Exit.FAILED if problems else Exit.DONE


@policy.command("show")
@click.argument("name", metavar="[ID]", required=False)
@click.option("--schema", is_flag=True, help="Print the Cedar schema: entities, actions and attributes.")
@click.option("--text", is_flag=True, help="Print the full text of all policies.")
def show_policy(invocation: Invocation, name: str | None, *, schema: bool, text: bool) -> None:
    """Show the active policies and their sources. With an ID, print that policy."""
    if schema:
        print(cedar.schema_text(), end="")
        return
    loaded = load(invocation.home)
    items = [item for item in loaded.items if name in (None, item.id)]
    if not items:
        raise PolicyNotFound(f"Unknown policy {name!r}. List them with `palyra policy show`.")
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
            item.reason or "(no reason)",
        ]
        for item in loaded.items
    ]
    show(table(["ID", "", "SOURCE", "REASON"], rows))
    print(f"\nHash: {loaded.hash}. Print a policy with `palyra policy show ID`.")


def _origin(item: Policy) -> str:
    if item.file == SHIPPED:
        return "shipped"
    replaces = any(item.id == other.id for other in shipped())
    return f"{item.file}:{item.line}{', replaces the built-in one' if replaces else ''}"
