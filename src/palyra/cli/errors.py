"""How errors are printed: one line that says what happened and what to do, and the exit code."""

import sys

from palyra.cli.exit_codes import Exit, exit_of
from palyra.cli.options import Invocation
from palyra.cli.terminal.printable import printable_line
from palyra.core.errors import Invalid, PalyraError


class ConfirmationRequired(Invalid):
    """Nothing was changed: no terminal is attached to confirm it. Pass `--yes` once you have read what it does."""


class SecretInArguments(Invalid):
    """Other programs can see a secret on the command line, and the shell stores it in its history."""


class ArgumentInvalid(Invalid):
    """The argument is not valid UTF-8. Nothing was changed."""


def print_error(error: Exception, *, invocation: Invocation, prog: str) -> Exit:
    """Print the error on stderr and return the exit code."""
    if isinstance(error, UnicodeEncodeError) and "\udc80" <= error.object[error.start] <= "\udcff":
        # This is how Python represents a byte of an argument that it could not decode.
        error = ArgumentInvalid()
    if isinstance(error, PalyraError):
        print(f"{prog}: {describe(error)}", file=sys.stderr)
        return exit_of(error)
    what = printable_line(f"{type(error).__name__}: {error}", width=300)
    print(
        f"{prog}: Unexpected error ({what}). {_log_hint(invocation)}"
        "Set PALYRA_DEBUG=1 to see the traceback. [unexpected]",
        file=sys.stderr,
    )
    return Exit.UNEXPECTED


def describe(error: PalyraError) -> str:
    """Return what happened, when to retry if that is known, and the code."""
    detail = printable_line(error.detail)
    wait = getattr(error, "retry_after", None)
    hint = f" Try again in {_seconds(wait)} s." if isinstance(wait, int | float) and wait > 0 else ""
    return f"{detail}{hint} [{error.code}]"


def _seconds(wait: float) -> str:
    return f"{wait:.0f}" if wait >= 1 else f"{wait:.1f}"


def _log_hint(invocation: Invocation) -> str:
    try:
        log = invocation.home.log
    except PalyraError:
        return ""
    return f"The daemon's log is {log}. " if log.exists() else ""
