"""How many calls of a kind one principal may have under way: what others share with it is never used up by one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from palyra.core.ids import PrincipalId


class Pool(NamedTuple):
    """Calls that use the same threads, processes or connections."""

    name: str
    at_once: int
    """How many of them one principal may have under way; further ones wait."""


MODULES = Pool("modules", 2)
"""WebAssembly modules, of plugins and of the workspace: all principals together may run only so many."""


class Shares:
    """Counts what is under way, for each principal and pool apart."""

    def __init__(self) -> None:
        self._gates: dict[tuple[PrincipalId | None, str], asyncio.Semaphore] = {}

    @asynccontextmanager
    async def hold(self, principal: PrincipalId | None, pool: Pool | None) -> AsyncIterator[None]:
        """Wait until the principal may have one more call under way, and count it."""
        if pool is None:
            yield
            return
        gate = self._gates.setdefault((principal, pool.name), asyncio.Semaphore(pool.at_once))
        async with gate:
            yield
