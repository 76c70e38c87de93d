"""Whether anybody could answer a question now: an attached client, a watcher, or an inbox that the owner looks into."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from palyra.core.ids import PrincipalId, SessionId
from palyra.journal.tail import Tail

GRACE_SECONDS = 1.0
"""Whoever sends a message and then attaches needs a moment for it."""
LOOK_SECONDS = 0.05


class Channels:
    """Knows who can be reached."""

    def __init__(self, tail: Tail, *, inbox: Callable[[], bool]) -> None:
        """`inbox` says whether the owner has promised to look at the list of open questions."""
        self._tail = tail
        self._inbox = inbox
        self._watchers: Counter[PrincipalId] = Counter()

    @contextmanager
    def watching(self, principal: PrincipalId) -> Iterator[None]:
        """Count somebody who is told of every question of a principal's."""
        self._watchers[principal] += 1
        try:
            yield
        finally:
            self._watchers[principal] -= 1
            if not self._watchers[principal]:
                del self._watchers[principal]

    def reachable(self, principal: PrincipalId, session_id: SessionId) -> bool:
        """Tell whether somebody would see a question of this session now."""
        return self._inbox() or principal in self._watchers or self._tail.is_followed(session_id)

    async def wait_for(self, principal: PrincipalId, *sessions: SessionId) -> bool:
        """Tell whether somebody would see a question of one of these, after a moment for who is just coming."""
        deadline = asyncio.get_running_loop().time() + GRACE_SECONDS
        while not any(self.reachable(principal, session_id) for session_id in sessions):
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True
