"""The result of a write, which its caller always waits for."""

import asyncio
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class WriteResult(Generic[T]):
    """The result of a write. A caller waits until it is known, even when cancelled.

    A queued write runs whatever its caller does. A caller that left early would decide again without knowing what it
    has recorded.

    It has a future but is not one: waiting for a plain future is faster, and every write creates one.
    """

    __slots__ = ("_future", "_known", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._future: asyncio.Future[T] = loop.create_future()
        self._known = False
        """It was settled after its waiter was cancelled and before the waiter knew."""

    async def wait(self) -> T:
        """Return the result or raise the error; if the caller is cancelled, that is raised once the result is known."""
        try:
            return await self._future
        except asyncio.CancelledError:
            # The cancellation also cancelled the future, unless the result was there before.
            while self._future.cancelled() and not self._known:
                self._future = self._loop.create_future()
                # The result is not needed any more, and a further cancellation changes nothing.
                with suppress(BaseException):
                    await self._future
            raise

    def settle(self, result: T | None, error: BaseException | None) -> None:
        """Set the result or the error."""
        future = self._future
        if future.cancelled():
            self._known = True
        elif error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)
            future.exception()  # marks it as retrieved: a cancelled waiter never retrieves it
