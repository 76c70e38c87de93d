"""`palyra policy shadow`: a candidate set of policies, evaluated beside the one in force, that decides nothing."""

from pathlib import Path

import click

from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.terminal.output import date_time, facts, paint, plural, say, show
from palyra.cli.terminal.printable import printable_line
from palyra.core.errors import Invalid
from palyra.core.policy.policy_shadow import DecisionDifference, DifferenceGroup, PolicyFile, ShadowPolicy
from palyra.policy.cedar_source import PolicyProblem
from palyra.policy.loader import PolicyInvalid

EXAMPLES_SHOWN = 2


class PolicyFileNotFound(Invalid):
    """No policy files found. Give files, or a folder with .cedar files."""


@click.group(cls=PalyraGroup)
def shadow() -> None:
    """Test new policies on real calls, without applying them.

    \b
      palyra policy shadow start new-policies/
      palyra policy shadow report
      palyra policy shadow stop

    The candidate replaces policy/*.cedar of the home, in addition to the built-in policies. Each call is evaluated
    a second time with it, after the real decision. Its results are only reported.
    """


@shadow.command("start")
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
def start(invocation: Invocation, paths: tuple[Path, ...]) -> None:
    """Start shadow evaluation of the policies in PATHS (files or folders). Without PATHS, reads the same files again.

    If the candidate changed, the counts start again; otherwise they continue. Shadow evaluation survives a restart.
    """
    shadow = invocation.client.policy_shadow
    if not paths:
        before = shadow.report().shadow
        paths = tuple(Path(name) for name in before.files)
    files = read_candidate(paths)
    begun = shadow.start(files)
    if invocation.printed_json(begun):
        return
    goes_on = f" {plural(begun.judged, 'call')} evaluated so far." if begun.judged else ""
    print(f"Shadow evaluation of {begun.hash} is on ({plural(len(files), 'file')}).{goes_on}")
    say("palyra: the candidate is not applied. See the differences with `palyra policy shadow report`.")


@shadow.command("status")
def status(invocation: Invocation) -> None:
    """Show the candidate, since when it is evaluated, and the number of differences."""
    shadow_policy = invocation.client.policy_shadow.report().shadow
    invocation.report(shadow_policy, facts(*_facts(shadow_policy)))


@shadow.command("report")
def report(invocation: Invocation) -> None:
    """List the differences to the real decisions, by clause, with counts and the latest calls."""
    shadow_report = invocation.client.policy_shadow.report()
    if invocation.printed_json(shadow_report):
        return
    for clause in shadow_report.clauses:
        show([_title(clause)])
        for example in clause.examples[:EXAMPLES_SHOWN]:
            show(_example(example))
        print()
    one = shadow_report.shadow
    print(
        f"{plural(one.judged, 'call')} evaluated since {date_time(one.started_at)},"
        f" {plural(one.flipped, 'different decision')}."
        + (f" Stopped {date_time(one.stopped_at)}." if one.stopped_at is not None else "")
    )
    if one.failed:
        say(
            f"palyra: {plural(one.failed, 'call')} could not be evaluated with the candidate:"
            f" {printable_line(one.failure)}"
        )


@shadow.command("stop")
def stop(invocation: Invocation) -> None:
    """Stop shadow evaluation. The report is kept until the next start."""
    ended = invocation.client.policy_shadow.end()
    if invocation.printed_json(ended):
        return
    print(
        f"Shadow evaluation of {ended.hash} is off. {plural(ended.judged, 'call')},"
        f" {plural(ended.flipped, 'different decision')}."
    )


def read_candidate(paths: tuple[Path, ...]) -> list[PolicyFile]:
    """Read the policy files: each file, and of each folder those that end in .cedar."""
    matching_paths: list[Path] = []
    for path in paths:
        matching_paths += sorted(one for one in path.glob("*.cedar") if not one.is_dir()) if path.is_dir() else [path]
    if not matching_paths:
        raise PolicyFileNotFound
    return [PolicyFile(name=str(path.absolute()), text=_read(path)) for path in dict.fromkeys(matching_paths)]


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise PolicyInvalid(
            [PolicyProblem(str(path), line, 1, "The file is not valid UTF-8.", "Save the file as UTF-8.")]
        ) from None
    except OSError as error:
        what = f"The file cannot be read: {error.strerror}."
        raise PolicyInvalid([PolicyProblem(str(path), 1, 1, what, "Fix its permissions.")]) from None


def _facts(one: ShadowPolicy) -> list[tuple[str, str | None]]:
    return [
        ("candidate", one.hash),
        ("files", ", ".join(one.files)),
        ("state", "judges" if one.stopped_at is None else f"stopped {date_time(one.stopped_at)} by {one.stopped_by}"),
        ("since", f"{date_time(one.started_at)}, by {one.started_by}"),
        ("calls", str(one.judged)),
        ("otherwise", str(one.flipped)),
        ("failed", f"{one.failed}: {one.failure}" if one.failed else None),
    ]


def _title(clause: DifferenceGroup) -> str:
    ways = f"{clause.was.value} → {clause.would.value}"
    if not clause.was_by and not clause.would_by:
        return f"{plural(clause.calls, 'call')}: {paint(ways, 'yellow')} in further ways"
    by = printable_line(", ".join(clause.would_by) or "no policy")
    before = printable_line(", ".join(clause.was_by) or "no policy")
    return f"{plural(clause.calls, 'call')}: {paint(ways, 'yellow')} by {by} (now: {before})"


def _example(flip: DecisionDifference) -> list[str]:
    return [
        f"    {flip.call_id}  {printable_line(flip.tool)}, {flip.risk.value} risk, {date_time(flip.at)}",
        f"        now: {flip.was.value}. {printable_line(flip.was_reason)}",
        f"        candidate: {flip.would.value}. {printable_line(flip.would_reason)}",
    ]
