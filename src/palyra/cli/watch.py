"""Follow one run to its end in the foreground; Ctrl-C cancels it, and leaves at the second time."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from types import FrameType
from typing import Protocol

from palyra.cli.exits import Exit
from palyra.cli.family import Family
from palyra.cli.narration import Ended, Narrator, Note, Piece, Screen, ended_by, ended_of
from palyra.cli.output import say, show_json_line
from palyra.cli.question import Question
from palyra.core.errors import PalyraError
from palyra.gateway.client import Client
from palyra.gateway.follow import Line, Stream, follow_run

CTRL_C = "Ctrl-C"
LOST = "(the daemon went away; waiting for it to come back: `palyra up` starts it)"


class Interrupts:
    """Counts Ctrl-C. The first closes the stream, so that the loop wakes up; the next one raises as usual."""

    def __init__(self) -> None:
        self.count = 0
        self.told = False
        """The daemon knows that the run is to be cancelled."""
        self.stream: Stream | None = None

    def __call__(self, _: int, __: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt
        if self.stream is not None:
            self.stream.close()


class Audience(Protocol):
    """Whoever is told of a run."""

    def hear(self, line: Line) -> Ended | None:
        """Take one entry, and return how the run ended if it was the final one."""
        ...

    def hear_beside(self, line: Line) -> None:
        """Take a question, or an answer, of a run that works for this one. Called from another thread."""
        ...

    def lost(self) -> None:
        """Take notice that the daemon went away and is waited for."""
        ...


class Person:
    """Is told the run as a story."""

    def __init__(
        self, screen: Screen, narrator: Narrator, *, decide: Callable[[Question], None] = lambda question: None
    ) -> None:
        """`decide` is given each question; it may answer it, or leave it open."""
        self._screen = screen
        self._narrator = narrator
        self._decide = decide
        self._others = Narrator()
        # One question at a time, whoever asks it.
        self._deciding = threading.Lock()

    def hear(self, line: Line) -> Ended | None:
        ended = None
        for piece in self._narrator.tell(line):
            self._take(piece)
            ended = piece if isinstance(piece, Ended) else ended
        return ended

    def hear_beside(self, line: Line) -> None:
        for piece in self._others.tell(line):
            if isinstance(piece, Question):
                self._screen.show(Note(asks(line)))
            self._take(piece)

    def _take(self, piece: Piece) -> None:
        if not isinstance(piece, Question):
            self._screen.show(piece)
            return
        with self._deciding:
            self._screen.show(piece)
            self._decide(piece)

    def lost(self) -> None:
        self._screen.show(Note(LOST))


class Program:
    """Gets every entry as a line of JSON."""

    def hear(self, line: Line) -> Ended | None:
        show_json_line(line.text)
        return ended_by(line)

    def hear_beside(self, line: Line) -> None:
        """Pass it over: what is printed are the entries of one run."""

    def lost(self) -> None:
        say(LOST)


def watch(
    client: Client,
    run_id: str,
    *,
    after_seq: int,
    audience: Audience,
    on_stream: Callable[[Stream], None] = lambda stream: None,
) -> Ended:
    """Tell of the run's entries behind `after_seq` until it ends, and say how it did.

    `on_stream` is given each stream before it is read. Whoever closes one ends the watching.
    """
    with _cancelling(client, run_id) as interrupts, closing(Family(client, audience.hear_beside)) as family:
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
                ended = audience.hear(line)
                if ended is not None:
                    return ended
            after_seq = stream.after_seq
            if not interrupts.count or cancels:
                # The daemon has nothing more to tell of it: it is over, and its record says how.
                return ended_of(client.run(run_id))


def attach(client: Client, run_id: str, *, after_seq: int, audience: Audience) -> Ended:
    """Do the same without a hand on the run: Ctrl-C only ends the looking."""
    with closing(Family(client, audience.hear_beside)) as family:
        for line in follow_run(client, run_id, after_seq=after_seq, lost=audience.lost):
            family.take(line)
            ended = audience.hear(line)
            if ended is not None:
                return ended
    return ended_of(client.run(run_id))


def asks(line: Line) -> str:
    """Say which run asks, if it is another than the one that is looked at."""
    return f"(run {line.run_id}, which works for this one, asks:)"


def exit_after(ended: Ended) -> Exit:
    """Return the exit code for a run that ended so."""
    match ended.status:
        case "done":
            return Exit.DONE
        case "cancelled":
            return Exit.CANCELLED
        case _:
            return Exit.FAILED


@contextmanager
def _cancelling(client: Client, run_id: str) -> Iterator[Interrupts]:
    """Count Ctrl-C meanwhile; whoever leaves by it leaves no run behind that nobody was told to cancel."""
    interrupts = Interrupts()
    before = signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts
    except KeyboardInterrupt:
        if not interrupts.told:
            with suppress(PalyraError):
                client.cancel(run_id, reason=CTRL_C)
        say(f"palyra: the run is being cancelled; `palyra runs show {run_id}` shows it.")
        raise
    finally:
        signal.signal(signal.SIGINT, before)
