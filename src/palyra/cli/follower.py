"""The thread of the live chat that follows the session and tells the screen."""

import threading

from palyra.cli.conversation import Conversation, first_answer, trouble
from palyra.cli.family import Family
from palyra.cli.narration import Ended, Narrator, Note
from palyra.cli.question import Question
from palyra.cli.scroll import Row, Scroll
from palyra.cli.watch import LOST, asks
from palyra.core.errors import PalyraError
from palyra.core.events import RunAccepted, RunStarted
from palyra.gateway.client import Client
from palyra.gateway.follow import Line, Stream, follow_session

JOIN_SECONDS = 2.0


class Follower:
    """Follows one session at a time, from where the chat came in."""

    def __init__(self, client: Client, conversation: Conversation, scroll: Scroll) -> None:
        self._client = client
        self._conversation = conversation
        self._scroll = scroll
        self._stream: Stream | None = None
        self._thread: threading.Thread | None = None
        self._after_seq = 0
        self._running: list[str] = []

    @property
    def active(self) -> str | None:
        """The run under way in the session."""
        return self._running[0] if self._running else None

    def start(self) -> None:
        """Begin at the session's end, or at the beginning of the run that is under way in it."""
        self._after_seq = self._conversation.end_seq()
        self._spawn()

    def ensure(self) -> None:
        """Go on if the following had been given up because the daemon was away for too long."""
        if self._thread is None or not self._thread.is_alive():
            self._spawn()

    def move(self) -> None:
        """Follow the session that the conversation is in now."""
        self.stop()
        self._running.clear()
        self._scroll.work(under_way=False)
        self.start()

    def stop(self) -> None:
        """Stop following."""
        if self._stream is not None:
            self._stream.close()
        if self._thread is not None:
            self._thread.join(timeout=JOIN_SECONDS)
        self._stream = self._thread = None

    def _spawn(self) -> None:
        stream = follow_session(
            self._client,
            self._conversation.session.session_id,
            after_seq=self._after_seq,
            lost=lambda: self._scroll.show(Note(LOST)),
        )
        self._stream = stream
        self._thread = threading.Thread(target=self._follow, args=(stream,), daemon=True)
        self._thread.start()

    def _follow(self, stream: Stream) -> None:
        narrator, others = Narrator(own_keys=self._conversation.own_keys), Narrator()
        family = Family(self._client, lambda line: self._hear_beside(others, line))
        try:
            for line in stream:
                self._after_seq = line.tape_seq
                self._keep_count(line)
                family.take(line)
                for piece in narrator.tell(line):
                    self._scroll.show(piece)
                    self._conversation.take_note(piece)
                    if isinstance(piece, Ended):
                        self._run_ended(piece)
        except PalyraError as error:
            self._running.clear()
            self._scroll.work(under_way=False)
            self._scroll.show(Note(trouble(error)))
        finally:
            family.close()

    def _hear_beside(self, narrator: Narrator, line: Line) -> None:
        """Put a question of a run that works for one of these before the person too."""
        for piece in narrator.tell(line):
            if isinstance(piece, Question):
                self._scroll.show(Note(asks(line)))
            self._scroll.show(piece)
            self._conversation.take_note(piece)

    def _keep_count(self, line: Line) -> None:
        match line.event:
            case RunAccepted() | RunStarted() if line.run_id is not None:
                if line.run_id not in self._running:
                    self._running.append(line.run_id)
                self._scroll.work(under_way=True)
            case _:
                pass

    def _run_ended(self, ended: Ended) -> None:
        if ended.run_id in self._running:
            self._running.remove(ended.run_id)
        self._scroll.work(under_way=bool(self._running))
        if ended.status == "done":
            self._scroll.add([Row(line, dim=True) for line in first_answer(self._client)])
        self._scroll.add([Row("")])
