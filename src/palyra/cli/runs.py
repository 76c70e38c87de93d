"""`palyra runs`: runs and their tapes."""

from functools import partial

import click

from palyra.cli.chat.plain_terminal import approval_asker
from palyra.cli.chat.run_command import audience_for
from palyra.cli.daemon.on_demand import has_terminal
from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.run_view.tape_listing import print_tape
from palyra.cli.run_view.watch import attach, exit_after
from palyra.cli.sessions import find_session
from palyra.cli.short_ids import find_by_suffix, is_id_suffix
from palyra.cli.terminal.output import clock_time, date_time, facts, plural, say, show_json, table
from palyra.core.errors import NotFound
from palyra.core.ids import parse_ulid
from palyra.core.run.record import RunRecord
from palyra.core.spending.price import format_money
from palyra.gateway.client.client import Client

MAX_CHECKED = 200
"""How many of the latest runs are searched for an id suffix."""


class RunMissing(NotFound):
    """There are no runs yet. Start one with `palyra chat`."""


@click.group(cls=PalyraGroup, default="list")
def runs() -> None:
    """List runs, show their tapes, attach to a run or cancel it. Without a command, lists them.

    RUN is a run's id, its last six characters, or `last` for the most recent run.
    """


@runs.command("list")
@click.option(
    "--session", metavar="SESSION", help="Only runs of one session: its id or last six characters, its key, or `last`."
)
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 200), help="Maximum number of runs.")
def list_runs(invocation: Invocation, session: str | None = None, limit: int = 20) -> None:
    """List runs, newest first."""
    client = invocation.client
    session_id = find_session(client, session).session_id if session is not None else None
    page = client.runs(session_id=session_id, limit=limit)
    rows = [[run.run_id, _status(run), date_time(run.accepted_at), _took(run), run.input] for run in page.runs]
    listed = table(["RUN", "STATUS", "ACCEPTED", "TOOK", "MESSAGE"], rows)
    invocation.report(page, listed if rows else "No runs yet. Start one with `palyra chat`.")
    if page.next_cursor and not invocation.json:
        say(f"Showing the first {limit}. Use --limit to see more.")


@runs.command("show")
@click.argument("run", default="last")
def show_run(invocation: Invocation, run: str) -> None:
    """Show a run."""
    matching_run = find_run(invocation.client, run)
    invocation.report({"run": matching_run}, _facts(matching_run, cost=_cost(invocation.client, matching_run)))


@runs.command("tape")
@click.argument("run", default="last")
@click.option("--after-seq", default=0, metavar="SEQ", type=click.IntRange(min=0), help="Start after this entry.")
def show_tape(invocation: Invocation, run: str, *, after_seq: int) -> None:
    """Print the tape of a run: all recorded entries. With --json, one entry per line."""
    client = invocation.client
    run_id = find_run(client, run).run_id
    print_tape(invocation, partial(client.run_tape, run_id), after_seq=after_seq)


@runs.command("attach")
@click.argument("run", default="last")
@click.option("--after-seq", default=0, metavar="SEQ", type=click.IntRange(min=0), help="Start after this entry.")
def attach_run(invocation: Invocation, run: str, *, after_seq: int) -> Exit:
    """Show a run from its start and follow it until it ends. Ctrl-C detaches; the run continues.

    At a terminal, approval requests are shown here. Otherwise the command waits until they are answered elsewhere.

    \b
    Exit codes: as for `palyra run`.
    """
    client = invocation.client
    matching_run = find_run(client, run)
    try:
        audience = (
            audience_for(invocation, decide=approval_asker(client)) if has_terminal() else audience_for(invocation)
        )
        ended = attach(client, matching_run.run_id, after_seq=after_seq, audience=audience)
    except KeyboardInterrupt:
        say(f"\npalyra: the run continues. Cancel it with `palyra runs cancel {matching_run.run_id}`.")
        return Exit.INTERRUPTED
    return exit_after(ended)


@runs.command("cancel")
@click.argument("run")
@click.option("--reason", metavar="TEXT", help="Reason to record on the tape.")
def cancel_run(invocation: Invocation, run: str, *, reason: str | None) -> None:
    """Cancel a run."""
    client = invocation.client
    matching_run = client.cancel(find_run(client, run).run_id, reason=reason)
    if invocation.json:
        show_json({"run": matching_run})
    elif matching_run.status == "cancelled":
        print(f"{matching_run.run_id}: cancelled.")
    elif matching_run.ended_at is not None:
        print(f"{matching_run.run_id}: already ended ({matching_run.status}).")
    else:
        print(f"{matching_run.run_id}: cancelling.")


def find_run(client: Client, name: str) -> RunRecord:
    """Return the run that the person names: by id, or the last one."""
    if name != "last":
        if is_id_suffix(name):
            name = find_by_suffix(name, (one.run_id for one in client.runs(limit=MAX_CHECKED).runs))
        return client.run(parse_ulid(name, "run id"))
    page = client.runs(limit=1)
    if not page.runs:
        raise RunMissing
    return page.runs[0]


def _status(run: RunRecord) -> str:
    return f"{run.status}, limit" if run.limit_reached else run.status.replace("_", " ")


def _took(run: RunRecord) -> str:
    if run.ended_at is None:
        return ""
    seconds = (run.ended_at - run.accepted_at).total_seconds()
    if seconds < 0:
        return "unknown (the clock was set back)"
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def _cost(client: Client, run: RunRecord) -> str:
    """Return the cost of a run including its child runs."""
    usage_causes = client.usage.causes(run_id=run.run_id)
    unpriced = f"; {plural(usage_causes.total.unpriced, 'turn')} without a price" if usage_causes.total.unpriced else ""
    return f"{format_money(usage_causes.total.micros, usage_causes.currency)}{unpriced}"


def _facts(run: RunRecord, *, cost: str) -> list[str]:
    return facts(
        ("run", run.run_id),
        ("session", run.session_id),
        ("agent", run.agent_id),
        ("status", run.status.replace("_", " ")),
        ("reason", run.reason),
        ("limit", f"{run.limit_reached.replace('_', ' ')} reached" if run.limit_reached else None),
        ("message", run.input),
        ("parent", run.parent_run_id),
        ("accepted", date_time(run.accepted_at)),
        ("ended", f"{clock_time(run.ended_at)}, took {_took(run)}" if run.ended_at else None),
        ("tape", f"{run.accepted_seq} to {run.last_seq}"),
        ("turns", f"{run.turns}, {plural(run.tool_calls, 'tool call')}"),
        ("tokens", f"{run.usage.input_tokens} in, {run.usage.output_tokens} out"),
        ("cost", cost),
        ("cancel", "requested" if run.cancel_requested and run.ended_at is None else None),
    )
