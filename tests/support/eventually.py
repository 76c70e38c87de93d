"""Wait for something to become true, instead of sleeping and hoping."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic
from typing import TypeVar, cast

T = TypeVar("T")

MIN_PAUSE = 0.01
MAX_PAUSE = 0.1


def pauses() -> Iterator[float]:
    """Yield how long to sleep before each further look: a tenth of the time that the wait has taken so far.

    A look may be a request or a command: at a fixed pace, those who wait for long would keep a core busy.
    """
    began = monotonic()
    while True:
        yield min(max(MIN_PAUSE, (monotonic() - began) / 10), MAX_PAUSE)


async def eventually(condition: Callable[[], T | Awaitable[T]], *, timeout: float = 60.0) -> T:  # noqa: ASYNC109
    """Ask `condition` again and again, and return its first true answer.

    The condition may be plain or async. An `AssertionError` in it means "not yet"; any other error ends the wait.
    After `timeout` seconds the test fails with what was seen last.
    """
    last, pause = "it never answered", pauses()
    deadline = asyncio.timeout(timeout)
    try:
        async with deadline:
            while True:
                try:
                    answer = condition()
                    if inspect.isawaitable(answer):
                        answer = await answer
                    if answer:
                        return cast("T", answer)
                    last = f"the last answer was {answer!r}"
                except AssertionError as error:
                    last = f"the last failure was: {str(error) or 'a bare assert'}"
                await asyncio.sleep(next(pause))
    except TimeoutError:
        if not deadline.expired():  # it came from the condition itself
            raise
        raise AssertionError(f"not true within {timeout:g} s: {_describe(condition)}; {last}") from None


def _describe(condition: Callable[[], object]) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)
