"""Waiting that can not be abandoned: the outcome first, then the cancellation."""

import asyncio
import gc

import pytest

from palyra.journal.settled import settled


class Failure(Exception):
    """What went wrong in these tests."""


async def waiting() -> "tuple[asyncio.Future[str], asyncio.Task[str]]":
    """Return a future, and a task that waits for it already."""
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(settled(future))
    await asyncio.sleep(0)
    return future, task


async def turns(count: int = 5) -> None:
    """Let everybody else go on for a while."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_result_is_handed_on() -> None:
    future, task = await waiting()
    future.set_result("done")

    assert await task == "done"


async def test_what_is_done_already_is_handed_on_at_once() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    future.set_result("done")

    assert await settled(future) == "done"


@pytest.mark.parametrize("failure", [Failure("no"), KeyError("no"), GeneratorExit("no")], ids=repr)
async def test_the_failure_is_handed_on_as_it_is(failure: BaseException) -> None:
    future, task = await waiting()
    future.set_exception(failure)

    with pytest.raises(type(failure)) as caught:
        await task
    assert caught.value is failure


async def test_a_waiter_that_is_cancelled_stays_until_the_outcome_is_known() -> None:
    future, task = await waiting()
    task.cancel()
    await turns()
    assert not task.done()
    assert not future.cancelled()

    future.set_result("done")

    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_waiter_that_is_cancelled_again_and_again_still_stays() -> None:
    future, task = await waiting()
    for _ in range(5):
        task.cancel()
        await turns()
        assert not task.done()

    future.set_result("done")

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_at_the_moment_of_the_outcome_is_not_lost() -> None:
    future, task = await waiting()
    future.set_result("done")
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_word_of_a_cancellation_is_passed_on() -> None:
    future, task = await waiting()
    task.cancel("enough")
    await turns()
    future.set_result("done")

    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task


async def test_a_failure_that_nobody_waits_for_any_more_is_not_complained_of() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    future, task = await waiting()
    task.cancel()
    await turns()
    future.set_exception(Failure())

    with pytest.raises(asyncio.CancelledError):
        await task
    del future, task
    gc.collect()
    await turns()
    assert complaints == []


async def test_a_future_that_is_cancelled_itself_ends_the_wait() -> None:
    future, task = await waiting()
    future.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_timeout_around_it_waits_for_the_outcome_too() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def patient() -> None:
        async with asyncio.timeout(0.01):
            await settled(future)

    task = asyncio.create_task(patient())
    await asyncio.wait([task], timeout=0.05)
    assert not task.done()
    future.set_result("done")

    with pytest.raises(TimeoutError):
        await task
