"""Waiting for something that must not be abandoned half-way."""

import asyncio
from typing import Any, TypeVar

T = TypeVar("T")


class Outcome(asyncio.Future[T]):
    """What comes of a write. Whoever waits for it is held until it is known, even when cancelled.

    A write that is queued will be carried out whatever its caller does. A caller that left early would decide
    anew without knowing what it has recorded.
    """

    def cancel(self, msg: Any | None = None) -> bool:
        """Refuse. The task that waits remembers that it was cancelled, and is when this is settled."""
        return False

    def settle(self, result: T | None, error: BaseException | None) -> None:
        """Say what came of it."""
        if error is None:
            self.set_result(result)  # type: ignore[arg-type]
        else:
            self.set_exception(error)
            self.exception()  # marks it as seen: a waiter that was cancelled never asks for it
