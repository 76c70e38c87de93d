"""Whether an approver is reachable now: an attached client, a watcher, or an inbox that the owner checks."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from palyra.core.ids import PrincipalId, SessionId
from palyra.journal.tail import Tail

GRACE_SECONDS = 1.0
"""A client that sends a message and then attaches needs a moment for it."""
POLL_SECONDS = 0.05


class ApproverPresence:
    """Knows which approvers are reachable."""

    def __init__(self, tail: Tail, *, inbox: Callable[[], bool]) -> None:
        """`inbox` says whether the owner has promised to check the list of open approval requests."""
        self._tail = tail
        self._inbox = inbox
        self._watchers: Counter[PrincipalId] = Counter()

    @contextmanager
    def watching(self, principal: PrincipalId) -> Iterator[None]:
        """Count a watcher that gets every approval request of a principal."""
        self._watchers[principal] += 1
        try:
            yield
        finally:
            self._watchers[principal] -= 1
            if not self._watchers[principal]:
                del self._watchers[principal]

    def reachable(self, principal: PrincipalId, session_id: SessionId) -> bool:
        """Tell whether anyone would see an approval request of this session now."""
        return self._inbox() or principal in self._watchers or self._tail.is_followed(session_id)

    async def wait_for(self, principal: PrincipalId, *sessions: SessionId) -> bool:
        """Tell whether anyone would see an approval request of one of these; wait a moment for clients that attach."""
        deadline = asyncio.get_running_loop().time() + GRACE_SECONDS
        while not any(self.reachable(principal, session_id) for session_id in sessions):
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True
