"""Waiting that can not be abandoned: the outcome first, then the cancellation."""

import asyncio
import gc

import pytest

from palyra.journal.engines.write_result import WriteResult


class Failure(Exception):
    """What went wrong in these tests."""


async def wait_for(outcome: WriteResult[str]) -> str:
    return await outcome.wait()


async def waiting() -> tuple[WriteResult[str], asyncio.Task[str]]:
    """Return an outcome, and a task that waits for it already."""
    outcome: WriteResult[str] = WriteResult(asyncio.get_running_loop())
    task = asyncio.create_task(wait_for(outcome))
    await asyncio.sleep(0)
    return outcome, task


async def turns(count: int = 5) -> None:
    """Let everybody else go on for a while."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_result_is_handed_on() -> None:
    outcome, task = await waiting()
    outcome.settle("done", None)

    assert await task == "done"


async def test_what_is_done_already_is_handed_on_at_once() -> None:
    outcome: WriteResult[str] = WriteResult(asyncio.get_running_loop())
    outcome.settle("done", None)

    assert await outcome.wait() == "done"


@pytest.mark.parametrize("failure", [Failure("no"), KeyError("no"), GeneratorExit("no")], ids=repr)
async def test_the_failure_is_handed_on_as_it_is(failure: BaseException) -> None:
    outcome, task = await waiting()
    outcome.settle(None, failure)

    with pytest.raises(type(failure)) as caught:
        await task
    assert caught.value is failure


async def test_a_waiter_that_is_cancelled_stays_until_the_outcome_is_known() -> None:
    outcome, task = await waiting()
    task.cancel()
    await turns()
    assert not task.done()

    outcome.settle("done", None)

    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_waiter_that_is_cancelled_again_and_again_still_stays() -> None:
    outcome, task = await waiting()
    for _ in range(5):
        task.cancel()
        await turns()
        assert not task.done()

    outcome.settle("done", None)

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_at_the_moment_of_the_outcome_is_not_lost() -> None:
    outcome, task = await waiting()
    outcome.settle("done", None)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_word_of_a_cancellation_is_passed_on() -> None:
    outcome, task = await waiting()
    task.cancel("enough")
    await turns()
    outcome.settle("done", None)

    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task


async def test_a_failure_that_nobody_waits_for_any_more_is_not_complained_of() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    outcome, task = await waiting()
    task.cancel()
    await turns()
    outcome.settle(None, Failure())

    with pytest.raises(asyncio.CancelledError):
        await task
    del outcome, task
    gc.collect()
    await turns()
    assert complaints == []


async def test_an_outcome_right_after_a_cancellation_is_enough() -> None:
    outcome, task = await waiting()
    task.cancel()
    outcome.settle("done", None)  # before the task has had its turn

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_failure_does_not_take_the_place_of_a_cancellation() -> None:
    outcome, task = await waiting()
    task.cancel("enough")
    await turns()
    outcome.settle(None, Failure())

    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task


async def test_a_timeout_around_it_waits_for_the_outcome_too() -> None:
    outcome: WriteResult[str] = WriteResult(asyncio.get_running_loop())

    async def patient() -> None:
        async with asyncio.timeout(0.01):
            await outcome.wait()

    task = asyncio.create_task(patient())
    await asyncio.wait([task], timeout=0.05)
    assert not task.done()
    outcome.settle("done", None)

    with pytest.raises(TimeoutError):
        await task
