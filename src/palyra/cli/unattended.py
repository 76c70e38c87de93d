"""A run while nobody is there to answer its questions: wait for somebody elsewhere, leave it waiting, or say no."""

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum

import click
from msgspec import Struct

from palyra.cli import process
from palyra.cli.borrow import has_person
from palyra.cli.exits import Exit
from palyra.cli.narration import Ended
from palyra.cli.options import Invocation
from palyra.cli.output import say, screen_width
from palyra.cli.printable import printable_line
from palyra.cli.question import CODE_CHARS, question_lines, question_of
from palyra.cli.watch import Audience, Person, exit_after, watch
from palyra.core.approval import Approval
from palyra.core.errors import PalyraError
from palyra.core.events import ApprovalRequested, RunStarted
from palyra.core.ids import RunId
from palyra.core.message import Accepted
from palyra.gateway.client import Client
from palyra.gateway.follow import Line, Stream, follow_session
from palyra.gateway.remote import RemoteError
from palyra.gateway.target import find_daemon

NOBODY = "Nobody is there to answer."
LISTED = 50
CONFLICT = 409
SUMMARY_WIDTH = 200
JOIN_SECONDS = 2.0


class OnQuestion(StrEnum):
    """What becomes of a question that can not be put to a person here."""

    WAIT = "wait"
    LEAVE = "leave"
    DENY = "deny"


on_question_option = click.option(
    "--on-question",
    type=click.Choice([choice.value for choice in OnQuestion]),
    help="When the agent asks for your word: wait for it, leave the run waiting (exit code 5), or say no."
    " Default: wait at a terminal, else leave.",
)


def rule_for(invocation: Invocation, chosen: str | None) -> OnQuestion | None:
    """Return what to do about questions; None if they are put to the person at this terminal."""
    asks = has_person() and not invocation.json
    if chosen is None:
        return None if asks else OnQuestion.LEAVE
    rule = OnQuestion(chosen)
    return None if asks and rule is OnQuestion.WAIT else rule


def watch_unattended(
    invocation: Invocation, client: Client, accepted: Accepted, audience: Audience, *, rule: OnQuestion
) -> Exit:
    """Follow a run to its end, or to the first question that it is left with."""
    unattended = Unattended(client, accepted, audience, rule=rule)
    try:
        ended = watch(
            client,
            accepted.run_id,
            after_seq=accepted.after_seq,
            audience=unattended,
            on_stream=unattended.watching,
        )
    finally:
        unattended.close()
    if not unattended.left:
        return exit_after(ended)
    # Only a daemon that runs can take the answer, whoever had started it.
    if (daemon := find_daemon(invocation.home)) is not None:
        process.keep(invocation.home, daemon)
    _tell_of_leaving(accepted.run_id, unattended.left, told=isinstance(audience, Person))
    return Exit.WAITING


class _Page(Struct, frozen=True):
    approvals: tuple[Approval, ...]


