"""The interruption of a step. The loop itself is tested in `tests/integration` and `tests/property/test_loop.py`."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from palyra.runs.engine.loop import StepInterrupted, StepInterruption
from palyra.runs.recording.run_writer import RunChanged

FOREVER = 60.0


async def for_ever() -> None:
    await asyncio.Event().wait()


async def step(interruption: StepInterruption, body: Callable[[], Awaitable[None]], *, seconds: float = FOREVER) -> str:
    """Carry out a step, and say how it ended."""
    try:
        async with interruption.within(seconds):
            await body()
    except StepInterrupted:
        return "interrupted"
    return "done"


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_a_step_that_nobody_interrupts_ends_by_itself() -> None:
    assert await step(StepInterruption(), lambda: asyncio.sleep(0)) == "done"


async def test_firing_ends_the_step_that_is_under_way_and_nothing_else() -> None:
    interruption = StepInterruption()
    asyncio.get_running_loop().call_soon(interruption.fire)
    assert await step(interruption, for_ever) == "interrupted"
    assert cancelling() == 0
    await asyncio.sleep(0)
    assert await step(interruption, lambda: asyncio.sleep(0)) == "done"


async def test_firing_between_steps_does_nothing() -> None:
    interruption = StepInterruption()
    interruption.fire()
    assert await step(interruption, lambda: asyncio.sleep(0)) == "done"
    interruption.fire()
    await asyncio.sleep(0)
    assert await step(interruption, lambda: asyncio.sleep(0)) == "done"
    assert cancelling() == 0


async def test_firing_again_while_the_step_cleans_up_does_not_disturb_it() -> None:
    interruption = StepInterruption()
    cleaned = []

    async def careful() -> None:
        try:
            await for_ever()
        finally:
            interruption.fire()
            await asyncio.sleep(0)
            cleaned.append(True)

    asyncio.get_running_loop().call_soon(interruption.fire)
    assert await step(interruption, careful) == "interrupted"
    assert cleaned == [True]


async def test_a_step_ends_when_its_time_is_over() -> None:
    assert await step(StepInterruption(), for_ever, seconds=0.01) == "interrupted"
    assert cancelling() == 0


async def test_the_time_of_a_step_does_not_run_on_after_it() -> None:
    interruption = StepInterruption()
    assert await step(interruption, lambda: asyncio.sleep(0), seconds=0.01) == "done"
    await asyncio.sleep(0.02)
    assert cancelling() == 0


async def test_an_error_of_the_step_comes_out_as_it_is() -> None:
    async def broken() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await step(StepInterruption(), broken)


async def test_an_error_of_a_step_that_was_interrupted_comes_out_and_leaves_no_cancellation_behind() -> None:
    interruption = StepInterruption()

    async def breaks_on_the_way_out() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            raise ValueError("broken") from None

    asyncio.get_running_loop().call_soon(interruption.fire)
    with pytest.raises(ValueError, match="broken"):
        await step(interruption, breaks_on_the_way_out)
    assert cancelling() == 0


async def test_a_cancellation_from_above_goes_through() -> None:
    task = asyncio.create_task(step(StepInterruption(), for_ever))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("fired_first", [True, False])
async def test_of_both_at_once_the_cancellation_from_above_wins(fired_first: bool) -> None:
    interruption = StepInterruption()
    task = asyncio.create_task(step(interruption, for_ever))
    await asyncio.sleep(0)
    for end in (interruption.fire, task.cancel) if fired_first else (task.cancel, interruption.fire):
        end()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_that_a_failing_step_swallowed_keeps_the_next_one_from_beginning() -> None:
    """A task group that is winding up after an error swallows a cancellation; so whoever cancels says it twice."""
    interruption = StepInterruption()
    winds_up, may_end, begun = asyncio.Event(), asyncio.Event(), []

    async def slow_to_leave() -> None:
        try:
            await for_ever()
        finally:
            winds_up.set()
            await may_end.wait()

    async def overtaken() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(slow_to_leave())
            await asyncio.sleep(0)
            raise RunChanged

    async def two_steps() -> None:
        try:
            await step(interruption, overtaken)
        except* RunChanged:
            pass
        begun.append(await step(interruption, lambda: asyncio.sleep(0)))

    task = asyncio.create_task(two_steps())
    await winds_up.wait()
    interruption.stop()
    task.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not begun


async def test_what_a_task_group_leaves_behind_does_not_hinder_the_next_interruption() -> None:
    """Before Python 3.13 a task group forgets to take back its own cancellation when a task of it fails late."""
    interruption = StepInterruption()

    async def fails_late() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_broken_after_a_while())

    for _ in range(2):
        with pytest.raises(ExceptionGroup):
            await step(interruption, fails_late)
        assert cancelling() == 0
    asyncio.get_running_loop().call_soon(interruption.fire)
    assert await step(interruption, for_ever) == "interrupted"


async def _broken_after_a_while() -> None:
    await asyncio.sleep(0.001)
    raise ValueError("broken")
