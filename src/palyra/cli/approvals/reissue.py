"""`palyra approvals reissue`: makes an approval request again that was not answered in time."""

import click
from msgspec import Struct

from palyra.cli.approvals.ids import find_overdue
from palyra.cli.chat.plain_terminal import approval_asker
from palyra.cli.chat.run_command import audience_for
from palyra.cli.daemon.on_demand import has_terminal
from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation, PalyraCommand
from palyra.cli.run_view.approval_prompt import detail_rows
from palyra.cli.run_view.narration import ended_by
from palyra.cli.run_view.watch import exit_after, watch
from palyra.cli.terminal.output import say, screen_width, show
from palyra.cli.terminal.printable import printable_line
from palyra.core.events import ApprovalRequested
from palyra.core.message import AcceptedMessage
from palyra.core.policy.approval import Approval
from palyra.gateway.client.client import Client
from palyra.gateway.client.tape_stream import follow_run


class ReissuedApproval(Struct, frozen=True, kw_only=True):
    """The run that proposes the call again, and its approval request; none if there is none, or not yet."""

    run: AcceptedMessage
    approval: Approval | None


@click.command("reissue", cls=PalyraCommand)
@click.argument("approval")
def reissue(invocation: Invocation, approval: str) -> Exit:
    """Reissue an approval request that was not answered in time; `last` is the most recent of them.

    A new run in the same session proposes the same call, and the current policies apply. At a terminal, this command
    asks for the approval and follows the run to its end. Otherwise it prints the new request and exits.

    \b
    Exit codes: 0 reissued, or the run is done; 1 the run failed; 4 the run was cancelled.
    """
    client = invocation.client
    accepted = client.approvals.reissue(find_overdue(client, approval))
    if has_terminal() and not invocation.json:
        _print_waiting(accepted)
        audience = audience_for(invocation, decide=approval_asker(client))
        return exit_after(watch(client, accepted.run_id, after_seq=accepted.after_seq, audience=audience))
    # A run that waits behind another one makes its request when its turn comes, and that may be never.
    question = None if accepted.queued else _wait_for_question(client, accepted)
    if invocation.printed_json(ReissuedApproval(run=accepted, approval=question)):
        return Exit.DONE
    _print_waiting(accepted)
    if question is not None:
        code = question.approval_id[-6:]
        show([f"Reissued: {printable_line(question.effect.summary)}"])
        show(detail_rows(question.effect.detail, width=screen_width()))
        say(
            f"palyra: answer with `palyra approvals allow {code}`; see the full request with `palyra approvals show"
            f" {code}`."
        )
    elif not accepted.queued:
        show(
            [
                f"No approval needed: the current policies decided the call. Run `palyra why {accepted.run_id}` to see"
                " why."
            ]
        )
    return Exit.DONE


def _wait_for_question(client: Client, accepted: AcceptedMessage) -> Approval | None:
    """Follow the run until it requests approval or ends. A follower can be asked, so a dangerous call is not denied."""
    stream = follow_run(client, accepted.run_id, after_seq=accepted.after_seq)
    try:
        for line in stream:
            if isinstance(line.event, ApprovalRequested):
                return client.approvals.get(line.event.approval_id)
            if ended_by(line) is not None:
                break
    finally:
        stream.close()
    return None


def _print_waiting(accepted: AcceptedMessage) -> None:
    if accepted.repeated:
        say(f"palyra: already reissued by run {accepted.run_id}.")
    elif accepted.queued:
        why = f" ({accepted.waiting_for})" if accepted.waiting_for else ""
        say(f"palyra: another run is active in this session; run {accepted.run_id} is queued{why}.")
