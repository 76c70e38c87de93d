"""`palyra approvals reissue`: a question that nobody answered in time, asked once more."""

import click
from msgspec import Struct

from palyra.cli.approval_ids import find_overdue
from palyra.cli.borrow import has_person
from palyra.cli.exits import Exit
from palyra.cli.narration import ended_by
from palyra.cli.options import Invocation, PalyraCommand
from palyra.cli.output import say, screen_width, show, show_json
from palyra.cli.plain import asking
from palyra.cli.printable import printable_line
from palyra.cli.question import detail_rows
from palyra.cli.run import audience_for
from palyra.cli.watch import exit_after, watch
from palyra.core.approval import Approval
from palyra.core.events import ApprovalRequested
from palyra.core.message import Accepted
from palyra.gateway.client import Client
from palyra.gateway.follow import follow_run


class Reissued(Struct, frozen=True, kw_only=True):
    """The run that asks once more, and its question; none if nobody is asked, or not yet."""

    run: Accepted
    approval: Approval | None


@click.command("reissue", cls=PalyraCommand)
@click.argument("approval")
@click.pass_obj
def reissue(invocation: Invocation, approval: str) -> Exit:
    """Have a question asked once more that nobody answered in time; `last` is the last of those.

    A new run of the same session proposes the same call, under the policies of today. At a terminal you are asked here,
    and see the run to its end; elsewhere the command ends with the new question, which is answered as usual.

    \b
    Exit codes: 0 asked, or the run is done; 1 failed, 4 cancelled.
    """
    client = invocation.client
    accepted = client.ask(Accepted, "POST", f"/approvals/{find_overdue(client, approval)}/reissue", body={})
    if has_person() and not invocation.json:
        _tell_of_waiting(accepted)
        audience = audience_for(invocation, decide=asking(client))
        return exit_after(watch(client, accepted.run_id, after_seq=accepted.after_seq, audience=audience))
    # What waits behind another run is asked when its turn comes, and that may be never.
    question = None if accepted.queued else _wait_for_question(client, accepted)
    if invocation.json:
        show_json(Reissued(run=accepted, approval=question))
        return Exit.DONE
    _tell_of_waiting(accepted)
    if question is not None:
        code = question.approval_id[-6:]
        show([f"Asked once more: {printable_line(question.effect.summary)}"])
        show(detail_rows(question.effect.detail, width=screen_width()))
        say(f"palyra: `palyra approvals allow {code}` answers it, `palyra approvals show {code}` shows all of it.")
    elif not accepted.queued:
        show(
            [f"Nobody is asked: the policies of today decided by themselves. `palyra why {accepted.run_id}` tells why."]
        )
    return Exit.DONE


def _wait_for_question(client: Client, accepted: Accepted) -> Approval | None:
    """Follow the run until it asks or ends. Whoever follows can be asked, so that what is dangerous is not denied."""
    stream = follow_run(client, accepted.run_id, after_seq=accepted.after_seq)
    try:
        for line in stream:
            if isinstance(line.event, ApprovalRequested):
                return client.ask(Approval, "GET", f"/approvals/{line.event.approval_id}", field="approval")
            if ended_by(line) is not None:
                break
    finally:
        stream.close()
    return None


def _tell_of_waiting(accepted: Accepted) -> None:
    if accepted.repeated:
        say(f"palyra: it is asked once more already, by run {accepted.run_id}.")
    elif accepted.queued:
        why = f" ({accepted.waiting_for})" if accepted.waiting_for else ""
        say(f"palyra: another run is active in this session; run {accepted.run_id} waits for its turn{why}.")