class Unattended:
    """Hears a run for somebody else, and takes its questions, also those of the runs that work for it.

    As long as the run waits for its turn, the session has a stream of its own: behind a question of another run it
    would wait for as long as behind one of its own.
    """

    def __init__(self, client: Client, accepted: Accepted, audience: Audience, *, rule: OnQuestion) -> None:
        self.left: list[Approval] = []
        """The open questions that the run was left with."""
        self._client = client
        self._accepted = accepted
        self._audience = audience
        self._rule = rule
        self._tells = isinstance(audience, Person)
        self._family = {accepted.run_id}
        self._main: Stream | None = None
        self._streams: list[Stream] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def watching(self, stream: Stream) -> None:
        """Take notice of the stream that is closed when the run is left."""
        first, self._main = self._main is None, stream
        if first and self._accepted.queued and self._rule is not OnQuestion.WAIT:
            self._look_ahead()

    def hear(self, line: Line) -> Ended | None:
        ended = self._audience.hear(line)
        self._take(line)
        return Ended(self._accepted.run_id, "waiting") if self.left and ended is None else ended

    def hear_beside(self, line: Line) -> None:
        if line.run_id is not None:
            self._family.add(RunId(line.run_id))
        self._take(line)

    def lost(self) -> None:
        self._audience.lost()

    def close(self) -> None:
        """Follow nothing any more."""
        for stream in self._streams:
            stream.close()
        for thread in self._threads:
            thread.join(timeout=JOIN_SECONDS)

    def _take(self, line: Line) -> None:
        match line.event:
            case ApprovalRequested(approval_id=approval_id):
                self._decide(approval_id, told=line.run_id == self._accepted.run_id and self._tells)
            case _:
                pass

    def _decide(self, approval_id: str, *, told: bool) -> None:
        match self._rule:
            case OnQuestion.DENY:
                self._deny(approval_id)
            case OnQuestion.LEAVE:
                # Answered by now, perhaps: a stream also brings what was long ago.
                asked = [one for one in self._open() if one.run_id in self._family]
                if any(one.approval_id == approval_id for one in asked):
                    self._leave(asked)
            case OnQuestion.WAIT if not told:
                for one in self._open():
                    if one.approval_id == approval_id:
                        _put(one)
            case OnQuestion.WAIT:
                pass

    def _deny(self, approval_id: str) -> None:
        try:
            denied = self._client.answer(approval_id, allow=False, reason=NOBODY)
        except RemoteError as error:
            if error.status != CONFLICT:
                raise
            # Somebody was there, and faster.
            return
        say(f"palyra: answered no, since nobody is there: {_named(denied)}")

    def _leave(self, asked: list[Approval]) -> None:
        with self._lock:
            self.left = self.left or asked
        if self._main is not None:
            self._main.close()

    def _look_ahead(self) -> None:
        """Watch the session for questions of the runs before this one, until it has its turn."""
        accepted = self._accepted
        if self._client.run(accepted.run_id).status != "accepted":
            return
        stream = follow_session(self._client, accepted.session_id, after_seq=accepted.after_seq)

        def look(line: Line) -> None:
            if line.run_id == accepted.run_id and isinstance(line.event, RunStarted):
                stream.close()
            elif line.run_id != accepted.run_id and isinstance(line.event, ApprovalRequested):
                self._leave_behind()

        self._follow(stream, look)
        self._leave_behind()

    def _leave_behind(self) -> None:
        session_id = self._accepted.session_id
        asked = [one for one in self._open() if one.session_id == session_id and one.run_id not in self._family]
        if asked:
            self._leave(asked)

    def _open(self) -> list[Approval]:
        return list(self._client.ask(_Page, "GET", "/approvals", query={"open": "true", "limit": LISTED}).approvals)

    def _follow(self, stream: Stream, hear: Callable[[Line], None]) -> None:
        self._streams.append(stream)
        thread = threading.Thread(target=self._hear_ahead, args=(stream, hear), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _hear_ahead(self, stream: Stream, hear: Callable[[Line], None]) -> None:
        # If the daemon goes away, the run's own stream tells of that.
        with suppress(PalyraError):
            for line in stream:
                hear(line)


def _tell_of_leaving(run_id: str, asked: list[Approval], *, told: bool) -> None:
    """Say what is waited for; `told` if the questions of the run itself were shown already."""
    if all(one.run_id != run_id for one in asked):
        others = ", ".join(sorted({one.run_id for one in asked}))
        say(f"palyra: run {run_id} waits for run {others}, which waits for your word, and nobody is here to give it:")
    else:
        say(f"palyra: run {run_id} waits for your word, and nobody is here to give it:")
    for one in asked:
        if told and one.run_id == run_id:
            say(f"- {_named(one)}")
            say(f"  {_ways(one.approval_id)}")
        else:
            _put(one)
    say(f"palyra: it goes on when you have answered; `palyra runs attach {run_id}` shows the rest.")


def _put(one: Approval) -> None:
    """Show a question with all that would happen, and how to answer it."""
    for row in question_lines(question_of(one), width=screen_width(sys.stderr)):
        say(row)
    say(f"  Answer with {_ways(one.approval_id)}.")


def _ways(approval_id: str) -> str:
    code = approval_id[-CODE_CHARS:]
    return f"`palyra approvals allow {code}` or `palyra approvals deny {code}`"


def _named(one: Approval) -> str:
    return printable_line(one.effect.summary or one.tool or one.reason, width=SUMMARY_WIDTH)
