"""Follows one run to its end in the foreground; Ctrl-C cancels it, and the second time leaves."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from types import FrameType
from typing import Protocol

from palyra.cli.exit_codes import Exit
from palyra.cli.run_view.approval_prompt import ApprovalPrompt
from palyra.cli.run_view.child_runs import ChildRunFollower
from palyra.cli.run_view.narration import CTRL_C, Narrator, Notice, Piece, RunEnded, Screen, ended_by, ended_of
from palyra.cli.terminal.output import say, show_json_line
from palyra.core.errors import PalyraError
from palyra.gateway.client.client import Client
from palyra.gateway.client.tape_stream import ReceivedEntry, TapeStream, follow_run

LOST = "(lost the connection to the daemon; waiting for it. Start it with `palyra up`)"


class InterruptCounter:
    """Counts Ctrl-C. The first closes the stream, so that the loop wakes up; the next one raises as usual."""

    def __init__(self) -> None:
        self.count = 0
        self.told = False
        """The daemon knows that the run is to be cancelled."""
        self.stream: TapeStream | None = None

    def __call__(self, _: int, __: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt
        if self.stream is not None:
            self.stream.close()


class RunAudience(Protocol):
    """Receives the entries of a run."""

    def on_entry(self, line: ReceivedEntry) -> RunEnded | None:
        """Take one entry, and return how the run ended if it was the final one."""
        ...

    def on_child_entry(self, line: ReceivedEntry) -> None:
        """Take an approval request, or an answer, of a child run. Called from another thread."""
        ...

    def lost(self) -> None:
        """Called when the daemon went away and we wait for it."""
        ...


class TerminalAudience:
    """Shows the run to a person."""

    def __init__(
        self, screen: Screen, narrator: Narrator, *, decide: Callable[[ApprovalPrompt], None] = lambda question: None
    ) -> None:
        """`decide` gets each approval prompt; it may answer it, or leave it open."""
        self._screen = screen
        self._narrator = narrator
        self._decide = decide
        self._others = Narrator()
        # One approval prompt at a time, whichever run it is from.
        self._deciding = threading.Lock()

    def on_entry(self, line: ReceivedEntry) -> RunEnded | None:
        ended = None
        for piece in self._narrator.pieces_of(line):
            self._take(piece)
            ended = piece if isinstance(piece, RunEnded) else ended
        return ended

    def on_child_entry(self, line: ReceivedEntry) -> None:
        for piece in self._others.pieces_of(line):
            if isinstance(piece, ApprovalPrompt):
                self._screen.show(Notice(asking_run(line)))
            self._take(piece)

    def _take(self, piece: Piece) -> None:
        if not isinstance(piece, ApprovalPrompt):
            self._screen.show(piece)
            return
        with self._deciding:
            self._screen.show(piece)
            self._decide(piece)

    def lost(self) -> None:
        self._screen.show(Notice(LOST))


class JsonAudience:
    """Gets every entry as a line of JSON."""

    def on_entry(self, line: ReceivedEntry) -> RunEnded | None:
        show_json_line(line.text)
        return ended_by(line)

    def on_child_entry(self, line: ReceivedEntry) -> None:
        """Ignore it: only the entries of one run are printed."""

    def lost(self) -> None:
        say(LOST)


def watch(
    client: Client,
    run_id: str,
    *,
    after_seq: int,
    audience: RunAudience,
    on_stream: Callable[[TapeStream], None] = lambda stream: None,
) -> RunEnded:
    """Pass the run's entries after `after_seq` to the audience until it ends, and return how it ended.

    `on_stream` gets each stream before it is read. Closing one ends the watching.
    """
    with (
        _cancelling(client, run_id) as interrupts,
        closing(ChildRunFollower(client, audience.on_child_entry)) as family,
    ):
        while True:
            stream = follow_run(client, run_id, after_seq=after_seq, lost=audience.lost)
            interrupts.stream = stream
            on_stream(stream)
            cancels = interrupts.count > 0
            if cancels and not interrupts.told:
                client.cancel(run_id, reason=CTRL_C)
                interrupts.told = True
            for line in stream:
                family.take(line)
                ended = audience.on_entry(line)
                if ended is not None:
                    return ended
            after_seq = stream.after_seq
            if not interrupts.count or cancels:
                # The daemon has no more entries of it: it is over, and its record says how.
                return ended_of(client.run(run_id))


def attach(client: Client, run_id: str, *, after_seq: int, audience: RunAudience) -> RunEnded:
    """Follow a run without controlling it: Ctrl-C only stops following."""
    with closing(ChildRunFollower(client, audience.on_child_entry)) as family:
        for line in follow_run(client, run_id, after_seq=after_seq, lost=audience.lost):
            family.take(line)
            ended = audience.on_entry(line)
            if ended is not None:
                return ended
    return ended_of(client.run(run_id))


def asking_run(line: ReceivedEntry) -> str:
    """Return a line that says which child run requests approval."""
    return f"(child run {line.run_id} needs approval:)"


def exit_after(ended: RunEnded) -> Exit:
    """Return the exit code for a run that ended like this."""
    match ended.status:
        case "done":
            return Exit.DONE
        case "cancelled":
            return Exit.CANCELLED
        case _:
            return Exit.FAILED


@contextmanager
def _cancelling(client: Client, run_id: str) -> Iterator[InterruptCounter]:
    """Count Ctrl-C meanwhile; leaving by Ctrl-C always requests the run's cancellation."""
    interrupts = InterruptCounter()
    before = signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts
    except KeyboardInterrupt:
        if not interrupts.told:
            with suppress(PalyraError):
                client.cancel(run_id, reason=CTRL_C)
        say(f"palyra: cancelling the run; see `palyra runs show {run_id}`.")
        raise
    finally:
        signal.signal(signal.SIGINT, before)
