"""What both engines share: units run on threads; callers are answered, and listeners called, on the event loop."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from palyra.core.errors import JournalClosed
from palyra.journal.engines.base import JOURNAL_AWAY, Fact, FailureListener, Listener, Unit
from palyra.journal.engines.write_result import WriteResult
from palyra.threads import Threads

T = TypeVar("T")

log = logging.getLogger(__name__)


class ThreadedEngine(ABC):
    """See the module. `after_commit` runs in the thread of the writer, before callers are answered."""

    def __init__(self, *, readers: int, after_commit: Callable[[], None] | None) -> None:
        self._after_commit = after_commit
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Listener] = []
        self._failure_listeners: list[FailureListener] = []
        self._closed = False
        self._readers = Threads(readers, name="journal-reader")

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def on_failure(self, listener: FailureListener) -> None:
        self._failure_listeners.append(listener)

    async def read(self, query: Unit[T]) -> T:
        if self._closed:
            raise JournalClosed
        return await self._loop.run_in_executor(self._readers, self._read, query)

    @abstractmethod
    def _read(self, query: Unit[T]) -> T:
        """Run the query in a snapshot, on this thread."""

    def _on_loop(self, call: Callable[..., None], *args: object) -> None:
        """Let the event loop make the call."""
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            log.warning("the event loop is closed; a completed write has no reader")

    def _notify(self, facts: Sequence[Fact]) -> None:
        for listener in self._listeners:
            listener(facts)

    def _settle(self, outcome: WriteResult[T], result: T | None, error: BaseException | None) -> None:
        if isinstance(error, JOURNAL_AWAY):
            for listener in self._failure_listeners:
                listener(error)
        outcome.settle(result, error)
