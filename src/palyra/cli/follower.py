"""The thread of the live chat that follows the session and tells the screen."""

import threading

from palyra.cli.conversation import Conversation, first_answer, trouble
from palyra.cli.family import Family
from palyra.cli.narration import Ended, Narrator, Note, Piece
from palyra.cli.question import Question
from palyra.cli.scroll import Row, Scroll
from palyra.cli.watch import LOST, asks
from palyra.core.errors import PalyraError
from palyra.core.events import RunAccepted, RunStarted
from palyra.gateway.client import Client
from palyra.gateway.follow import Line, Stream, follow_session

JOIN_SECONDS = 2.0
ANOTHER = "(another question follows when this one is answered)"


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
        self._before: dict[str, Note] = {}
        """What is said before a question, of those that have not been put yet."""
        self._putting = threading.Lock()

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
                    self._put(piece)
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
            self._put(piece, before=Note(asks(line)))

    def _put(self, piece: Piece, *, before: Note | None = None) -> None:
        """Show a piece; questions one after the other, since an answer must be about what was read last."""
        with self._putting:
            first = self._conversation.asked
            self._conversation.take_note(piece)
            now = self._conversation.asked
            if not isinstance(piece, Question):
                self._scroll.show(piece)
            elif before is not None:
                self._before[piece.approval_id] = before
            if now is not None and (first is None or now.approval_id != first.approval_id):
                self._ask(now)
            elif isinstance(piece, Question):
                self._scroll.show(Note(ANOTHER))

    def _ask(self, question: Question) -> None:
        if (before := self._before.pop(question.approval_id, None)) is not None:
            self._scroll.show(before)
        self._scroll.show(question)

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
