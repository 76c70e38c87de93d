"""The exit codes, and which one an error ends with."""

from enum import IntEnum

from palyra.core.errors import Invalid, PalyraError


class Exit(IntEnum):
    """How a command ended."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2
    UNREACHABLE = 3
    CANCELLED = 4
    WAITING = 5
    """The run waits for an approval, and this command no longer does."""
    UNEXPECTED = 70
    """An internal error of Palyra (EX_SOFTWARE)."""
    INTERRUPTED = 130
    """Ctrl-C, as shells report it."""
    PIPE_CLOSED = 141
    """The output is not read any more, as shells report it."""


def exit_of(error: PalyraError) -> Exit:
    """Return the exit code for an error that ended a command."""
    # Imported here: it costs more than the rest of the command line, and most starts do not need it.
    from palyra.gateway.client.errors import DaemonUnreachable, RemoteError

    match error:
        case DaemonUnreachable():
            return Exit.UNREACHABLE
        case Invalid():
            return Exit.BAD_INPUT
        case RemoteError(status=400 | 413 | 422):
            return Exit.BAD_INPUT
        case _:
            return Exit.FAILED
