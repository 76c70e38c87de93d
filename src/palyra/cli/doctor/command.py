"""`palyra doctor`: check this installation and show how to fix it."""

from pathlib import Path

import click

from palyra.cli.doctor.check import FAIL, OK, WARN, Check
from palyra.cli.doctor.checks import check_all
from palyra.cli.doctor.support_bundle import write_bundle
from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation, PalyraCommand
from palyra.cli.terminal.output import paint, plural, say
from palyra.cli.terminal.printable import printable_line
from palyra.cli.terminal.wrapping import hang

_COLOURS = {OK: "green", WARN: "yellow", FAIL: "red"}


@click.command(cls=PalyraCommand)
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write a support bundle (.tar.gz): results, settings and log, without secrets.",
)
def doctor(invocation: Invocation, *, bundle: Path | None) -> Exit:
    """Check this installation, its home folder and its daemon, and suggest fixes.

    \b
    Exit codes: 0 no errors, 1 errors.
    """
    checks = check_all(invocation)
    if bundle is not None:
        parts = write_bundle(invocation, bundle, checks)
        say(f"Wrote {bundle}: {', '.join(parts)}. Review it before you share it.")
    if not invocation.printed_json({"ok": not _failed(checks), "checks": checks}):
        _print_checks(checks)
    return Exit.FAILED if _failed(checks) else Exit.DONE


def _print_checks(checks: list[Check]) -> None:
    longest = max(len(check.name) for check in checks)
    for check in checks:
        state = paint(check.state.ljust(4), _COLOURS[check.state])
        margin = longest + 8
        print(f"{state}  {check.name.ljust(longest)}  {hang(printable_line(check.what), indent=margin)}")
        if check.remedy:
            print(f"{' ' * margin}{hang(printable_line(check.remedy), indent=margin)}")
    failed, warned = (sum(check.state == state for check in checks) for state in (FAIL, WARN))
    print()
    if failed or warned:
        print(f"{plural(failed, 'error')}, {plural(warned, 'warning')}.")
    else:
        print("No problems found.")


def _failed(checks: list[Check]) -> bool:
    return any(check.state == FAIL for check in checks)
