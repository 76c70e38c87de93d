"""The chat without its surface: which session it is in, what is sent, what the slash commands do."""

import os
from dataclasses import dataclass

from palyra.cli.message import check
from palyra.cli.narration import Ended, Piece, Settled
from palyra.cli.output import date_time, model_name, say
from palyra.cli.printable import printable_line
from palyra.cli.question import Answer, Question, read_answer, read_scope
from palyra.cli.sessions import name_of
from palyra.cli.slash import Slash, help_lines, unknown
from palyra.core.errors import Conflict, PalyraError
from palyra.core.events import Mode
from palyra.core.message import Accepted
from palyra.core.session import Session, SessionRef
from palyra.core.stop import Stop
from palyra.gateway.client import Client
from palyra.gateway.follow import read_tape
from palyra.gateway.records import Said

DEFAULT_KEY = "cli"
LISTED = 9
RECAP_WIDTH = 160
RECAP_REACH = 100
SEND_PATIENCE = 5.0
"""Somebody sits and waits; what was typed is kept if it could not be sent."""

FIRST_ANSWER = (
    "(Every step of that answer is recorded: `palyra runs tape last` shows them.",
    " It came from {model}; `palyra providers add` lets another model answer.)",
)


class ConversationArchived(Conflict):
    """This session is archived."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a slash command came to."""

    lines: tuple[str, ...] = ()
    leave: bool = False
    moved: bool = False
    """The chat is in another session now."""


