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
from palyra.cli.run_view.unattended import OnApproval, on_question_option, rule_for, watch_unattended
from palyra.cli.sessions import find_session
from palyra.core.events import InputMode
from palyra.core.session import SessionRef
from palyra.gateway.client.client import Client


@click.command(cls=PalyraCommand)
@click.option(
    "--session", metavar="SESSION", help="Go on with this session: its id or last six characters, its key, or `last`."
)
@click.option(
    "--key", metavar="KEY", help=f"The session of this key, created if there is none. Default: {DEFAULT_KEY}."
)
@click.option("--label", metavar="LABEL", help="The session of this label, created if there is none.")
@click.option("--new", is_flag=True, help="Begin a new conversation; the one of that name is archived.")
@on_question_option
@click.pass_obj
def chat(
    invocation: Invocation,
    *,
    session: str | None,
    key: str | None,
    label: str | None,
    new: bool,
    on_question: str | None,
) -> Exit:
    """Talk to the agent. The conversation goes on where it was.

    If no daemon runs, one is started, and goes on when you leave; `palyra down` ends it.

    Without a terminal on stdin, all of stdin is the message (UTF-8). The answer, and only the answer, goes to stdout,
    and a daemon that had to be started is ended again. When the agent asks for your word, the run is left waiting and
    the daemon goes on; stderr says how to answer.

    \b
    Exit codes: 0 done, 1 failed, 2 bad input, 3 the daemon can not be reached,
    4 cancelled, 5 the run waits for an answer and was left so.
    """
    if new and session is not None:
        raise click.UsageError("--new and --session contradict one another.")
    named = session or key or label
    ref = SessionRef(key=key if named else DEFAULT_KEY, label=label)
    if not has_terminal():
        rule = rule_for(invocation, on_question) or OnApproval.LEAVE
        return _answer_stdin(invocation, session, ref, new=new, rule=rule)
    if invocation.json:
        raise click.UsageError("--json needs a message on stdin; a conversation has no end to be printed.")
    if on_question is not None:
        raise click.UsageError("--on-question is for a message on stdin; in a conversation you are asked.")
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
