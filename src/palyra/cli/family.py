"""The runs that work for a run, followed for the sake of their questions.

Each has a stream of its own. Whoever looks at the first run is whom the others can ask: without this a question of
theirs would be put to nobody, and the first run wait for it in silence.
"""

import threading
from collections.abc import Callable

from palyra.core.errors import PalyraError
from palyra.core.events import ApprovalRequested, ApprovalResolved, ChildStarted
from palyra.core.ids import RunId
from palyra.gateway.client import Client
from palyra.gateway.follow import Line, Stream, follow_run
from palyra.gateway.remote import RemoteError

NOT_FOUND = 404
PAUSE_SECONDS = 0.1
JOIN_SECONDS = 1.0


class Family:
    """Follows runs beside another, and tells of their questions and of the answers."""

    def __init__(self, client: Client, tell: Callable[[Line], None]) -> None:
        """`tell` is called from other threads, for one entry at a time."""
        self._client = client
        self._tell = tell
        self._telling = threading.Lock()
        self._over = threading.Event()
        self._followed: dict[RunId, threading.Thread] = {}
        self._streams: list[Stream] = []

    def take(self, line: Line) -> None:
        """Follow the run that an entry says was begun for another one, if it does."""
        if isinstance(line.event, ChildStarted) and line.event.child_run_id not in self._followed:
            child = line.event.child_run_id
            self._followed[child] = threading.Thread(target=self._follow, args=(child,), daemon=True)
            self._followed[child].start()

    def close(self) -> None:
        """Follow nothing any more."""
        self._over.set()
        for stream in list(self._streams):
            stream.close()
        for thread in list(self._followed.values()):
            # One that waits for a word of the person's ends with the program.
            thread.join(timeout=JOIN_SECONDS)

    def _follow(self, run_id: RunId) -> None:
        while not self._over.is_set():
            stream = follow_run(self._client, run_id)
            self._streams.append(stream)
            try:
                for line in stream:
                    self._hear(line)
                return
            except RemoteError as error:
                if error.status != NOT_FOUND:
                    return
                # A run that works for another is there a moment after it was said to be.
                self._over.wait(PAUSE_SECONDS)
            except PalyraError:
                # The daemon went away. The first run's own stream tells of that.
                return

    def _hear(self, line: Line) -> None:
        self.take(line)
        if isinstance(line.event, ApprovalRequested | ApprovalResolved):
            with self._telling:
                if not self._over.is_set():
                    self._tell(line)
