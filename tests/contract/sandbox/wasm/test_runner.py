"""A module gets an input and the folders that it is given, and is ended when it takes too much."""

import asyncio
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from palyra.sandbox.base import MIB
from palyra.sandbox.wasm.module import (
    FolderNotAllowed,
    ModuleFolder,
    ModuleInvalid,
    ModuleJob,
    ModuleLimits,
    ModuleOutcome,
    ModuleTooLarge,
)
from palyra.sandbox.wasm.runner import WasmRunner
from tests.support import modules as made
from tests.support.eventually import eventually
from tests.support.needs import LINUX, needs

RUNS_FOR_LONG = """
import asyncio, sys
from datetime import timedelta
from pathlib import Path
from palyra.sandbox.wasm.runner import ModuleJob, ModuleLimits, WasmRunner
job = ModuleJob(module=Path(sys.argv[1]).read_bytes(), bounds=ModuleLimits(wall=timedelta(minutes=5)))
asyncio.run(WasmRunner().run(job))
"""
SHORT = ModuleLimits(wall=timedelta(milliseconds=300), fuel=10**12)
LONG = replace(SHORT, wall=timedelta(minutes=1))
MAY_NOT = (63, 69, 76)
"""EPERM, EROFS and ENOTCAPABLE of WASI."""


@pytest.fixture
async def modules() -> AsyncIterator[WasmRunner]:
    kept = WasmRunner(keep=1)
    yield kept
    await kept.close()


async def run(modules: WasmRunner, module: bytes, *folders: ModuleFolder, bounds: ModuleLimits = LONG) -> ModuleOutcome:
    return await modules.run(ModuleJob(module=module, folders=folders, bounds=bounds))


async def test_a_module_reads_its_input_and_writes_its_output(modules: WasmRunner) -> None:
    outcome = await modules.run(ModuleJob(module=made.ECHOES, input='{"größe": 3}'.encode()))
    assert outcome.ok
    assert outcome.stdout.text == '{"größe": 3}'
    assert outcome.fuel > 0


async def test_the_exit_code_is_the_modules_own(modules: WasmRunner) -> None:
    outcome = await run(modules, made.exits(7))
    assert (outcome.exit_code, outcome.ok, outcome.stopped) == (7, False, "")


async def test_a_loop_ends_when_its_fuel_is_used_up(modules: WasmRunner) -> None:
    outcome = await run(modules, made.LOOPS, bounds=ModuleLimits(fuel=1_000_000))
    assert outcome.exit_code is None
    assert outcome.stopped == "it used more than 1000000 steps (fuel)"


async def test_a_loop_ends_when_its_time_is_over(modules: WasmRunner) -> None:
    outcome = await run(modules, made.LOOPS, bounds=SHORT)
    assert outcome.stopped == "it took longer than 0.3 s"
    assert (await run(modules, made.ECHOES)).ok


async def test_one_that_sleeps_ends_when_its_time_is_over(modules: WasmRunner) -> None:
    outcome = await run(modules, made.SLEEPS, bounds=SHORT)
    assert outcome.stopped == "it took longer than 0.3 s"
    assert (await run(modules, made.ECHOES)).ok


async def test_memory_grows_up_to_its_bound_only(modules: WasmRunner) -> None:
    outcome = await run(modules, made.GROWS, bounds=replace(LONG, memory_bytes=8 * MIB))
    assert outcome.stopped == "it failed: unreachable"
    assert 7 * MIB <= outcome.memory_bytes <= 8 * MIB


async def test_a_flood_is_cut_off_at_its_bound(modules: WasmRunner) -> None:
    outcome = await run(modules, made.FLOODS, bounds=ModuleLimits(output_bytes=100_000))
    assert outcome.stopped == "it wrote more than 100000 bytes"
    assert len(outcome.stdout.head) == 100_000


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (made.TRAPS, "it failed: unreachable"),
        (made.RECURSES, "it failed: stack overflow"),
        (made.WIDE_TABLE, "exceeds table limits"),
        (made.LARGE_MEMORY, "exceeds memory limits"),
    ],
)
async def test_a_module_that_fails_says_of_what(modules: WasmRunner, module: bytes, words: str) -> None:
    outcome = await run(modules, module)
    assert outcome.exit_code is None
    assert words in outcome.stopped


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (b"", "is not a WebAssembly module"),
        (b'(module (func (export "_start")))', "is not a WebAssembly module"),
        (b"\0asm\1\0\0\0\xff\xff", "malformed section id"),
        (made.IMPORTS, "it imports env.system, and only wasi_snapshot_preview1 is available"),
        (made.NO_START, "exports no function _start"),
    ],
)
async def test_what_is_no_wasi_command_is_refused(modules: WasmRunner, module: bytes, words: str) -> None:
    with pytest.raises(ModuleInvalid) as refused:
        await modules.run(ModuleJob(module=module))
    assert words in refused.value.detail
    with pytest.raises(ModuleInvalid):
        await modules.check(module)


async def test_words_that_a_module_chose_are_shown_plain_and_short(modules: WasmRunner) -> None:
    for name in (made.WASI, "env"):
        chosen = "\\1b[2J\\0a\\e2\\80\\ae" + "y" * 100_000
        module = made.built(f'(module (import "{name}" "{chosen}" (func)) (func (export "_start")))')
        try:
            said = (await run(modules, module)).stopped
        except ModuleInvalid as refused:
            said = refused.detail
        assert said
        assert said.isprintable()
        assert len(said) < 1000


