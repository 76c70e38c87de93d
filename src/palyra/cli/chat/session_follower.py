"""The thread of the live chat that follows the session and updates the screen."""

import threading

from palyra.cli.chat.conversation import ChatSession, error_line, first_answer
from palyra.cli.chat.scrollback import ScreenRow, Scrollback
from palyra.cli.run_view.approval_prompt import ApprovalPrompt
from palyra.cli.run_view.child_runs import ChildRunFollower
from palyra.cli.run_view.narration import Narrator, Notice, Piece, RunEnded
from palyra.cli.run_view.watch import LOST, asking_run
from palyra.core.errors import PalyraError
from palyra.core.events import RunAccepted, RunStarted
from palyra.gateway.client.client import Client
from palyra.gateway.client.tape_stream import ReceivedEntry, TapeStream, follow_session

JOIN_SECONDS = 2.0
ANOTHER = "(another approval request follows after this one)"


class SessionFollower:
    """Follows one session at a time, from where the chat came in."""

    def __init__(self, client: Client, conversation: ChatSession, scroll: Scrollback) -> None:
        self._client = client
        self._conversation = conversation
        self._scroll = scroll
        self._stream: TapeStream | None = None
        self._thread: threading.Thread | None = None
        self._after_seq = 0
        self._running: list[str] = []
        self._before: dict[str, Notice] = {}
        """The notice before each approval prompt that was not shown yet."""
        self._putting = threading.Lock()

    @property
    def active(self) -> str | None:
        """The active run of the session."""
        return self._running[0] if self._running else None

    def start(self) -> None:
        """Start at the session's end, or at the start of its active run."""
        self._after_seq = self._conversation.end_seq()
        self._spawn()

    def ensure(self) -> None:
        """Start again if following was given up because the daemon was away for too long."""
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
            lost=lambda: self._scroll.show(Notice(LOST)),
        )
        self._stream = stream
        self._thread = threading.Thread(target=self._follow, args=(stream,), daemon=True)
        self._thread.start()

    def _follow(self, stream: TapeStream) -> None:
        narrator, others = Narrator(own_keys=self._conversation.own_keys), Narrator()
        family = ChildRunFollower(self._client, lambda line: self._on_child_entry(others, line))
        try:
            for line in stream:
                self._after_seq = line.tape_seq
                self._count_children(line)
                family.take(line)
                for piece in narrator.pieces_of(line):
                    self._put(piece)
                    if isinstance(piece, RunEnded):
                        self._run_ended(piece)
        except PalyraError as error:
            self._running.clear()
            self._scroll.work(under_way=False)
            self._scroll.show(Notice(error_line(error)))
        finally:
            family.close()

    def _on_child_entry(self, narrator: Narrator, line: ReceivedEntry) -> None:
        """Show the approval requests of child runs to the person too."""
        for piece in narrator.pieces_of(line):
            self._put(piece, before=Notice(asking_run(line)))

    def _put(self, piece: Piece, *, before: Notice | None = None) -> None:
        """Show a piece; approval prompts one at a time, since an answer must be about what was read last."""
        with self._putting:
            first = self._conversation.open_approval
            self._conversation.take_note(piece)
            now = self._conversation.open_approval
            if not isinstance(piece, ApprovalPrompt):
                self._scroll.show(piece)
            elif before is not None:
                self._before[piece.approval_id] = before
            if now is not None and (first is None or now.approval_id != first.approval_id):
                self._ask(now)
            elif isinstance(piece, ApprovalPrompt):
                self._scroll.show(Notice(ANOTHER))

    def _ask(self, question: ApprovalPrompt) -> None:
        if (before := self._before.pop(question.approval_id, None)) is not None:
            self._scroll.show(before)
        self._scroll.show(question)

    def _count_children(self, line: ReceivedEntry) -> None:
        match line.event:
            case RunAccepted() | RunStarted() if line.run_id is not None:
                if line.run_id not in self._running:
                    self._running.append(line.run_id)
                self._scroll.work(under_way=True)
            case _:
                pass

    def _run_ended(self, ended: RunEnded) -> None:
        if ended.run_id in self._running:
            self._running.remove(ended.run_id)
        self._scroll.work(under_way=bool(self._running))
        if ended.status == "done":
            self._scroll.add([ScreenRow(line, dim=True) for line in first_answer(self._client)])
        self._scroll.add([ScreenRow("")])
