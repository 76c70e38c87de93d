"""`palyra stop` and `palyra resume`: the emergency stop, also where no daemon answers."""

import os
from typing import TYPE_CHECKING, TypeVar

import click
from msgspec import Struct

from palyra.cli.errors import describe
from palyra.cli.options import Invocation, PalyraCommand
from palyra.cli.terminal.output import plural, say, show_json
from palyra.cli.terminal.printable import printable_line
from palyra.core.errors import Invalid, PalyraError, Unavailable
from palyra.core.ids import PrincipalId
from palyra.core.message import repair_text
from palyra.core.stop import MAX_STOP_REASON_CHARS, EmergencyStop

if TYPE_CHECKING:
    from palyra.gateway.client.client import Client

T = TypeVar("T")

RESPONSE_TIMEOUT_SECONDS = 5.0
OWNER = PrincipalId("user:owner")
RESUME_HINT = "`palyra resume` lets work go on."


class DaemonRequired(Unavailable):
    """No daemon answers, so that only everything can be stopped: `palyra stop` without --principal does."""


class StopFileNotWritable(Unavailable):
    """The file that would stop everything can not be written."""


class StopTargetConflict(Invalid):
    """--all and --principal contradict one another."""


class StopResult(Struct, frozen=True, kw_only=True):
    """The stop in force now, and how many active runs it ended."""

    stop: EmergencyStop
    runs: int


class ResumeResult(Struct, frozen=True, kw_only=True):
    """What was lifted, and what is still stopped."""

    lifted: tuple[EmergencyStop, ...]
    stops: tuple[EmergencyStop, ...]


@click.command(cls=PalyraCommand)
@click.option("--all", "everything", is_flag=True, help="Everybody's work; what is done without --principal too.")
@click.option("--principal", metavar="PRINCIPAL", help="The work of one principal only, as in user:ana.")
@click.option("--reason", metavar="TEXT", default="", help="What everybody is told about it.")
@click.pass_obj
def stop(invocation: Invocation, *, everything: bool, principal: str | None, reason: str) -> None:
    """Stop all work at once, until `palyra resume`.

    Active runs end with their tools, queued ones wait, new messages are refused; so it stays over a restart. Where no
    daemon answers, a file STOP is put into the home folder, which a daemon heeds within a second and before it starts
    anything. So it is where the daemon can not write. A token that is no administrator's stops its own work only.
    """
    if everything and principal is not None:
        raise StopTargetConflict
    from palyra.gateway.client.errors import DaemonUnreachable, RemoteError

    # An emergency stop is never refused because of its reason text.
    reason = " ".join(repair_text(reason).split())[:MAX_STOP_REASON_CHARS]
    try:
        halted = _ask(
            invocation, "stop", StopResult, {"principal": principal, "reason": reason}, own={"reason": reason}
        )
    except (DaemonUnreachable, RemoteError) as error:
        # A daemon that cannot write its journal, or is broken, still checks for the file.
        if isinstance(error, RemoteError) and error.status < 500:
            raise
        if principal is not None:
            raise DaemonRequired from error
        _stop_by_file(invocation, reason)
        return
    if invocation.json:
        show_json(halted)
    else:
        ended = plural(halted.runs, "active run")
        print(f"{printable_line(halted.stop.description)} It ended {ended}. {RESUME_HINT}")


@click.command(cls=PalyraCommand)
@click.option("--principal", metavar="PRINCIPAL", help="What was stopped for one principal, as in user:ana.")
@click.option("--remove-file", is_flag=True, help="Take the file STOP out of the home folder first, if it is there.")
@click.pass_obj
def resume(invocation: Invocation, *, principal: str | None, remove_file: bool) -> None:
    """Let work go on that `palyra stop` has stopped: queued runs start, new messages are taken in again."""
    asked = {"principal": principal, "remove_file": remove_file}
    done = _ask(invocation, "resume", ResumeResult, asked, own={})
    if invocation.json:
        show_json(done)
        return
    for one in done.lifted:
        what = "Everything" if one.principal is None else f"The work of {one.principal}"
        print(f"{printable_line(what)} goes on.")
    for one in done.stops:
        say(f"Still: {printable_line(one.description)}")


def _ask(invocation: Invocation, verb: str, kind: type[T], asked: object, *, own: object) -> T:
    """Send the request as an administrator; without that scope, for the caller's own work."""
    from palyra.gateway.client.client import ADMIN_ROOT, ROOT
    from palyra.gateway.client.errors import RemoteError

    try:
        return _client(invocation, ADMIN_ROOT).ask(kind, "POST", f"/{verb}", body=asked)
    except RemoteError as error:
        named = isinstance(asked, dict) and asked.get("principal") is not None
        if error.code != "token_scope_missing" or named:
            raise
        return _client(invocation, ROOT).ask(kind, "POST", f"/{verb}", body=own)


def _client(invocation: Invocation, root: str) -> "Client":
    from palyra.gateway.client.client import Client
    from palyra.gateway.client.target import find_target

    return Client(lambda: find_target(invocation.home), root=root, answer_seconds=RESPONSE_TIMEOUT_SECONDS)


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
                f"{path} can not be written ({error.strerror}), and no daemon answers: nothing was stopped. "
                f"`touch {path}` as the home's owner stops everything."
            ) from error
    shared = _stop_in_database(invocation, reason)
    if invocation.json:
        show_json({"file": str(path), "database": shared})
        return
    print(
        f"No daemon could record it. {path} stops everything: one that runs heeds it within a second, one that"
        " starts, first."
    )
    if shared:
        print("Other daemons on the same database are stopped too.")
    print("`palyra resume --remove-file` lets work go on.")


def _stop_in_database(invocation: Invocation, reason: str) -> bool:
    """Write the stop into a database that other daemons may share; they do not see the file of this home."""
    try:
        if invocation.settings.journal.database_url is None:
            return False
        from palyra.daemon.system_clock import SystemClock, SystemIds
        from palyra.journal import offline
        from palyra.journal.stores import stops

        clock = SystemClock()
        fresh = EmergencyStop(stop_id=SystemIds(clock).new(), principal=None, by=OWNER, at=clock.now(), reason=reason)
        with offline.open_writer(invocation.home, invocation.settings) as writer:
            writer.write(lambda conn: stops.insert(conn, fresh))
    except PalyraError as error:
        say(f"palyra: other daemons on the same database could not be told: {describe(error)}")
        return False
    return True
