"""The chat without its user interface: its session, sending messages, and the slash commands."""

import os
from dataclasses import dataclass
from functools import partial

from palyra.cli.chat.input import check
from palyra.cli.chat.slash_commands import SlashCommand, help_lines, unknown
from palyra.cli.run_view.approval_prompt import ApprovalAnswer, ApprovalPrompt, read_answer, read_scope
from palyra.cli.run_view.narration import CHAT, ApprovalSettled, Piece, RunEnded
from palyra.cli.sessions import name_of
from palyra.cli.terminal.output import date_time, model_name, say
from palyra.cli.terminal.printable import printable_line
from palyra.core.errors import PalyraError
from palyra.core.events import InputMode
from palyra.core.message import AcceptedMessage
from palyra.core.session import Session, SessionArchivedError, SessionRef
from palyra.gateway.client.client import Client
from palyra.gateway.client.tape_stream import read_tape
from palyra.gateway.records.sessions import SessionMessage

DEFAULT_KEY = "cli"
LISTED = 9
RECAP_WIDTH = 160
RECAP_REACH = 100
SEND_TIMEOUT_SECONDS = 5.0
"""A person is waiting; what was typed is kept if it could not be sent."""

FIRST_ANSWER = (
    "(Every step is recorded. See `palyra runs tape last`.",
    " The answer came from {model}. Add another model with `palyra providers add`.)",
)


@dataclass(frozen=True, slots=True)
class SlashReply:
    """The result of a slash command."""

    lines: tuple[str, ...] = ()
    leave: bool = False
    moved: bool = False
    """The chat is in another session now."""


