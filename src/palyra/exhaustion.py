"""Resource exhaustion: the system has no thread, process, file descriptor or memory left to give.

It ends when other work ends. So the code that needs such a resource waits and tries again, instead of failing accepted
work.
"""

import asyncio
import errno
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from palyra.core.errors import Unavailable

FIRST_WAIT_SECONDS = 0.05
MAX_WAIT_SECONDS = 2.0
"""The pause between two attempts."""
MAX_TOTAL_SECONDS = 30.0
"""How long to wait for one resource."""

NO_THREAD = "can't start new thread"
"""The message of Python's error; Python has no error class for this."""
_NUMBERS = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})

T = TypeVar("T")

log = logging.getLogger(__name__)


class ResourcesExhausted(Unavailable):
    """The system has run out of threads, processes, file descriptors or memory. Raise the limits of the daemon, or
    lower `runs.max_concurrent`.
    """


def is_exhausted(error: BaseException) -> bool:
    """Return whether an error means that the system is out of resources."""
    match error:
        case MemoryError() | ResourcesExhausted():
            return True
        case OSError():
            return error.errno in _NUMBERS
        case RuntimeError():
            return str(error) == NO_THREAD
        case _:
            return False


async def wait_out(attempt: Callable[[], Awaitable[T]], *, what: str) -> T:
    """Return the result of `attempt`, and retry it while resources are exhausted; `what` names it in the log.

    Only for attempts that have no effect when they fail. Raises `ResourcesExhausted` after 30 seconds.
    """
    began, wait = time.monotonic(), 0.0
    while True:
        try:
            result = await attempt()
        except Exception as error:
            if not is_exhausted(error):
                raise
            waited = time.monotonic() - began
            if waited >= MAX_TOTAL_SECONDS:
                raise ResourcesExhausted from error
            if not wait:
                log.warning("%s waits: %s", what, error, extra={"code": ResourcesExhausted.code})
            wait = min(wait * 2 or FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS)
        else:
            if wait:
                log.info("%s continues after %.1f s", what, time.monotonic() - began)
            return result
        await asyncio.sleep(wait)
