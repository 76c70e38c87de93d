"""Follows the child runs of a run, for their approval requests.

Each has a stream of its own. The person who follows the parent run is the reachable approver of its children: without
this nobody would see their requests, and the parent run would wait in silence.
"""

import threading
from collections.abc import Callable

from palyra.core.errors import PalyraError
from palyra.core.events import ApprovalRequested, ApprovalResolved, ChildStarted
from palyra.core.ids import RunId
from palyra.gateway.client.client import Client
from palyra.gateway.client.errors import RemoteError
from palyra.gateway.client.tape_stream import ReceivedEntry, TapeStream, follow_run

NOT_FOUND = 404
PAUSE_SECONDS = 0.1
JOIN_SECONDS = 1.0


class ChildRunFollower:
    """Follows child runs, and reports their approval requests and answers."""

    def __init__(self, client: Client, tell: Callable[[ReceivedEntry], None]) -> None:
        """`tell` is called from other threads, for one entry at a time."""
        self._client = client
        self._tell = tell
        self._telling = threading.Lock()
        self._over = threading.Event()
        self._followed: dict[RunId, threading.Thread] = {}
        self._streams: list[TapeStream] = []

    def take(self, line: ReceivedEntry) -> None:
        """Follow the child run that an entry starts, if it starts one."""
        if isinstance(line.event, ChildStarted) and line.event.child_run_id not in self._followed:
            child = line.event.child_run_id
            self._followed[child] = threading.Thread(target=self._follow, args=(child,), daemon=True)
            self._followed[child].start()

    def close(self) -> None:
        """Stop following."""
        self._over.set()
        for stream in list(self._streams):
            stream.close()
        for thread in list(self._followed.values()):
            # A thread that waits for the person's answer ends with the program.
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
                # A child run exists a moment after it was announced.
                self._over.wait(PAUSE_SECONDS)
            except PalyraError:
                # The daemon went away. The parent run's own stream reports that.
                return

    def _hear(self, line: ReceivedEntry) -> None:
        self.take(line)
        if isinstance(line.event, ApprovalRequested | ApprovalResolved):
            with self._telling:
                if not self._over.is_set():
                    self._tell(line)
