"""Waiting for something that must not be abandoned half-way."""

import asyncio
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Outcome(Generic[T]):
    """What comes of a write. Whoever waits for it is held until it is known, even when cancelled.

    A write that is queued will be carried out whatever its caller does. A caller that left early would decide
    anew without knowing what it has recorded.

    It has a future and is none: tasks wait for a plain future by a shorter way, and every write makes one.
    """

    __slots__ = ("_future", "_known", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[T] = loop.create_future()
        self._known = False
        """It was settled when its waiter had been cancelled and did not know yet."""

    async def wait(self) -> T:
        """Return or raise what came of it; if the caller is cancelled, that is raised once it is known."""
        try:
            return await self._future
        except asyncio.CancelledError:
            # The cancellation took the future with it, unless the outcome was there before.
            while self._future.cancelled() and not self._known:
                self._future = self._loop.create_future()
                # What came of it is for nobody any more, nor is a further cancellation.
                with suppress(BaseException):
                    await self._future
            raise

    def settle(self, result: T | None, error: BaseException | None) -> None:
        """Say what came of it."""
        future = self._future
        if future.cancelled():
            self._known = True
        elif error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)
            future.exception()  # marks it as seen: a waiter that was cancelled never asks for it
