"""A pool that the system gives no further thread."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from palyra.exhaustion import NO_THREAD, ResourcesExhausted, is_exhausted, wait_out
from palyra.threads import Threads


class Refusal:
    """Lets no thread begin, as often as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.refused = 0
        self._start = threading.Thread.start
        monkeypatch.setattr(threading.Thread, "start", lambda thread: self._begin(thread))

    def _begin(self, thread: threading.Thread) -> None:
        if self.left:
            self.left -= 1
            self.refused += 1
            raise RuntimeError(NO_THREAD)
        self._start(thread)


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch) -> Refusal:
    return Refusal(monkeypatch)


def test_the_usual_pool_fails_so(refusal: Refusal) -> None:
    refusal.left = 1
    with ThreadPoolExecutor(2) as pool, pytest.raises(RuntimeError) as raised:
        pool.submit(int)
    assert is_exhausted(raised.value)


def test_work_waits_for_the_threads_there_are(refusal: Refusal) -> None:
    gate = threading.Event()
    done: list[int] = []
    with Threads(8, name="few") as pool:
        refusal.left = 1_000
        first = pool.submit(gate.wait)
        others = [pool.submit(done.append, number) for number in range(20)]
        assert refusal.refused > 0
        assert not any(other.done() for other in others)
        gate.set()
        assert first.result(10)
        for other in others:
            other.result(10)
    assert done == list(range(20)), "each once, in the order in which they came"


def test_threads_are_added_when_they_can_be_had_again(refusal: Refusal) -> None:
    gate = threading.Barrier(2, timeout=60)
    with Threads(2, name="few") as pool:
        refusal.left = 1
        first = pool.submit(gate.wait)
        refusal.left = 0
        second = pool.submit(gate.wait)
        assert {first.result(10), second.result(10)} == {0, 1}


def test_a_pool_that_can_have_no_thread_at_all_says_so(refusal: Refusal) -> None:
    refusal.left = 1
    with pytest.raises(RuntimeError, match="new thread"):
        Threads(2, name="none")


def test_a_closed_pool_takes_no_work() -> None:
    pool = Threads(1, name="closed")
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shutdown") as raised:
        pool.submit(int)
    assert not is_exhausted(raised.value)


@pytest.mark.parametrize(
    "error",
    [RuntimeError(NO_THREAD), MemoryError(), BlockingIOError(11, "x"), OSError(12, "x"), OSError(24, "x"), OSError(23)],
)
async def test_what_fails_for_want_of_resources_is_tried_again(error: Exception) -> None:
    tries = 0

    async def attempt() -> str:
        nonlocal tries
        tries += 1
        # An error without a number is another one.
        if tries < 3 and is_exhausted(error):
            raise error
        return "done"

    assert await wait_out(attempt, what="it") == "done"
    assert tries == (3 if is_exhausted(error) else 1)


async def test_what_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palyra.exhaustion.MAX_TOTAL_SECONDS", 0.0)

    async def attempt() -> None:
        raise OSError(24, "Too many open files")

    with pytest.raises(ResourcesExhausted, match=r"runs\.max_concurrent"):
        await wait_out(attempt, what="it")


async def test_other_errors_are_not_tried_again() -> None:
    tries = 0

    async def attempt() -> None:
        nonlocal tries
        tries += 1
        await asyncio.sleep(0)
        raise PermissionError(13, "Permission denied")

    with pytest.raises(PermissionError):
        await wait_out(attempt, what="it")
    assert tries == 1
