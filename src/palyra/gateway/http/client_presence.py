"""Work that stops when the client disconnects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect
from starlette.types import Receive


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancel the body of the `with` block when the client disconnects, and raise `ClientDisconnect`.

    The request's body must have been read.
    """
    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(_leave(receive))
            yield
            watcher.cancel()
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _leave(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect
