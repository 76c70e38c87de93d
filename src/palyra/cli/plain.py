"""The chat in a terminal that can do nothing but print lines."""

import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from palyra.cli.conversation import Conversation, recap_lines, tell_first_answer, trouble
from palyra.cli.narration import Narrator
from palyra.cli.output import say
from palyra.cli.printable import printable_line
from palyra.cli.question import Answer, Question, read_answer, read_scope
from palyra.cli.screens import screen_for
from palyra.cli.slash import parse
from palyra.cli.watch import Interrupts, Person, watch
from palyra.core.approval import Approval
from palyra.core.errors import PalyraError
from palyra.gateway.client import Client
from palyra.gateway.remote import RemoteError

PROMPT = "> "
MORE = ". "
LOOK_SECONDS = 0.5
"""So often it is looked whether a question is still open while nobody types."""
CONFLICT = 409


def is_plain(out: TextIO) -> bool:
    """Tell whether the terminal has no cursor that could be moved."""
    return not out.isatty() or os.environ.get("TERM", "dumb") in ("", "dumb", "unknown")


def talk_plainly(client: Client, conversation: Conversation) -> None:
    """Take a message, print the answer, and again, until the person leaves."""
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
            say("\n(Ctrl-C again, Ctrl-D or /quit leaves)")
        except PalyraError as error:
            say(trouble(error))


def _greet(conversation: Conversation) -> None:
    for line in recap_lines(conversation):
        say(line)
    say("Type a message and Enter; /help tells more, Ctrl-D leaves.")


def _handle(client: Client, conversation: Conversation, text: str) -> bool:
    """Do what was typed; False if the person wants to leave."""
    slash = parse(text)
    if slash is not None:
        reply = conversation.do(slash, active=None, typing_along=False)
        for line in reply.lines:
            say(line)
        return not reply.leave
    if not text.strip():
        return True
    accepted = conversation.send(text)
    person = Person(screen_for(sys.stdout, sys.stderr), Narrator(own_keys=conversation.own_keys), decide=asking(client))
    ended = watch(client, accepted.run_id, after_seq=accepted.after_seq, audience=person)
    if ended.status == "done":
        tell_first_answer(client)
    return True


def asking(client: Client) -> Callable[[Question], None]:
    """Return what asks the person at this terminal, as long as it takes to get an answer that can be read."""

    def decide(question: Question) -> None:
        # Answered by now, perhaps: a stream also brings what was long ago.
        while not _is_settled(client, question):
            sys.stderr.write("  yes, no, session, always, or a time such as 30m? ")
            sys.stderr.flush()
            if not _is_typed(client, question):
                say("")
                return
            line = sys.stdin.readline()
            if not line:
                say(f"(left open; `palyra approvals allow {question.code}` answers it)")
                return
            answer = read_answer(line) or (read_scope(line) if line.strip() else None)
            if answer is not None:
                _give(client, question, answer)
                return

    return decide


def _is_typed(client: Client, question: Question) -> bool:
    """Wait for a line; False if none is needed any more: it was answered elsewhere, or Ctrl-C ends it all."""
    while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        hand = signal.getsignal(signal.SIGINT)
        if (isinstance(hand, Interrupts) and hand.count) or _is_settled(client, question):
            return False
    return True


def _is_settled(client: Client, question: Question) -> bool:
    # A daemon that is away for a moment has not settled it.
    with suppress(PalyraError):
        asked = client.ask(Approval, "GET", f"/approvals/{question.approval_id}", field="approval")
        return asked.decision is not None
    return False


def _give(client: Client, question: Question, answer: Answer) -> None:
    try:
        client.answer(question.approval_id, allow=answer.allow, scope=answer.scope, ttl_seconds=answer.ttl_seconds)
    except RemoteError as error:
        if error.status != CONFLICT:
            raise
        # Somebody was faster, whose answer counts; the run goes on, and what it was is told.
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
