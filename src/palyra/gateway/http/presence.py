"""Work that is worth doing only while the client waits for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect
from starlette.types import Receive


@asynccontextmanager
async def while_there(receive: Receive) -> AsyncIterator[None]:
    """Break off what is done inside when the client goes away, and raise `ClientDisconnect`.

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
