"""The chat in a terminal that can only print lines."""

import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from palyra.cli.chat.conversation import ChatSession, error_line, print_first_answer, recap_lines
from palyra.cli.chat.slash_commands import parse
from palyra.cli.run_view.approval_prompt import ApprovalAnswer, ApprovalPrompt, read_answer, read_scope
from palyra.cli.run_view.narration import Narrator
from palyra.cli.run_view.screens import screen_for
from palyra.cli.run_view.watch import InterruptCounter, TerminalAudience, watch
from palyra.cli.terminal.output import say
from palyra.cli.terminal.printable import printable_line
from palyra.core.errors import PalyraError
from palyra.gateway.client.client import Client
from palyra.gateway.client.errors import RemoteError

PROMPT = "> "
MORE = ". "
POLL_SECONDS = 0.5
"""How often to check whether an approval request is still open while nothing is typed."""
CONFLICT = 409


def is_plain(out: TextIO) -> bool:
    """Return whether the terminal has no movable cursor."""
    return not out.isatty() or os.environ.get("TERM", "dumb") in ("", "dumb", "unknown")


def run_plain_chat(client: Client, conversation: ChatSession) -> None:
    """Read a message, print the answer, and repeat until the person leaves."""
    _greet(conversation)
    warned = False
    while True:
        try:
            text = _read()
            warned = False
            if text is None or not _handle(client, conversation, text):
                return
        except KeyboardInterrupt:
            if warned:
                say("")
                return
            warned = True
            say("\n(press Ctrl-C again or Ctrl-D to quit)")
        except PalyraError as error:
            say(error_line(error))


def _greet(conversation: ChatSession) -> None:
    for line in recap_lines(conversation):
        say(line)
    say("Type a message and press Enter. /help lists commands, Ctrl-D quits.")


def _handle(client: Client, conversation: ChatSession, text: str) -> bool:
    """Handle what was typed; False if the person wants to leave."""
    slash = parse(text)
    if slash is not None:
        reply = conversation.do(slash, active=None, typing_along=False)
        for line in reply.lines:
            say(line)
        return not reply.leave
    if not text.strip():
        return True
    accepted = conversation.send(text)
    person = TerminalAudience(
        screen_for(sys.stdout, sys.stderr), Narrator(own_keys=conversation.own_keys), decide=approval_asker(client)
    )
    ended = watch(client, accepted.run_id, after_seq=accepted.after_seq, audience=person)
    if ended.status == "done":
        print_first_answer(client)
    return True


def approval_asker(client: Client) -> Callable[[ApprovalPrompt], None]:
    """Return a function that asks the person at this terminal until the answer is valid."""

    def decide(question: ApprovalPrompt) -> None:
        # It may be answered by now: a stream also brings old entries.
        while not _is_settled(client, question):
            sys.stderr.write("  Allow? yes, no, session, always, or a time such as 30m: ")
            sys.stderr.flush()
            if not _is_typed(client, question):
                say("")
                return
            line = sys.stdin.readline()
            if not line:
                say(f"(still pending; answer with `palyra approvals allow {question.code}`)")
                return
            answer = read_answer(line) or (read_scope(line) if line.strip() else None)
            if answer is not None:
                _give(client, question, answer)
                return

    return decide


def _is_typed(client: Client, question: ApprovalPrompt) -> bool:
    """Wait for a line; False if it is not needed any more: it was answered elsewhere, or Ctrl-C ends everything."""
    while not select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
        hand = signal.getsignal(signal.SIGINT)
        if (isinstance(hand, InterruptCounter) and hand.count) or _is_settled(client, question):
            return False
    return True


def _is_settled(client: Client, question: ApprovalPrompt) -> bool:
    # A daemon that is away for a moment has not settled it.
    with suppress(PalyraError):
        return client.approvals.get(question.approval_id).decision is not None
    return False


def _give(client: Client, question: ApprovalPrompt, answer: ApprovalAnswer) -> None:
    try:
        client.approvals.resolve(question.approval_id, answer.request())
    except RemoteError as error:
        if error.status != CONFLICT:
            raise
        # Another answer was faster and counts; the run goes on, and that answer is shown.
        say(f"({printable_line(error.detail)})")


def _read() -> str | None:
    """Return what was typed, with its further lines; None at the end of the input."""
    lines: list[str] = []
    sys.stderr.write(PROMPT)
    while True:
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            say("")
            return None
        line = line.rstrip("\n")
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line[:-1])
        sys.stderr.write(MORE)
