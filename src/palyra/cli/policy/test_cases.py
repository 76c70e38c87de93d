"""`palyra policy test`: calls with their expected verdicts."""

import tomllib
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation, PalyraCommand
from palyra.cli.policy.simulate import LABELS
from palyra.cli.policy.tools import spec_of, tools_of
from palyra.cli.terminal.output import paint, plural, show_json
from palyra.cli.terminal.printable import printable_line
from palyra.core.errors import Invalid
from palyra.core.tool import Verdict
from palyra.policy.gate import Gate, Judgement
from palyra.policy.loader import load, load_files
from palyra.policy.simulation import HypotheticalCall, judge_hypothetical


class PolicyCasesInvalid(Invalid):
    """The file of test cases is not valid. See docs/guides/policy.md for an example."""


class Case(HypotheticalCall, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A hypothetical call and its expected verdict."""

    expect: Verdict
    name: str = ""
    policy: str | None = None
    """The id of a policy that must contribute to the verdict."""


class Cases(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a file of cases."""

    case: tuple[Case, ...]


@click.command("test", cls=PalyraCommand)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--policy",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A policy file to use instead of the home's; repeatable.",
)
def run_cases(invocation: Invocation, file: Path, *, files: tuple[Path, ...]) -> Exit:
    """Test the policies with the cases in FILE (TOML or JSON) and report those that fail.

    \b
    Exit codes: 0 all passed, 1 some failed, 2 a file cannot be used.
    """
    cases = read_cases(file)
    gate = Gate(load_files(files) if files else load(invocation.home))
    catalog = tools_of(invocation)
    judged = [(case, judge_hypothetical(gate, case, spec_of(invocation, catalog, case.tool))) for case in cases]
    wrong = [(case, judgement) for case, judgement in judged if not _holds(case, judgement)]
    if invocation.json:
        show_json(
            {"ok": not wrong, "cases": len(cases), "hash": gate.policy_hash, "wrong": [_fields(*w) for w in wrong]}
        )
        return Exit.FAILED if wrong else Exit.DONE
    for case, judgement in wrong:
        print(f"{paint(printable_line(_title(case)), 'red')}: {_difference(case, judgement)}")
        print(f"    {printable_line(judgement.reason)} Policies: {', '.join(judgement.policies) or 'none'}.")
    if wrong:
        print(f"\n{len(wrong)} of {plural(len(cases), 'case')} failed.")
    else:
        print(f"{plural(len(cases), 'case')} passed.")
    return Exit.FAILED if wrong else Exit.DONE


def read_cases(path: Path) -> tuple[Case, ...]:
    """Read a file of cases; raise `PolicyCasesInvalid` saying what is wrong."""
    try:
        text = path.read_text("utf-8")
        table = msgspec.json.decode(text) if path.suffix == ".json" else tomllib.loads(text)
        cases = msgspec.convert(table, Cases).case
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.MsgspecError) as error:
        raise PolicyCasesInvalid(f"{path}: {error}. See docs/guides/policy.md for an example.") from error
    for case in cases:
        if case.label not in LABELS:
            raise PolicyCasesInvalid(f"{path}: unknown label {case.label!r}. Use one of: {', '.join(LABELS)}.")
    return cases


def _holds(case: Case, judgement: Judgement) -> bool:
    return judgement.verdict is case.expect and (case.policy is None or case.policy in judgement.policies)


def _difference(case: Case, judgement: Judgement) -> str:
    if judgement.verdict is not case.expect:
        return f"expected {case.expect}, got {judgement.verdict}."
    return f"expected policy {case.policy} to contribute, but it did not."


def _title(case: Case) -> str:
    return case.name or f"{case.tool} {case.command or msgspec.json.encode(case.arguments).decode()}"


def _fields(case: Case, judgement: Judgement) -> dict[str, object]:
    return {"case": _title(case), "expected": case.expect, "verdict": judgement.verdict, "reason": judgement.reason}
