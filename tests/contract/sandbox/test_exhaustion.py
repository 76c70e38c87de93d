"""A program is started though the system has no descriptor, or no process, to give at first."""

import asyncio
import os
from typing import Any

import pytest

from palyra.sandbox.base import Tier
from tests.contract.sandbox.conftest import Ground
from tests.support.descriptors import no_descriptors, waits
from tests.support.eventually import eventually
from tests.support.needs import LINUX, needs

pytestmark = needs(LINUX)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_program_waits_for_descriptors_and_leaves_none_behind(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    await ground.run(Tier.OFF, "true")
    before = descriptors()
    with no_descriptors():
        running = asyncio.create_task(ground.run(Tier.OFF, "echo started"))
        await eventually(lambda: waits(caplog))
        assert not running.done()
    done = await running
    assert (done.exit_code, done.stdout.text.strip()) == (0, "started")
    assert descriptors() == before


async def test_a_program_waits_until_it_can_be_forked_and_is_started_once(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = asyncio.create_subprocess_exec, [3]

    async def starts(*args: Any, **settings: Any) -> asyncio.subprocess.Process:
        if refused[0]:
            refused[0] -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await start(*args, **settings)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", starts)
    done = await ground.run(Tier.OFF, "echo once >> times; cat times")
    assert (done.exit_code, done.stdout.text.split()) == (0, ["once"])
    assert refused == [0]
