"""Threads for work that blocks."""

from concurrent.futures import ThreadPoolExecutor

from palyra.exhaustion import is_exhausted


class Threads(ThreadPoolExecutor):
    """A pool that makes do with the threads it has if the system gives it no further one.

    The pool of the standard library fails then, though the work is in its queue already and a thread will come to it.
    This one has a first thread from the beginning; so there always is one, and work waits instead of failing.
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
