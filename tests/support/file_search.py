"""Searches as the tool does: the walk alone, or with ripgrep asked before the first file."""

import asyncio
from collections.abc import Callable

from palyra.core.clock import Clock
from palyra.sandbox.base import Sandbox, Tier
from palyra.sandbox.files.workspace import Workspace
from palyra.sandbox.processes.mounts import HiddenFolders
from palyra.sandbox.processes.process import ProcessSandbox
from palyra.sandbox.search.ripgrep import RipgrepFilter
from palyra.sandbox.search.search import SearchQuery, SearchResult, search

STRICT = ProcessSandbox(Tier.STRICT, private=HiddenFolders())


def walked(
    workspace: Workspace, query: SearchQuery, *, clock: Clock, stop: Callable[[], bool] = lambda: False
) -> SearchResult:
    """Search by the walk alone."""
    return search(workspace, query, clock=clock, stop=stop)


def sifted(
    workspace: Workspace,
    query: SearchQuery,
    *,
    clock: Clock,
    stop: Callable[[], bool] = lambda: False,
    sandbox: Sandbox = STRICT,
) -> SearchResult:
    """Search with ripgrep as a sieve; it is asked as soon as the patience of the search allows."""

    async def run() -> SearchResult:
        sieve = RipgrepFilter(sandbox, workspace, loop=asyncio.get_running_loop())
        try:
            return await asyncio.to_thread(search, workspace, query, clock=clock, stop=stop, sieve=sieve)
        finally:
            await sieve.close()

    return asyncio.run(run())
