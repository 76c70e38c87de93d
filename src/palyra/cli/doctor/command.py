"""`palyra doctor`: check this installation and show how to fix it."""

from pathlib import Path

import click

from palyra.cli.doctor.checks import FAIL, OK, WARN, Check, check_all
from palyra.cli.doctor.support_bundle import write_bundle
from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation, PalyraCommand
from palyra.cli.terminal.output import paint, say, show_json
from palyra.cli.terminal.printable import printable_line
from palyra.cli.terminal.wrapping import hang

_COLOURS = {OK: "green", WARN: "yellow", FAIL: "red"}


@click.command(cls=PalyraCommand)
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write what helps others to help (.tar.gz): findings, settings and log, without secrets.",
)
@click.pass_obj
def doctor(invocation: Invocation, *, bundle: Path | None) -> Exit:
    """Check this installation, its home and its daemon, and say how to mend what is wrong.

    \b
    Exit codes: 0 nothing failed, 1 something did.
    """
    checks = check_all(invocation)
    if bundle is not None:
        parts = write_bundle(invocation, bundle, checks)
        say(f"{bundle} holds {', '.join(parts)}. Look through it before you give it away.")
    if invocation.json:
        show_json({"ok": not _failed(checks), "checks": checks})
    else:
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
        print(f"{failed} failed, {warned} to look at.")
    else:
        print("All is well.")


def _failed(checks: list[Check]) -> bool:
    return any(check.state == FAIL for check in checks)
