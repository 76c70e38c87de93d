"""`wasm.run`: what a person is shown, and what the model is told."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from palyra.core.errors import PalyraError
from palyra.core.policy.effect import Effect
from palyra.core.tool import CallOutcome, Risk
from palyra.tools.builtin import wasm
from palyra.tools.execution import ToolResult, execute
from palyra.tools.toolbox import BUILTIN_ONLY
from tests.support import modules
from tests.unit.tools.surroundings import a_call, a_context


async def effect(root: Path, **arguments: Any) -> Effect:
    assert isinstance(wasm.run.arguments, type)
    return await wasm.run.effect(a_context(root), msgspec.convert(arguments, wasm.run.arguments))


async def result(root: Path, **arguments: Any) -> ToolResult:
    call = a_call("wasm.run", arguments)
    finished = await execute(call, catalog=BUILTIN_ONLY.catalog(None), context=a_context(root), timeout_ms=1000)
    assert isinstance(finished, ToolResult)
    return finished


async def test_a_module_gets_its_input_and_says_something(tmp_path: Path) -> None:
    (tmp_path / "echo.wasm").write_bytes(modules.ECHOES)
    finished = await result(tmp_path, module="echo.wasm", input={"n": [1, 2]})
    assert finished.outcome is CallOutcome.OK
    head, *rest = finished.text.split("\n")
    assert head.startswith("exit code 0, ")
    assert rest == ["stdout:", '{"n":[1,2]}', "stderr:", "(empty)"]


async def test_the_person_is_shown_which_module_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.wasm").write_bytes(modules.ECHOES)
    first = await effect(tmp_path, module="a.wasm", input={"n": 1})
    assert first.risk is Risk.MEDIUM
    assert first.paths == (str(tmp_path / "a.wasm"),)
    assert '"n": 1' in first.detail
    (tmp_path / "a.wasm").write_bytes(modules.TRAPS)
    # Another module of that name is another effect, so that a yes to the one is none to the other.
    second = await effect(tmp_path, module="a.wasm", input={"n": 1})
    assert (first.kind, first.detail) != (second.kind, second.detail)


async def test_a_module_has_no_files(tmp_path: Path) -> None:
    (tmp_path / "open.wasm").write_bytes(modules.opens("open.wasm"))
    assert (await result(tmp_path, module="open.wasm")).text.startswith("exit code 8, ")


async def test_a_module_that_fails_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "trap.wasm").write_bytes(modules.TRAPS)
    assert (await result(tmp_path, module="trap.wasm")).text.startswith("stopped: it failed: unreachable, ")
    (tmp_path / "loop.wasm").write_bytes(modules.LOOPS)
    assert (await result(tmp_path, module="loop.wasm", seconds=1)).text.startswith("stopped: it took ")


@pytest.mark.parametrize("path", ["none.wasm", "../x.wasm", "/etc/passwd", "", "."])
async def test_only_files_of_the_workspace_are_looked_at(tmp_path: Path, path: str) -> None:
    with pytest.raises(PalyraError):
        await effect(tmp_path, module=path)
    assert (await result(tmp_path, module=path)).outcome is CallOutcome.ERROR


async def test_what_is_no_module_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    finished = await result(tmp_path, module="notes.txt")
    assert finished.outcome is CallOutcome.ERROR
    assert "not a WebAssembly module" in finished.text
