"""Waiting for something that must not be abandoned half-way."""

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def settled(future: "asyncio.Future[T]") -> T:
    """Wait until the future is done, even if the waiter is cancelled; only then let the cancellation through.

    A write that is queued will be carried out whatever its caller does. A caller that left early would decide
    anew without knowing what it has recorded.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            if future.cancelled():
                raise
            cancelled = error
        except BaseException:
            break
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # marks it as seen
        raise cancelled
    return future.result()
