"""Calls of one principal wait for one another, and never for those of somebody else."""

import asyncio
from dataclasses import replace

import pytest

from palyra.core.ids import PrincipalId
from palyra.core.tool import CallOutcome, Risk
from palyra.tools.base import Tool, ToolContext, tool
from palyra.tools.call_slots import CallPool, CallSlots
from palyra.tools.catalog import BUILTIN, ToolCatalog
from palyra.tools.execution import ToolResult, execute
from tests.support.eventually import eventually
from tests.unit.tools.surroundings import a_call, a_context

ANA, BEN = PrincipalId("user:ana"), PrincipalId("user:ben")


class Gate:
    """A tool that hangs until it may go on."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.inside: list[PrincipalId | None] = []

        @tool(name="gate.pass", risk=Risk.LOW, pool=CallPool("gate", 2))
        async def walk(context: ToolContext) -> str:
            """Pass."""
            self.inside.append(context.principal)
            await self.opened.wait()
            return "passed"

        self.tool: Tool = walk


async def test_one_principal_has_only_so_many_under_way_and_others_do_not_wait_for_it() -> None:
    gate, shares = Gate(), CallSlots()

    async def call(who: PrincipalId) -> ToolResult:
        context = replace(a_context(), principal=who, shares=shares)
        done = await execute(
            a_call("gate.pass", {}), catalog=ToolCatalog([gate.tool]), context=context, timeout_ms=60_000
        )
        assert isinstance(done, ToolResult)
        return done

    calls = [asyncio.create_task(call(ANA)) for _ in range(5)]
    await eventually(lambda: gate.inside == [ANA, ANA])
    calls.append(asyncio.create_task(call(BEN)))
    await eventually(lambda: gate.inside == [ANA, ANA, BEN])
    calls[0].cancel()
    await eventually(lambda: gate.inside == [ANA, ANA, BEN, ANA])
    gate.opened.set()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError)
    assert [one.outcome for one in done[1:] if isinstance(one, ToolResult)] == [CallOutcome.OK] * 5


async def test_waiting_for_its_turn_does_not_use_up_the_time_of_a_call() -> None:
    gate = Gate()
    context = replace(a_context(), principal=ANA)

    async def call(timeout_ms: int) -> object:
        call, catalog = a_call("gate.pass", {}), ToolCatalog([gate.tool])
        return await execute(call, catalog=catalog, context=context, timeout_ms=timeout_ms)

    first = [asyncio.create_task(call(60_000)) for _ in range(2)]
    await eventually(lambda: len(gate.inside) == 2)
    waiting = asyncio.create_task(call(50))
    await asyncio.sleep(0.2)
    gate.opened.set()
    done = [await one for one in (*first, waiting)]
    assert [one.outcome for one in done if isinstance(one, ToolResult)] == [CallOutcome.OK] * 3


@pytest.mark.parametrize("name", ["files.search", "http.fetch", "shell.run", "wasm.run"])
def test_what_holds_threads_processes_or_connections_is_bounded(name: str) -> None:
    (found,) = [one for one in BUILTIN if one.spec.name == name]
    assert found.pool is not None
    assert found.pool.at_once <= 16
