"""`palyra up`, `down`, `restart` and `status`: the daemon's lifecycle."""

from collections.abc import Sequence

import click
import msgspec

from palyra.cli.daemon import process
from palyra.cli.errors import describe
from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation, PalyraCommand
from palyra.cli.terminal.output import counts, date_time, facts, model_name, say, show, show_json
from palyra.cli.terminal.printable import printable_line
from palyra.core.errors import PalyraError
from palyra.core.stop import EmergencyStop
from palyra.core.version import VERSION
from palyra.gateway.client.errors import RemoteError, TokenRejected, TokenUnusable
from palyra.gateway.client.target import DaemonRecord, find_daemon
from palyra.gateway.records.daemon import DaemonStatus
from palyra.sandbox.base import Tier
from palyra.sandbox.processes.tiers import tier_problem


@click.command(cls=PalyraCommand)
def up(invocation: Invocation) -> None:
    """Start the daemon in the background."""
    _start(invocation)


@click.command(cls=PalyraCommand)
def down(invocation: Invocation) -> None:
    """Stop the daemon. Unfinished runs resume at the next start."""
    daemon = process.stop(invocation.home)
    if invocation.json:
        show_json({"running": False, "stopped": daemon})
    elif daemon is None:
        print(f"The daemon is not running ({invocation.home.path}).")
    else:
        print(f"Stopped the daemon (process {daemon.pid}).")


@click.command(cls=PalyraCommand)
def restart(invocation: Invocation) -> None:
    """Restart the daemon, or start it if it is not running.

    First checks everything that could prevent a start: settings, policies, prices, the model, the journal and its key,
    ports and certificates. If a check fails, the running daemon is not stopped.
    """
    _check_start(invocation)
    daemon = process.stop(invocation.home)
    if daemon is not None and not invocation.json:
        print(f"Stopped the daemon (process {daemon.pid}).")
    _start(invocation)


@click.command(cls=PalyraCommand)
def status(invocation: Invocation) -> None:
    """Show daemon status.

    \b
    Exit codes: 0 running, 1 the daemon rejects this home's token, 3 not running or not answering.
    """
    daemon = find_daemon(invocation.home)
    if daemon is None:
        invocation.report(
            {"running": False, "home": str(invocation.home.path)},
            f"The daemon is not running ({invocation.home.path}). Start it with `palyra up`.",
        )
        raise click.exceptions.Exit(Exit.UNREACHABLE)
    try:
        reported_status = invocation.ask_status()
    except PalyraError as error:
        by_token = isinstance(error, TokenUnusable | TokenRejected)
        if invocation.json:
            answers = isinstance(error, TokenRejected)
            show_json({"running": True, "answers": answers, "daemon": daemon, "error": error.code})
        else:
            how = "running, but it rejects the token of this home" if by_token else "not answering"
            show(facts(("daemon", f"process {daemon.pid}, {how}"), ("address", daemon.address)))
        say(f"palyra: {describe(error)}")
        raise click.exceptions.Exit(Exit.FAILED if by_token else Exit.UNREACHABLE) from None
    stops = _stops(invocation)
    if invocation.json:
        show_json(
            {"running": True, "address": daemon.address, **msgspec.structs.asdict(reported_status), "stops": stops}
        )
    else:
        show(_table(daemon, reported_status, stops))


def _stops(invocation: Invocation) -> Sequence[EmergencyStop]:
    """Return the stops of the caller's work; none if the daemon cannot tell."""
    try:
        return invocation.client.stops.list().stops
    except RemoteError:
        return ()


def _check_start(invocation: Invocation) -> None:
    """Refuse to stop a daemon if no other could start in this home."""
    daemon = find_daemon(invocation.home)
    try:
        _ = invocation.settings
        process.check(invocation.home)
    except PalyraError as error:
        if daemon is None:
            raise
        detail = f"{error.detail} The running daemon (process {daemon.pid}) was not stopped."
        raise process.DaemonStartFailed(detail, code=error.code) from error


def _start(invocation: Invocation) -> None:
    # Invalid settings are reported here, in full, rather than by a daemon that does not start.
    _ = invocation.settings
    _warn_of_sandbox(invocation)
    started = process.start(invocation.home)
    daemon = started.daemon
    if not started.ours:
        process.keep_running(invocation.home, daemon)
    if invocation.json:
        show_json({"running": True, "started": started.ours, "home": str(invocation.home.path), "daemon": daemon})
    elif started.ours:
        print(f"Started the daemon at {daemon.address} (process {daemon.pid}). Stop it with `palyra down`.")
    else:
        print(f"The daemon is already running at {daemon.address} (process {daemon.pid}).")
    if daemon.warning is not None:
        say(f"palyra: {printable_line(daemon.warning)}")
    if daemon.waiting:
        say(f"palyra: The daemon is not ready yet. {daemon.waiting}")


def _warn_of_sandbox(invocation: Invocation) -> None:
    """Warn if agents will not be able to run programs. The daemon starts all the same: everything else works."""
    tier = Tier(invocation.settings.sandbox.tier)
    if missing := tier_problem(tier):
        say(
            f"palyra: Agents cannot run programs, because the {tier} sandbox is not available: {missing.reason}."
            f" {missing.remedy}"
        )


def _table(daemon: DaemonRecord, reported_status: DaemonStatus, stops: Sequence[EmergencyStop]) -> list[str]:
    version = reported_status.version
    if version != VERSION:
        version += f" (this command is {VERSION}; run `palyra restart` to update the daemon)"
    rows = [
        ("daemon", f"running, process {daemon.pid}, since {date_time(daemon.started_at)}"),
        (
            "stopped",
            f"{' '.join(stop.description for stop in stops)} Resume with `palyra resume`." if stops else None,
        ),
        ("address", daemon.address),
        ("grpc", daemon.grpc),
        ("version", version),
        ("home", reported_status.home),
        ("journal", f"{reported_status.engine} schema {reported_status.schema}"),
        ("storage", _storage(reported_status)),
        ("tapes", next((part.detail for part in reported_status.parts if part.name == "tapes"), None)),
        ("model", model_name(reported_status.provider, reported_status.model)),
        ("workspace", reported_status.workspace),
        ("runs", counts(reported_status.runs)),
        ("tasks", counts(reported_status.tasks)),
        ("connections", _connections(reported_status.connections)),
        ("mcp", next((part.detail for part in reported_status.parts if part.name == "mcp"), None)),
        ("settings", reported_status.settings_hash),
    ]
    tapes = {part.name: "red" for part in reported_status.parts if part.name == "tapes" and part.status != "ok"}
    if reported_status.storage != "ok":
        return facts(*rows, colours={"storage": "red", "stopped": "red", **tapes})
    return facts(*rows, colours={**({"stopped": "red"} if stops else {"daemon": "green"}), **tapes})


def _storage(reported_status: DaemonStatus) -> str:
    """Return why the journal cannot be written, and what to do about it."""
    detail = next((part.detail for part in reported_status.parts if part.name == "journal"), "")
    return reported_status.storage if reported_status.storage == "ok" else f"{reported_status.storage} ({detail})"


def _connections(now: dict[str, int]) -> str | None:
    if not now:
        return None  # the daemon is of an earlier version
    return (
        f"{now['open']} of {now['limit']}, {now['authenticated']} authenticated, {now['timed_out']} timed out,"
        f" {now['evicted']} evicted; {now['descriptors']} of {now['descriptor_limit']} file descriptors"
    )
