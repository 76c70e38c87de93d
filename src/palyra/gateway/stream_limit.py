"""Limits on open streams, per principal and in all."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from palyra.core.errors import Unavailable
from palyra.core.ids import PrincipalId


class StreamLimitReached(Unavailable):
    """Too many streams are open. Close one, or wait until another has ended."""


class StreamLimiter:
    """Counts open streams. The limits are read each time, so that they may change while the daemon runs."""

    def __init__(self, limits: Callable[[], tuple[int, int]]) -> None:
        self._limits = limits
        self._open: Counter[PrincipalId] = Counter()

    @property
    def open(self) -> int:
        """How many streams are open in all."""
        return self._open.total()

    def slot(self, principal: PrincipalId) -> ExitStack:
        """Take a slot for a stream; closing what is returned releases it."""
        with ExitStack() as stack:
            stack.enter_context(self._one(principal))
            return stack.pop_all()

    @contextmanager
    def _one(self, principal: PrincipalId) -> Iterator[None]:
        each, total = self._limits()
        if self._open[principal] >= each or self._open.total() >= total:
            raise StreamLimitReached(
                (
                    f"{self._open[principal]} of your streams are open, and {self._open.total()} in all; "
                    f"the limits are {each} and {total}. Close one, then try again."
                ),
                retry_after=timedelta(seconds=1),
            )
        self._open[principal] += 1
        try:
            yield
        finally:
            self._open[principal] -= 1
            if not self._open[principal]:
                del self._open[principal]