class ChatSession:
    """The session of a chat, and switching to others."""

    def __init__(self, client: Client, ref: SessionRef) -> None:
        self._client = client
        self._ref = ref
        self._listed: tuple[Session, ...] = ()
        self._questions: list[ApprovalPrompt] = []
        """The open approval requests, the oldest first."""
        self.own_keys: set[str] = set()
        """The keys of messages sent from here, which need not be shown again."""
        self.session = self._open()

    def _open(self) -> Session:
        session = self._client.resolve(self._ref)
        if session.archived_at is None:
            return session
        if self._ref.key != DEFAULT_KEY:
            raise SessionArchivedError(
                f"Session {session.session_id} is archived. Restore it with `palyra sessions unarchive"
                f" {session.session_id}`."
            )
        # The person archived the old session; what is typed now belongs to a new one.
        return self._replace(session)

    def start_new(self) -> None:
        """Continue in a new session. One that was opened by name is archived, so that the new one gets the name."""
        if self._ref.session_id is not None:
            self._ref = SessionRef()
        if self._ref.key is None and self._ref.label is None:
            self.session = self._client.resolve(self._ref)
        elif self._client.messages(self.session.session_id, limit=1) or self.session.active_run_id:
            self.session = self._replace(self.session)

    def recap(self) -> tuple[SessionMessage, ...]:
        """Return the last messages that still count, in order; empty for a new session."""
        messages = self._client.messages(self.session.session_id, limit=RECAP_REACH)
        counting = [message for message in messages if message.tape_seq > self.session.reset_seq]
        talk = [message for message in counting if message.role != "tool" and message.text.strip()]
        return tuple(reversed(talk[:2]))

    def end_seq(self) -> int:
        """Return the entry after which the chat begins: the end of the tape, or the start of the active run."""
        session = self._client.session(self.session.session_id)
        if session.active_run_id is not None:
            return self._client.run(session.active_run_id).accepted_seq - 1
        last = next(iter(self._client.messages(session.session_id, limit=1)), None)
        seq = last.tape_seq if last is not None else 0
        for line in read_tape(partial(self._client.session_tape, session.session_id), after_seq=seq):
            seq = line.tape_seq
        return seq

    @property
    def open_approval(self) -> ApprovalPrompt | None:
        """The approval request that the next answer is for."""
        return next(iter(self._questions), None)

    def take_note(self, piece: Piece) -> None:
        """Keep track of which approval requests are open."""
        match piece:
            case ApprovalPrompt():
                self._questions.append(piece)
            case ApprovalSettled(approval_id):
                self._questions = [one for one in self._questions if one.approval_id != approval_id]
            case RunEnded():
                self._questions.clear()
            case _:
                pass

    def answer(self, text: str) -> bool:
        """Use the text as the answer to an open approval request; False if it is an ordinary message."""
        answer = read_answer(text) if self._questions else None
        if answer is None:
            return False
        self._give(answer)
        return True

    def _give(self, answer: ApprovalAnswer) -> None:
        self._client.approvals.resolve(self._questions[0].approval_id, answer.request())

    def send(self, text: str) -> AcceptedMessage:
        """Send a message; it joins the active run if there is one."""
        key = os.urandom(16).hex()
        self.own_keys.add(key)
        ref = SessionRef(session_id=self.session.session_id)
        return self._client.send(check(text), ref, mode=InputMode.STEER, key=key, timeout=SEND_TIMEOUT_SECONDS)

    def cancel(self, run_id: str) -> None:
        """Cancel a run."""
        self._client.cancel(run_id, reason=CHAT)

    def do(self, slash: SlashCommand, *, active: str | None, typing_along: bool) -> SlashReply:
        """Execute a slash command; `active` is the active run."""
        match slash.name:
            case "/help":
                return SlashReply(tuple(help_lines(typing_along=typing_along)))
            case "/quit":
                return SlashReply(leave=True)
            case "/model":
                return SlashReply((f"Answers come from {model_in_words(self._client)}.",))
            case "/stop" if slash.argument:
                return SlashReply((self._stop(slash.argument),))
            case "/resume":
                return SlashReply((self._resume(),))
            case "/cancel" | "/stop" if active is None:
                return SlashReply(("No active run.",))
            case "/cancel" | "/stop":
                self.cancel(active or "")
                return SlashReply()
            case "/allow" | "/deny" if not self._questions:
                return SlashReply(("No pending approvals.",))
            case "/allow":
                answer = read_scope(slash.argument)
                if answer is None:
                    return SlashReply(("Use /allow, /allow session, /allow always, or a time: /allow 30m.",))
                self._give(answer)
                return SlashReply()
            case "/deny":
                self._give(ApprovalAnswer(allow=False, reason=slash.argument))
                return SlashReply()
            case "/new":
                self._questions.clear()
                self.start_new()
                return SlashReply(("New session. List the others with /sessions.",), moved=True)
            case "/sessions":
                return self._sessions(slash.argument)
            case _:
                return SlashReply((unknown(slash),))

    def _stop(self, argument: str) -> str:
        if argument != "all":
            return "Use /stop to cancel the active run, or /stop all to stop all of your work."
        stop = self._client.stops.create(reason="stopped in the chat").stop
        return f"{printable_line(stop.description)} Resume with /resume."

    def _resume(self) -> str:
        left = self._client.stops.resume().stops
        return "Work resumed." if not left else " ".join(printable_line(stop.description) for stop in left)

    def _sessions(self, argument: str) -> SlashReply:
        if not argument:
            return self._list()
        if not self._listed:
            self._list()
        if not argument.isdecimal() or not 1 <= int(argument) <= len(self._listed):
            return SlashReply((f"Unknown session {printable_line(argument, width=20)}. List them with /sessions.",))
        session = self._listed[int(argument) - 1]
        if session.archived_at is not None:
            session = self._client.unarchive(session.session_id)
        self._ref, self.session = SessionRef(session_id=session.session_id), session
        self._questions.clear()
        return SlashReply(tuple(recap_lines(self)) or (f"Continuing session: {name_of(session)}",), moved=True)

    def _list(self) -> SlashReply:
        sessions = self._client.sessions(limit=LISTED).sessions
        archived = self._client.sessions(archived=True, limit=LISTED).sessions
        latest = sorted((*sessions, *archived), key=lambda session: session.updated_at, reverse=True)
        self._listed = tuple(latest[:LISTED])
        return SlashReply(tuple(self._row(index, session) for index, session in enumerate(self._listed, 1)))

    def _row(self, index: int, session: Session) -> str:
        here = "*" if session.session_id == self.session.session_id else " "
        away = " (archived)" if session.archived_at is not None else ""
        return f" {here}{index}  {date_time(session.updated_at)}  {name_of(session)}{away}"

    def _replace(self, session: Session) -> Session:
        self._client.cleanup(session.session_id)
        return self._client.resolve(self._ref)


def first_answer(client: Client) -> list[str]:
    """Return the hint after the very first answer of a home; empty later on."""
    if len(client.runs(limit=2).runs) != 1:
        return []
    return [line.format(model=model_in_words(client)) for line in FIRST_ANSWER]


def print_first_answer(client: Client) -> None:
    """Print that hint where nothing else is on the screen."""
    for line in first_answer(client):
        say(line)


def model_in_words(client: Client) -> str:
    """Return the model that answers, as text for a sentence."""
    status = client.status()
    name = printable_line(model_name(status.provider, status.model))
    return "the built-in helper" if name == "embedded" else name


def recap_lines(conversation: ChatSession) -> list[str]:
    """Return the lines shown to a person who comes back to a conversation."""
    messages = conversation.recap()
    if not messages:
        return []
    session = conversation.session
    lines = [f"Continuing session {session.session_id}: {name_of(session)} (last used {date_time(session.updated_at)})"]
    for message in messages:
        sign = ">" if message.role == "user" else " "
        lines.append(f"{sign} {printable_line(message.text, width=RECAP_WIDTH)}")
    return lines


def error_line(error: PalyraError) -> str:
    """Return an error as a line in the chat."""
    return f"({printable_line(error.detail)} [{error.code}])"
