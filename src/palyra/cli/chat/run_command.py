"""`palyra run`: one message, one answer."""

import os
import sys
from collections.abc import Callable

import click

from palyra.cli.chat.conversation import print_first_answer
from palyra.cli.chat.input import check, read_stdin
from palyra.cli.chat.plain_terminal import approval_asker
from palyra.cli.daemon.on_demand import daemon_on_demand, has_terminal
from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation, PalyraCommand
from palyra.cli.run_view.approval_prompt import ApprovalPrompt
from palyra.cli.run_view.narration import Narrator
from palyra.cli.run_view.screens import screen_for
from palyra.cli.run_view.unattended import on_approval_option, rule_for, watch_unattended
from palyra.cli.run_view.watch import JsonAudience, RunAudience, TerminalAudience, exit_after, watch
from palyra.cli.sessions import find_session
from palyra.cli.terminal.output import say
from palyra.core.events import InputMode
from palyra.core.message import AcceptedMessage
from palyra.core.model.catalog import TaskClass
from palyra.core.session import SessionRef


@click.command(cls=PalyraCommand)
@click.option("-m", "--message", required=True, metavar="TEXT", help="The message; `-` reads it from stdin.")
@click.option(
    "--session",
    metavar="SESSION",
    help="Session to use: its id or last six characters, its key, or `last`. Default: a new session.",
)
@click.option("--key", metavar="KEY", help="Use the session with this key; created if it does not exist.")
@click.option("--label", metavar="LABEL", help="Use the session with this label; created if it does not exist.")
@click.option("--require-existing", is_flag=True, help="Fail if the session does not exist.")
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in InputMode]),
    default=InputMode.QUEUE.value,
    show_default=True,
    help="If a run is active in the session: wait for it, add the message to it, or cancel it.",
)
@click.option("--model", default="", metavar="NAME", help="Model to use: PROVIDER or PROVIDER/MODEL.")
@click.option(
    "--task",
    type=click.Choice([task.value for task in TaskClass]),
    default=TaskClass.INTERACTIVE.value,
    show_default=True,
    help="Kind of task, for routing rules.",
)
@click.option("--idempotency-key", metavar="KEY", help="Send the message only once per key.")
@on_approval_option
@click.option("--detach", is_flag=True, help="Print the run's id and do not wait for the answer.")
def run(
    invocation: Invocation,
    *,
    message: str,
    session: str | None,
    key: str | None,
    label: str | None,
    require_existing: bool,
    mode: str,
    model: str,
    task: str,
    idempotency_key: str | None,
    on_approval: str | None,
    detach: bool,
) -> Exit:
    """Send one message and print the answer to stdout, and everything else to stderr.

    A terminal shows the answer while it is written; a pipe gets each part when it is complete. With --json, every tape
    entry of the run is printed as one line. Starts the daemon if it is not running; if stdin is not a terminal, the
    daemon is stopped again, unless --detach is given or the run is left waiting for approval.

    If a call needs approval, you are asked here. Without a terminal on stdin, or with --json, the run is left waiting:
    stderr shows the request and how to answer it, and the run continues after the answer.

    \b
    Exit codes: 0 done, 1 failed, 2 bad input, 3 daemon not reachable, 4 cancelled,
    5 waiting for approval.
    """
    if detach and on_approval is not None:
        raise click.UsageError("--detach and --on-approval cannot be used together: a detached run is not followed.")
    text = read_stdin() if message == "-" else check(message)
    sent_key = idempotency_key or os.urandom(16).hex()
    with daemon_on_demand(invocation, keep=detach or has_terminal()) as client:
        session_id = find_session(client, session).session_id if session is not None else None
        ref = SessionRef(session_id=session_id, key=key, label=label, require_existing=require_existing)
        accepted = client.send(text, ref, mode=InputMode(mode), key=sent_key, model=model, task=task)
        if detach:
            _show_accepted(invocation, accepted)
            return Exit.DONE
        print_waiting(accepted)
        rule = rule_for(invocation, on_approval)
        if rule is not None:
            audience = audience_for(invocation, own_key=sent_key)
            return watch_unattended(invocation, client, accepted, audience, rule=rule)
        audience = audience_for(invocation, own_key=sent_key, decide=approval_asker(client))
        ended = watch(client, accepted.run_id, after_seq=accepted.after_seq, audience=audience)
        if ended.status == "done" and sys.stdout.isatty():
            print_first_answer(client)
    return exit_after(ended)


def _leave_open(question: ApprovalPrompt) -> None:
    """Do nothing: the person is not asked here, and another approver may answer elsewhere."""


def audience_for(
    invocation: Invocation, *, own_key: str | None = None, decide: Callable[[ApprovalPrompt], None] = _leave_open
) -> RunAudience:
    """Return the audience of a run: a program if JSON is requested, a person otherwise."""
    if invocation.json:
        return JsonAudience()
    narrator = Narrator(own_keys={own_key} if own_key else set())
    return TerminalAudience(screen_for(sys.stdout, sys.stderr), narrator, decide=decide)


def _show_accepted(invocation: Invocation, accepted: AcceptedMessage) -> None:
    if invocation.printed_json(accepted):
        return
    print(accepted.run_id)
    say(f"palyra: accepted. Follow the run with `palyra runs attach {accepted.run_id}`.")


def print_waiting(accepted: AcceptedMessage) -> None:
    """Print which run the message is part of, if it did not start one at once."""
    if accepted.repeated:
        say(f"palyra: a message with this key was already sent; showing run {accepted.run_id}.")
    elif accepted.steered:
        say(f"palyra: message added to active run {accepted.run_id}.")
    elif accepted.queued:
        why = f" ({accepted.waiting_for})" if accepted.waiting_for else ""
        say(f"palyra: another run is active in this session; run {accepted.run_id} is queued{why}.")