class Conversation:
    """A session that somebody talks in, and the way to others."""

    def __init__(self, client: Client, ref: SessionRef) -> None:
        self._client = client
        self._ref = ref
        self._listed: tuple[Session, ...] = ()
        self._questions: list[Question] = []
        """What waits for the person's word, the oldest first."""
        self.own_keys: set[str] = set()
        """The keys of what was sent from here, which need not be shown again."""
        self.session = self._open()

    def _open(self) -> Session:
        session = self._client.resolve(self._ref)
        if session.archived_at is None:
            return session
        if self._ref.key != DEFAULT_KEY:
            raise ConversationArchived(
                f"This session is archived. `palyra sessions unarchive {session.session_id}` takes it back."
            )
        # The person put the old talk away; what is typed now belongs to a new one.
        return self._replace(session)

    def begin_anew(self) -> None:
        """Go on in a new session. One that was opened by name is put away, so that the name is the new one's."""
        if self._ref.session_id is not None:
            self._ref = SessionRef()
        if self._ref.key is None and self._ref.label is None:
            self.session = self._client.resolve(self._ref)
        elif self._client.messages(self.session.session_id, limit=1) or self.session.active_run_id:
            self.session = self._replace(self.session)

    def recap(self) -> tuple[Said, ...]:
        """Return the last words that still count, in order; nothing for a session that is new."""
        said = self._client.messages(self.session.session_id, limit=RECAP_REACH)
        counting = [message for message in said if message.tape_seq > self.session.reset_seq]
        talk = [message for message in counting if message.role != "tool" and message.text.strip()]
        return tuple(reversed(talk[:2]))

    def end_seq(self) -> int:
        """Return behind which entry the chat begins: the end of the tape, or the beginning of the run under way."""
        session = self._client.session(self.session.session_id)
        if session.active_run_id is not None:
            return self._client.run(session.active_run_id).accepted_seq - 1
        last = next(iter(self._client.messages(session.session_id, limit=1)), None)
        seq = last.tape_seq if last is not None else 0
        for line in read_tape(self._client, f"/sessions/{session.session_id}", after_seq=seq):
            seq = line.tape_seq
        return seq

    @property
    def asked(self) -> Question | None:
        """The question that the next answer is taken for."""
        return next(iter(self._questions), None)

    def take_note(self, piece: Piece) -> None:
        """Keep in mind which questions are open."""
        match piece:
            case Question():
                self._questions.append(piece)
            case Settled(approval_id):
                self._questions = [one for one in self._questions if one.approval_id != approval_id]
            case Ended():
                self._questions.clear()
            case _:
                pass

    def answer(self, text: str) -> bool:
        """Take the text for an answer if a question is open and it is one; False if it is a message like any other."""
        answer = read_answer(text) if self._questions else None
        if answer is None:
            return False
        self._give(answer)
        return True

    def _give(self, answer: Answer) -> None:
        self._client.answer(
            self._questions[0].approval_id,
            allow=answer.allow,
            scope=answer.scope,
            ttl_seconds=answer.ttl_seconds,
            reason=answer.reason,
        )

    def send(self, text: str) -> Accepted:
        """Send a message; it joins the run under way if there is one."""
        key = os.urandom(16).hex()
        self.own_keys.add(key)
        ref = SessionRef(session_id=self.session.session_id)
        return self._client.send(check(text), ref, mode=Mode.STEER, key=key, patience=SEND_PATIENCE)

    def cancel(self, run_id: str) -> None:
        """Have a run stopped."""
        self._client.cancel(run_id, reason="cancelled in the chat")

    def do(self, slash: Slash, *, active: str | None, typing_along: bool) -> Reply:
        """Carry out a slash command; `active` is the run under way."""
        match slash.name:
            case "/help":
                return Reply(tuple(help_lines(typing_along=typing_along)))
            case "/quit":
                return Reply(leave=True)
            case "/model":
                return Reply((f"Answers come from {model_in_words(self._client)}.",))
            case "/stop" if slash.argument:
                return Reply((self._stop(slash.argument),))
            case "/resume":
                return Reply((self._resume(),))
            case "/cancel" | "/stop" if active is None:
                return Reply(("Nothing is running.",))
            case "/cancel" | "/stop":
                self.cancel(active or "")
                return Reply()
            case "/allow" | "/deny" if not self._questions:
                return Reply(("Nothing waits for your answer.",))
            case "/allow":
                answer = read_scope(slash.argument)
                if answer is None:
                    return Reply(("Use /allow, /allow session, /allow always, or a time: /allow 30m.",))
                self._give(answer)
                return Reply()
            case "/deny":
                self._give(Answer(allow=False, reason=slash.argument))
                return Reply()
            case "/new":
                self._questions.clear()
                self.begin_anew()
                return Reply(("A new conversation. /sessions lists the others.",), moved=True)
            case "/sessions":
                return self._sessions(slash.argument)
            case _:
                return Reply((unknown(slash),))

    def _stop(self, argument: str) -> str:
        if argument != "all":
            return "Use /stop for the run under way, or /stop all for all of your work."
        stop = self._client.ask(Stop, "POST", "/stop", body={"reason": "stopped in the chat"}, field="stop")
        return f"{printable_line(stop.told)} /resume lets it go on."

    def _resume(self) -> str:
        left = self._client.ask(tuple[Stop, ...], "POST", "/resume", body={}, field="stops")
        return "Your work goes on." if not left else " ".join(printable_line(stop.told) for stop in left)

    def _sessions(self, argument: str) -> Reply:
        if not argument:
            return self._list()
        if not self._listed:
            self._list()
        if not argument.isdecimal() or not 1 <= int(argument) <= len(self._listed):
            return Reply((f"There is no conversation {printable_line(argument, width=20)}; /sessions lists them.",))
        session = self._listed[int(argument) - 1]
        if session.archived_at is not None:
            session = self._client.change(session.session_id, "unarchive")
        self._ref, self.session = SessionRef(session_id=session.session_id), session
        self._questions.clear()
        return Reply(tuple(recap_lines(self)) or (f"Going on with: {name_of(session)}",), moved=True)

    def _list(self) -> Reply:
        kept = self._client.sessions(limit=LISTED).sessions
        archived = self._client.sessions(archived=True, limit=LISTED).sessions
        latest = sorted((*kept, *archived), key=lambda session: session.updated_at, reverse=True)
        self._listed = tuple(latest[:LISTED])
        return Reply(tuple(self._row(place, session) for place, session in enumerate(self._listed, 1)))

    def _row(self, place: int, session: Session) -> str:
        here = "*" if session.session_id == self.session.session_id else " "
        away = " (archived)" if session.archived_at is not None else ""
        return f" {here}{place}  {date_time(session.updated_at)}  {name_of(session)}{away}"

    def _replace(self, session: Session) -> Session:
        self._client.cleanup(session.session_id)
        return self._client.resolve(self._ref)


def first_answer(client: Client) -> list[str]:
    """Return what is said after the very first answer of a home; nothing later on."""
    if len(client.runs(limit=2).runs) != 1:
        return []
    return [line.format(model=model_in_words(client)) for line in FIRST_ANSWER]


def tell_first_answer(client: Client) -> None:
    """Say it where nothing else is on the screen."""
    for line in first_answer(client):
        say(line)


def model_in_words(client: Client) -> str:
    """Return what answers, as a sentence can name it."""
    told = client.status()
    name = printable_line(model_name(told.provider, told.model))
    return "the embedded helper" if name == "embedded" else name


def recap_lines(conversation: Conversation) -> list[str]:
    """Return what a person is told who comes back to a conversation."""
    said = conversation.recap()
    if not said:
        return []
    session = conversation.session
    lines = [f"Continuing session {session.session_id}: {name_of(session)} (last used {date_time(session.updated_at)})"]
    for message in said:
        sign = ">" if message.role == "user" else " "
        lines.append(f"{sign} {printable_line(message.text, width=RECAP_WIDTH)}")
    return lines


def trouble(error: PalyraError) -> str:
    """Return an error as a line in the chat."""
    return f"({printable_line(error.detail)} [{error.code}])"
