"""`palyra chat`: talk to the agent, at a terminal or through a pipe."""

import os
import sys
from pathlib import Path

import click

from palyra.cli.chat.conversation import DEFAULT_KEY, ChatSession
from palyra.cli.chat.input import read_stdin
from palyra.cli.chat.run_command import audience_for, print_waiting
from palyra.cli.daemon.on_demand import daemon_on_demand, has_terminal
from palyra.cli.exit_codes import Exit
from palyra.cli.options import Invocation, PalyraCommand
from palyra.cli.run_view.unattended import OnApproval, on_approval_option, rule_for, watch_unattended
from palyra.cli.sessions import find_session
from palyra.core.events import InputMode
from palyra.core.session import SessionRef
from palyra.gateway.client.client import Client


@click.command(cls=PalyraCommand)
@click.option(
    "--session", metavar="SESSION", help="Continue this session: its id or last six characters, its key, or `last`."
)
@click.option(
    "--key", metavar="KEY", help=f"Use the session with this key; created if it does not exist. Default: {DEFAULT_KEY}."
)
@click.option("--label", metavar="LABEL", help="Use the session with this label; created if it does not exist.")
@click.option("--new", is_flag=True, help="Start a new session and archive the current one.")
@on_approval_option
def chat(
    invocation: Invocation,
    *,
    session: str | None,
    key: str | None,
    label: str | None,
    new: bool,
    on_approval: str | None,
) -> Exit:
    """Chat with the agent. Continues the last session.

    Starts the daemon if it is not running. It keeps running when you quit; stop it with `palyra down`.

    If stdin is not a terminal, all of it is sent as one message (UTF-8), and only the answer is written to stdout. A
    daemon that was started for this is stopped again. If a call needs approval, the run is left waiting, the daemon
    keeps running, and stderr says how to answer.

    \b
    Exit codes: 0 done, 1 failed, 2 bad input, 3 daemon not reachable, 4 cancelled,
    5 waiting for approval.
    """
    if new and session is not None:
        raise click.UsageError("--new and --session cannot be used together.")
    named = session or key or label
    ref = SessionRef(key=key if named else DEFAULT_KEY, label=label)
    if not has_terminal():
        rule = rule_for(invocation, on_approval) or OnApproval.LEAVE
        return _answer_stdin(invocation, session, ref, new=new, rule=rule)
    if invocation.json:
        raise click.UsageError("--json needs a message on stdin: an interactive chat has no JSON output.")
    if on_approval is not None:
        raise click.UsageError("--on-approval needs a message on stdin: an interactive chat asks you.")
    with daemon_on_demand(invocation, keep=True) as client:
        _talk(client, _conversation(client, session, ref, new=new), history=invocation.home.history)
    return Exit.DONE


def _answer_stdin(invocation: Invocation, session: str | None, ref: SessionRef, *, new: bool, rule: OnApproval) -> Exit:
    text = read_stdin()
    with daemon_on_demand(invocation, keep=False) as client:
        conversation = _conversation(client, session, ref, new=new)
        own_key = os.urandom(16).hex()
        here = SessionRef(session_id=conversation.session.session_id)
        accepted = client.send(text, here, mode=InputMode.QUEUE, key=own_key)
        print_waiting(accepted)
        audience = audience_for(invocation, own_key=own_key)
        return watch_unattended(invocation, client, accepted, audience, rule=rule)


def _conversation(client: Client, session: str | None, ref: SessionRef, *, new: bool) -> ChatSession:
    if session is not None:
        ref = SessionRef(session_id=find_session(client, session).session_id, key=ref.key, label=ref.label)
    conversation = ChatSession(client, ref)
    if new:
        conversation.start_new()
    return conversation


def _talk(client: Client, conversation: ChatSession, *, history: Path) -> None:
    # Imported here: a pipe needs neither, and the live one is the largest import of the command line.
    from palyra.cli.chat.plain_terminal import is_plain, run_plain_chat

    if is_plain(sys.stdout):
        run_plain_chat(client, conversation)
        return
    from palyra.cli.chat.live_terminal import run_live_chat

    run_live_chat(client, conversation, history=history)
