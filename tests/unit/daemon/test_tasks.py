"""A background task that fails is named, in the traceback and in the log."""

import asyncio
import logging

import pytest

from palyra.daemon.tasks import start_tasks


async def _wait() -> None:
    await asyncio.Event().wait()


async def _fail() -> None:
    raise OSError("no more descriptors")


async def test_the_failure_of_a_task_names_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(ExceptionGroup) as failure:
        async with asyncio.TaskGroup() as group:
            start_tasks(group, {"mcp": _wait(), "anchors": _fail()})
    (error,) = failure.value.exceptions
    assert isinstance(error, OSError)
    assert error.__notes__ == ["Background task: anchors"]
    assert "anchors" in caplog.text
    assert "mcp" not in caplog.text


async def test_tasks_that_are_cancelled_are_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = start_tasks(group, {"mcp": _wait(), "tail": _wait()})
        await asyncio.sleep(0)
        for task in tasks.values():
            task.cancel()
    assert list(tasks) == ["mcp", "tail"]
    assert not caplog.text
