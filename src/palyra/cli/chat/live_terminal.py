"""The chat in a terminal with a cursor: the answer grows above the prompt while the next message is typed.

Two threads share the screen. One follows the session and puts rows into the `Scrollback`; the other runs the prompt.
Complete rows are printed above the prompt for good; the row that still grows, and the running tool, are part of the
prompt and redrawn with it. So typed and printed text never mix.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from palyra.cli.chat.conversation import ChatSession, error_line, recap_lines
from palyra.cli.chat.scrollback import ScreenRow, Scrollback, print_rows
from palyra.cli.chat.session_follower import SessionFollower
from palyra.cli.chat.slash_commands import parse
from palyra.core.errors import PalyraError
from palyra.core.text.secret_patterns import secret_spans
from palyra.gateway.client.client import Client

PROMPT = "> "
MORE = "  "
CANCEL_SECONDS = 2.0
REFRESH_SECONDS = 1.0
TWICE_SECONDS = 1.0
"""Two Ctrl-C within this time mean: leave."""
DIM = "ansibrightblack"


def run_live_chat(client: Client, conversation: ChatSession, *, history: Path) -> None:
    """Chat until the person leaves."""
    scroll = Scrollback()
    chat = LiveChat(conversation, scroll, SessionFollower(client, conversation, scroll))
    chat.run(_history(history))


class LiveChat:
    """Reads input, and keeps the screen up to date."""

    def __init__(self, conversation: ChatSession, scroll: Scrollback, follower: SessionFollower) -> None:
        self._conversation = conversation
        self._scroll = scroll
        self._follower = follower
        self._interrupted_at = -TWICE_SECONDS
        self._warned = False
        self._unsent = ""
        self._cancelling: threading.Thread | None = None

    def run(self, history: History) -> None:
        """Prompt until the person leaves."""
        session: PromptSession[str] = PromptSession(
            self._prompt,
            multiline=True,
            prompt_continuation=MORE,
            key_bindings=self._keys(),
            history=history,
            complete_while_typing=False,
            reserve_space_for_menu=0,
            # The live rows show how long they take.
            refresh_interval=REFRESH_SECONDS,
        )
        self._greet()
        self._scroll.on_change = _redraw_of(session, self._scroll)
        self._follower.start()
        try:
            while self._take(session):
                pass
        finally:
            self._scroll.on_change = lambda: None
            self._leave()

    def _leave(self) -> None:
        """Print what is left, and what happens to a run that is not done."""
        if self._cancelling is not None:
            self._cancelling.join(timeout=CANCEL_SECONDS)
        self._follower.stop()
        print_rows(self._scroll.take_all())
        run_id = self._follower.active
        if run_id is not None and self._cancelling is None:
            self._note(f"(the run continues; follow it with `palyra runs attach {run_id}`)")
        elif run_id is not None:
            self._note(f"(cancelling the run; see `palyra runs show {run_id}`)")
        print_rows(self._scroll.take())

    def _greet(self) -> None:
        lines = [
            *recap_lines(self._conversation),
            "Type a message and press Enter. /help lists commands, Ctrl-D quits.",
        ]
        self._scroll.add([ScreenRow(line, dim=True) for line in lines])
        print_rows(self._scroll.take())

    def _take(self, session: PromptSession[str]) -> bool:
        """Read one input and handle it; False if the person wants to leave."""
        unsent, self._unsent = self._unsent, ""
        try:
            # Rows that came while there was no prompt are printed as soon as there is one.
            text = session.prompt(default=unsent, pre_run=self._scroll.changed)
        except (EOFError, KeyboardInterrupt):
            return False
        self._interrupted_at, self._warned, self._cancelling = -TWICE_SECONDS, False, None
        if not text.strip():
            return True
        try:
            return self._do(text)
        except PalyraError as error:
            self._unsent = text
            self._note(error_line(error))
            return True

    def _do(self, text: str) -> bool:
        slash = parse(text)
        if slash is None and self._conversation.answer(text):
            return True
        if slash is None:
            accepted = self._conversation.send(text.rstrip())
            self._follower.ensure()
            if accepted.steered:
                self._note("(added to the current run)")
            elif accepted.waiting_for is not None:
                self._note(f"({accepted.waiting_for})")
            elif accepted.queued:
                self._note("(another run is active in this session; this message is queued)")
            return True
        reply = self._conversation.do(slash, active=self._follower.active, typing_along=True)
        if reply.moved:
            self._follower.move()
        for line in reply.lines:
            self._note(line)
        return not reply.leave

    def _note(self, line: str) -> None:
        self._scroll.add([ScreenRow(line, dim=True)])

    def _prompt(self) -> StyleAndTextTuples:
        """Return the prompt with the live rows above it; only the prompt stays when a message is sent."""
        sign = ("bold", PROMPT)
        if get_app().is_done:
            return [sign]
        fragments: StyleAndTextTuples = []
        for row in self._scroll.alive():
            fragments.append((DIM if row.dim else "bold" if row.asks else "", f"{row.text}\n"))
        return [*fragments, sign]

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.document.current_line_before_cursor.endswith("\\"):
                buffer.delete_before_cursor()
                buffer.insert_text("\n")
            else:
                buffer.validate_and_handle()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _(event: KeyPressEvent) -> None:
            self._interrupt(event)

        return keys

    def _interrupt(self, event: KeyPressEvent) -> None:
        """Cancel the active run, or clear what was typed; the second time, leave."""
        now = time.monotonic()
        twice, self._interrupted_at = now - self._interrupted_at < TWICE_SECONDS, now
        active, typed = self._follower.active, bool(event.current_buffer.text)
        if twice or (self._warned and not typed):
            event.app.exit(exception=KeyboardInterrupt)
        elif active is not None:
            self._warned = True
            self._cancelling = threading.Thread(target=self._cancel, args=(active,), daemon=True)
            self._cancelling.start()
        elif typed:
            self._warned = False
            event.current_buffer.reset()
        else:
            self._warned = True
            self._note("(press Ctrl-C again or Ctrl-D to quit)")

    def _cancel(self, run_id: str) -> None:
        """Cancel the run in a thread: the daemon may take a moment, and the keyboard must not wait for it."""
        try:
            self._conversation.cancel(run_id)
        except PalyraError as error:
            self._note(error_line(error))


def _redraw_of(session: PromptSession[str], scroll: Scrollback) -> Callable[[], None]:
    """Return a callback that draws the scrollback's new rows. It may be called from any thread."""

    def redraw() -> None:
        app = session.app
        if not app.is_running or app.loop is None:
            return
        # The loop may have ended in the meantime; then the next prompt shows the new rows.
        with suppress(RuntimeError):
            app.loop.call_soon_threadsafe(show)

    def show() -> None:
        app = session.app
        if not app.is_running or app.is_done:
            return
        if scroll.has_rows():
            # Not `run_in_terminal`: it hands the keyboard back to the terminal for a moment, which echoes what is typed
            # in that moment and turns Ctrl-C into a signal.
            app.renderer.erase()
            print_rows(scroll.take())
        app.invalidate()

    return redraw


def _history(path: Path) -> History:
    """Return the input history; input may be private, so only its owner can read the file."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError:
        return InMemoryHistory()
    return _History(str(path))


class _History(FileHistory):
    """Stores the input history, except texts with secrets: the daemon seals them, and this file would show them."""

    def store_string(self, string: str) -> None:
        if not any(span.is_sure for span in secret_spans(string)):
            # What cannot be stored, for example on a full disk, is sent all the same.
            with suppress(OSError):
                super().store_string(string)
