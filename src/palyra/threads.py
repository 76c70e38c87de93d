"""Thread pools for blocking work."""

from concurrent.futures import ThreadPoolExecutor

from palyra.exhaustion import is_exhausted


class Threads(ThreadPoolExecutor):
    """A thread pool that keeps working with the threads it has if the system refuses to start another.

    The pool of the standard library raises then, although the work is already queued and a thread will reach it.
    This one starts its first thread at once; so there is always one, and work waits instead of failing.
    """

    def __init__(self, max_threads: int, *, name: str) -> None:
        super().__init__(max_threads, thread_name_prefix=name)
        self.submit(_nothing)

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except (RuntimeError, MemoryError) as error:
            if not self._threads or not is_exhausted(error):
                raise


def _nothing() -> None:
    pass
