"""Wait for something to become true, instead of sleeping and hoping."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

T = TypeVar("T")

PAUSE = 0.01


async def eventually(condition: Callable[[], T | Awaitable[T]], *, timeout: float = 60.0) -> T:  # noqa: ASYNC109
    """Ask `condition` again and again, and return its first true answer.

    The condition may be plain or async. An `AssertionError` in it means "not yet"; any other error ends the wait.
    After `timeout` seconds the test fails with what was seen last.
    """
    last = "it never answered"
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
                await asyncio.sleep(PAUSE)
    except TimeoutError:
        if not deadline.expired():  # it came from the condition itself
            raise
        raise AssertionError(f"not true within {timeout:g} s: {_describe(condition)}; {last}") from None


def _describe(condition: Callable[[], object]) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)
