"""Searches as the tool does: the walk alone, or with ripgrep asked before the first file."""

import asyncio
from collections.abc import Callable

from palyra.core.clock import Clock
from palyra.sandbox.base import Sandbox, Tier
from palyra.sandbox.places import Private
from palyra.sandbox.process import ProcessSandbox
from palyra.sandbox.ripgrep import Ripgrep
from palyra.sandbox.search import Found, Query, search
from palyra.sandbox.workspace import Workspace

STRICT = ProcessSandbox(Tier.STRICT, private=Private())


def walked(workspace: Workspace, query: Query, *, clock: Clock, stop: Callable[[], bool] = lambda: False) -> Found:
    """Search by the walk alone."""
    return search(workspace, query, clock=clock, stop=stop)


def sifted(
    workspace: Workspace,
    query: Query,
    *,
    clock: Clock,
    stop: Callable[[], bool] = lambda: False,
    sandbox: Sandbox = STRICT,
) -> Found:
    """Search with ripgrep as a sieve; it is asked as soon as the patience of the search allows."""

    async def run() -> Found:
        sieve = Ripgrep(sandbox, workspace, loop=asyncio.get_running_loop())
        try:
            return await asyncio.to_thread(search, workspace, query, clock=clock, stop=stop, sieve=sieve)
        finally:
            await sieve.close()

    return asyncio.run(run())