async def test_a_module_is_checked_without_being_run(modules: WasmRunner) -> None:
    await modules.check(made.LOOPS)


async def test_what_is_too_large_is_not_even_sent(modules: WasmRunner) -> None:
    with pytest.raises(ModuleTooLarge):
        await modules.run(ModuleJob(module=made.ECHOES + b"\0" * 33 * MIB))
    with pytest.raises(ModuleTooLarge):
        await modules.run(ModuleJob(module=made.ECHOES, input=b"\0" * 17 * MIB))


async def test_without_a_folder_there_are_no_files(modules: WasmRunner) -> None:
    # EBADF: there is no folder that a path could start from.
    assert (await run(modules, made.opens("etc/passwd"))).exit_code == 8


async def test_a_folder_is_readable_and_no_way_leads_out_of_it(modules: WasmRunner, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "file").write_text("x")
    (inside / "link").symlink_to("file")
    (inside / "away").symlink_to(outside / "file")
    (inside / "up").symlink_to("../outside")
    given = ModuleFolder(inside, "/data")
    assert (await run(modules, made.opens("file"), given)).exit_code == 0
    assert (await run(modules, made.opens("link"), given)).exit_code == 0
    for path in ("../outside/file", "away", "up/file", "/etc/passwd", "x/../../outside/file", str(outside / "file")):
        code = (await run(modules, made.opens(path), given)).exit_code
        assert code not in (0, None), path


async def test_a_folder_is_changed_only_if_it_is_given_so(modules: WasmRunner, tmp_path: Path) -> None:
    refused = await run(modules, made.opens("new", create=True), ModuleFolder(tmp_path, "/data"))
    assert refused.exit_code in MAY_NOT
    assert os.listdir(tmp_path) == []
    made_it = await run(modules, made.opens("new", create=True), ModuleFolder(tmp_path, "/data", writable=True))
    assert made_it.exit_code == 0
    assert os.listdir(tmp_path) == ["new"]


async def test_a_folder_that_became_a_link_is_refused(modules: WasmRunner, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "given").symlink_to("real")
    with pytest.raises(FolderNotAllowed) as refused:
        await run(modules, made.opens("file"), ModuleFolder(tmp_path / "given", "/data"))
    assert str(tmp_path / "given") in refused.value.detail
    assert (await run(modules, made.ECHOES)).ok


async def test_a_call_that_is_cancelled_leaves_no_process(modules: WasmRunner) -> None:
    before = children()
    call = asyncio.create_task(run(modules, made.SLEEPS, bounds=ModuleLimits(wall=timedelta(minutes=5))))
    await eventually(lambda: children() != before)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert children() == before


async def test_a_process_that_answered_is_used_again_and_ends_at_the_close() -> None:
    before = children()
    kept = WasmRunner(keep=1)
    await run(kept, made.ECHOES)
    first = children() - before
    await run(kept, made.ECHOES)
    assert len(first) == 1
    assert children() - before == first
    await kept.close()
    assert children() == before


async def test_one_that_was_killed_meanwhile_is_replaced() -> None:
    before = children()
    kept = WasmRunner(keep=1)
    await run(kept, made.ECHOES)
    for pid in children() - before:
        os.kill(pid, 9)
    assert (await run(kept, made.ECHOES)).ok
    await kept.close()


async def test_what_was_compiled_once_runs_in_another_process_as_well() -> None:
    before = children()
    kept = WasmRunner(keep=1)
    first = await kept.run(ModuleJob(module=made.ECHOES, input=b"one"))
    await kept.close()
    assert children() == before
    second = await kept.run(ModuleJob(module=made.ECHOES, input=b"two"))
    await kept.close()
    assert (first.stdout.text, second.stdout.text) == ("one", "two")


async def test_compiled_code_that_does_not_fit_is_compiled_anew() -> None:
    kept = WasmRunner(keep=1)
    await run(kept, made.ECHOES)
    await kept.close()
    # As if wasmtime had been exchanged under a running daemon.
    kept._compiled = OrderedDict((digest, b"of another version") for digest in kept._compiled)
    assert (await run(kept, made.ECHOES)).ok
    await kept.close()


async def test_many_calls_at_once_all_get_their_own_answer(modules: WasmRunner) -> None:
    jobs = [ModuleJob(module=made.ECHOES, input=str(number).encode()) for number in range(12)]
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(modules.run(job)) for job in jobs]
    assert [call.result().stdout.text for call in calls] == [str(number) for number in range(12)]


@needs(LINUX)
async def test_no_module_outlives_a_daemon_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "sleeps.wasm").write_bytes(made.SLEEPS)
    daemon = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUNS_FOR_LONG, str(tmp_path / "sleeps.wasm"), stdout=subprocess.PIPE
    )
    started = await eventually(lambda: at_work_for(daemon.pid))
    daemon.kill()
    await daemon.wait()
    await eventually(lambda: not any(os.path.exists(f"/proc/{pid}/exe") for pid in started))


def at_work_for(pid: int) -> set[int]:
    """Return the processes of another that run a module just now: they hold its input open."""
    found = {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    return {child for child in found if holds_an_input(child)}


def holds_an_input(pid: int) -> bool:
    try:
        return any("memfd:input" in os.readlink(descriptor) for descriptor in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False  # something was closed meanwhile


def children() -> set[int]:
    return {int(pid) for listed in Path("/proc/self/task").glob("*/children") for pid in listed.read_text().split()}
