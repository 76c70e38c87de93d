"""The chat in a terminal with a cursor: the answer grows above the prompt while the next message is typed.

Two threads share the screen. One follows the session and puts rows into the `Scroll`; the other runs the prompt. Whole
rows are printed above the prompt for good; the row that still grows, and the tool at work, are part of the prompt
and drawn anew with it. So nothing that is typed and nothing that is printed ever mixes.
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

from palyra.cli.conversation import Conversation, recap_lines, trouble
from palyra.cli.follower import Follower
from palyra.cli.scroll import Row, Scroll, print_rows
from palyra.cli.slash import parse
from palyra.core.errors import PalyraError
from palyra.core.shapes import spans
from palyra.gateway.client import Client

PROMPT = "> "
MORE = "  "
CANCEL_SECONDS = 2.0
REFRESH_SECONDS = 1.0
TWICE_SECONDS = 1.0
"""Two Ctrl-C within this time are one wish: to leave."""
DIM = "ansibrightblack"


def talk(client: Client, conversation: Conversation, *, history: Path) -> None:
    """Talk until the person leaves."""
    scroll = Scroll()
    chat = LiveChat(conversation, scroll, Follower(client, conversation, scroll))
    chat.run(_history(history))


class LiveChat:
    """Takes what is typed, and keeps the screen up to date."""

    def __init__(self, conversation: Conversation, scroll: Scroll, follower: Follower) -> None:
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
            # What is alive says how long it takes.
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
        """Print what is left, and what becomes of a run that is not done."""
        if self._cancelling is not None:
            self._cancelling.join(timeout=CANCEL_SECONDS)
        self._follower.stop()
        print_rows(self._scroll.take_all())
        run_id = self._follower.active
        if run_id is not None and self._cancelling is None:
            self._note(f"(the run goes on; `palyra runs attach {run_id}` shows it)")
        elif run_id is not None:
            self._note(f"(the run is being cancelled; `palyra runs show {run_id}` shows it)")
        print_rows(self._scroll.take())

    def _greet(self) -> None:
        lines = [*recap_lines(self._conversation), "Type a message and Enter; /help tells more, Ctrl-D leaves."]
        self._scroll.add([Row(line, dim=True) for line in lines])
        print_rows(self._scroll.take())

    def _take(self, session: PromptSession[str]) -> bool:
        """Take one input and do it; False if the person wants to leave."""
        unsent, self._unsent = self._unsent, ""
        try:
            # What came while no prompt was there is printed as soon as there is one.
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
            self._note(trouble(error))
            return True

    def _do(self, text: str) -> bool:
        slash = parse(text)
        if slash is None and self._conversation.answer(text):
            return True
        if slash is None:
            accepted = self._conversation.send(text.rstrip())
            self._follower.ensure()
            if accepted.steered:
                self._note("(joins the run under way)")
            elif accepted.waiting_for is not None:
                self._note(f"({accepted.waiting_for})")
            elif accepted.queued:
                self._note("(another run is active here; this message waits for its turn)")
            return True
        reply = self._conversation.do(slash, active=self._follower.active, typing_along=True)
        if reply.moved:
            self._follower.move()
        for line in reply.lines:
            self._note(line)
        return not reply.leave

    def _note(self, line: str) -> None:
        self._scroll.add([Row(line, dim=True)])

    def _prompt(self) -> StyleAndTextTuples:
        """Return the prompt with what is alive above it; only the prompt stays behind when a message is sent."""
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
        """Cancel the run under way, or clear what was typed, or leave at the second time."""
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
            self._note("(Ctrl-C again, Ctrl-D or /quit leaves)")

    def _cancel(self, run_id: str) -> None:
        """Have the run stopped: in a thread, since the daemon may take a moment and the keys must not wait for it."""
        try:
            self._conversation.cancel(run_id)
        except PalyraError as error:
            self._note(trouble(error))


def _redraw_of(session: PromptSession[str], scroll: Scroll) -> Callable[[], None]:
    """Return what brings the scroll's news to the screen. It may be called from any thread."""

    def redraw() -> None:
        app = session.app
        if not app.is_running or app.loop is None:
            return
        # The loop may have ended in the meantime; then the next prompt shows the news.
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
    """Return what was typed before; what is typed may be private, so the file is its owner's only."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError:
        return InMemoryHistory()
    return _History(str(path))


class _History(FileHistory):
    """Keeps what was typed, but for what holds a secret: the daemon seals it, and this file would show it."""

    def store_string(self, string: str) -> None:
        if not any(span.is_sure for span in spans(string)):
            # What cannot be kept, on a full disk say, is sent all the same.
            with suppress(OSError):
                super().store_string(string)
