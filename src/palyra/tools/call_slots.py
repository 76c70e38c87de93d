"""Limits how many calls of a kind one principal may run at once, so that none uses up what all share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from palyra.core.ids import PrincipalId


class CallPool(NamedTuple):
    """Calls that use the same threads, processes or connections."""

    name: str
    at_once: int
    """How many of them one principal may run at once; further ones wait."""


MODULES = CallPool("modules", 2)
"""WebAssembly modules, of plugins and of the workspace: the number that all principals together may run is limited."""


class CallSlots:
    """Counts running calls, separately for each principal and pool."""

    def __init__(self) -> None:
        self._gates: dict[tuple[PrincipalId | None, str], asyncio.Semaphore] = {}

    @asynccontextmanager
    async def hold(self, principal: PrincipalId | None, pool: CallPool | None) -> AsyncIterator[None]:
        """Wait until the principal may run one more call, and count it."""
        if pool is None:
            yield
            return
        gate = self._gates.setdefault((principal, pool.name), asyncio.Semaphore(pool.at_once))
        async with gate:
            yield
