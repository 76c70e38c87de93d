"""`palyra stop` and `palyra resume`: the emergency stop, also where no daemon answers."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from palyra.cli.errors import describe
from palyra.cli.options import Invocation, PalyraCommand
from palyra.cli.terminal.output import plural, say
from palyra.cli.terminal.printable import printable_line
from palyra.core.errors import Invalid, PalyraError, Unavailable
from palyra.core.ids import PrincipalId
from palyra.core.message import repair_text
from palyra.core.stop import MAX_STOP_REASON_CHARS, EmergencyStop
from palyra.core.token import TokenScopeMissing

if TYPE_CHECKING:
    pass

T = TypeVar("T")

RESPONSE_TIMEOUT_SECONDS = 5.0
OWNER = PrincipalId("user:owner")
RESUME_HINT = "Resume with `palyra resume`."


class DaemonRequired(Unavailable):
    """No daemon answers, so a single principal cannot be stopped. Stop all work with `palyra stop`."""


class StopFileNotWritable(Unavailable):
    """The file STOP cannot be written."""


class StopTargetConflict(Invalid):
    """--all and --principal cannot be used together."""


@click.command(cls=PalyraCommand)
@click.option(
    "--all", "everything", is_flag=True, help="Stop the work of all principals (default without --principal)."
)
@click.option("--principal", metavar="PRINCIPAL", help="Only the work of this principal, such as user:ana.")
@click.option("--reason", metavar="TEXT", default="", help="Reason to show to everyone.")
def stop(invocation: Invocation, *, everything: bool, principal: str | None, reason: str) -> None:
    """Emergency stop: stop all work until `palyra resume`.

    Active runs and their tools are cancelled, queued runs wait, and new messages are rejected, also after a restart. If
    the daemon does not answer or cannot write, the file STOP is created in the home folder; a daemon obeys it within a
    second, and before it starts any work. A token without the scope `admin` stops only its own work.
    """
    if everything and principal is not None:
        raise StopTargetConflict
    from palyra.gateway.client.errors import DaemonUnreachable, RemoteError

    # An emergency stop is never refused because of its reason text.
    reason = " ".join(repair_text(reason).split())[:MAX_STOP_REASON_CHARS]
    try:
        stops = invocation.client_within(RESPONSE_TIMEOUT_SECONDS).stops
        halted = _as_administrator(
            lambda: stops.admin_create(principal=principal, reason=reason),
            own=lambda: stops.create(reason=reason),
            principal=principal,
        )
    except (DaemonUnreachable, RemoteError) as error:
        # A daemon that cannot write its journal, or is broken, still checks for the file.
        if isinstance(error, RemoteError) and error.status < 500:
            raise
        if principal is not None:
            raise DaemonRequired from error
        _stop_by_file(invocation, reason)
        return
    if not invocation.printed_json(halted):
        ended = plural(halted.cancelled_runs, "active run")
        print(f"{printable_line(halted.stop.description)} Cancelled {ended}. {RESUME_HINT}")


@click.command(cls=PalyraCommand)
@click.option("--principal", metavar="PRINCIPAL", help="Only the work of this principal, such as user:ana.")
@click.option("--remove-file", is_flag=True, help="Also remove the file STOP from the home folder.")
def resume(invocation: Invocation, *, principal: str | None, remove_file: bool) -> None:
    """Resume work after `palyra stop`: queued runs start, and new messages are accepted."""
    stops = invocation.client_within(RESPONSE_TIMEOUT_SECONDS).stops
    done = _as_administrator(
        lambda: stops.admin_resume(principal=principal, remove_file=remove_file),
        own=stops.resume,
        principal=principal,
    )
    if invocation.printed_json(done):
        return
    for one in done.resumed:
        what = "all work" if one.principal is None else f"the work of {one.principal}"
        print(f"Resumed {printable_line(what)}.")
    for one in done.stops:
        say(f"Still in effect: {printable_line(one.description)}")


def _as_administrator(ask: Callable[[], T], *, own: Callable[[], T], principal: str | None) -> T:
    """Send the request as an administrator; without that scope, for the caller's own work if no principal is named."""
    from palyra.gateway.client.errors import RemoteError

    try:
        return ask()
    except RemoteError as error:
        if error.code != TokenScopeMissing.code or principal is not None:
            raise
        return own()


def _stop_by_file(invocation: Invocation, reason: str) -> None:
    path = invocation.home.stop
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Append, do not replace: an earlier stop has a reason too. A pipe has no reader.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(f"{reason}\n")
    except OSError as error:
        # Anything with that name stops everything, even if no reason can be written into it.
        if not os.path.lexists(path):
            raise StopFileNotWritable(
                f"{path} cannot be written ({error.strerror}), and no daemon answers. Nothing was stopped. "
                f"Run `touch {path}` as the home's owner to stop everything."
            ) from error
    shared = _stop_in_database(invocation, reason)
    if invocation.printed_json({"file": str(path), "database": shared}):
        return
    print(
        f"No daemon answered. Created {path}, which stops all work: a running daemon obeys it within a second, and a"
        " new one before it starts any work."
    )
    if shared:
        print("Other daemons on the same database are stopped too.")
    print("Resume with `palyra resume --remove-file`.")


def _stop_in_database(invocation: Invocation, reason: str) -> bool:
    """Write the stop into a database that other daemons may share; they do not see the file of this home."""
    try:
        if invocation.settings.journal.database_url is None:
            return False
        from palyra.daemon.process.system_clock import SystemClock, SystemIds
        from palyra.journal import offline
        from palyra.journal.stores import stops

        clock = SystemClock()
        fresh = EmergencyStop(stop_id=SystemIds(clock).new(), principal=None, by=OWNER, at=clock.now(), reason=reason)
        with offline.open_writer(invocation.home, invocation.settings) as writer:
            writer.write(lambda conn: stops.insert(conn, fresh))
    except PalyraError as error:
        say(f"palyra: other daemons on the same database could not be stopped: {describe(error)}")
        return False
    return True
