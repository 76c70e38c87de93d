"""Streams approval requests as they are opened and settled."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from palyra.core.events import Entry
from palyra.core.ids import PrincipalId
from palyra.core.policy.approval import Approval
from palyra.journal.engines.base import Connection, Engine, Fact
from palyra.journal.stores import approvals
from palyra.runs.services.approvers import ApproverPresence

MAX_OPEN = 1_000
POLL_SECONDS = 2.0
"""A lost notification costs this much delay, and nothing else."""
TELLING = frozenset({"approval_requested", "approval_resolved", "run_completed", "run_failed", "run_cancelled"})


class ApprovalWatch:
    """Reports open approval requests and their outcomes to watchers. A watcher counts as a reachable approver."""

    def __init__(self, engine: Engine, channels: ApproverPresence) -> None:
        self._engine = engine
        self._channels = channels
        self._waiting: set[asyncio.Event] = set()
        self._closed = False
        engine.subscribe(self._notice)

    async def follow(self, principal: PrincipalId) -> AsyncGenerator[list[Approval], None]:
        """Yield the open requests, then each one opened or settled; an empty list when nothing happened for a while.

        Ends when the daemon stops.
        """
        bell = asyncio.Event()
        self._waiting.add(bell)
        names: set[str] = set()
        try:
            with self._channels.watching(principal):
                while not self._closed:
                    bell.clear()
                    news = await self._poll(principal, frozenset(names))
                    for one in news:
                        if one.decision is None:
                            names.add(one.approval_id)
                        else:
                            names.discard(one.approval_id)
                    yield news
                    with suppress(TimeoutError):
                        async with asyncio.timeout(POLL_SECONDS):
                            await bell.wait()
        finally:
            self._waiting.discard(bell)

    async def _poll(self, principal: PrincipalId, names: frozenset[str]) -> list[Approval]:
        return await self._engine.read(lambda conn: _news(conn, principal, names))

    def close(self) -> None:
        """End every watch: the daemon is stopping."""
        self._closed = True
        for bell in self._waiting:
            bell.set()

    def _notice(self, facts: Sequence[Fact]) -> None:
        if any(isinstance(fact, Entry) and fact.kind in TELLING for fact in facts):
            for bell in self._waiting:
                bell.set()


def _news(conn: Connection, principal: PrincipalId, names: frozenset[str]) -> list[Approval]:
    """Return the approval requests that are new, and the known ones that are settled by now."""
    open_now = approvals.page(conn, principal, only_open=True, before=None, limit=MAX_OPEN)
    fresh = [one for one in reversed(open_now) if one.approval_id not in names]
    ended = names - {one.approval_id for one in open_now}
    settled = [approvals.get(conn, approval_id, principal) for approval_id in sorted(ended)]
    return [*(one for one in settled if one is not None), *fresh]
