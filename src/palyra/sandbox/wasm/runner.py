"""Runs WebAssembly modules: an input, two outputs, the granted folders, and nothing else.

A module is a WASI command. It is ended by its fuel (steps), its time, its memory or the length of its output, whichever
is used up first. Modules run in a separate process, `worker.py`: compiled code, a fault of the compiler, and a
module that sleeps where our clock does not reach can neither block nor harm the daemon, and what they used is freed.
A process that has answered is kept for a while, and its compiled code for longer: starting and compiling take a
hundred times as long as a call.

    outcome = await WasmRunner().run(ModuleJob(module=path.read_bytes(), input=b'{"n": 3}'))
"""

import asyncio
import hashlib
import importlib.util
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path

import msgspec

from palyra.core.errors import Internal, Unavailable
from palyra.exhaustion import wait_out
from palyra.sandbox.base import MIB, CapturedOutput
from palyra.sandbox.wasm import worker
from palyra.sandbox.wasm.module import (
    MAX_INPUT_BYTES,
    MAX_MODULE_BYTES,
    FolderNotAllowed,
    ModuleInvalid,
    ModuleJob,
    ModuleLimits,
    ModuleOutcome,
    ModuleTooLarge,
)

MAGIC = b"\0asm"
COMPILE_SECONDS = 60.0
GRACE_SECONDS = 1.0
"""A module that has not ended this long after its time is not executing its own steps: its process is killed."""
MAX_CONCURRENT = 16
"""Modules that run at the same time; more wait. One principal may run only some of them."""
IDLE_WORKERS = 2
"""Processes that wait for another call."""
COMPILED_BYTES = 16 * MIB
"""For the compiled code that is kept, of all modules together."""
CODE_BYTES = COMPILED_BYTES // 2
"""For one module; larger compiled code is not kept."""
MESSAGE_BYTES = 64 * 1024

NOTHING = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x07\x0a\x01\x06_start\0\0\x0a\x04\x01\x02\0\x0b"
"""A module that does nothing: shows whether modules can run at all."""


class WasmUnavailable(Unavailable):
    """Modules cannot be run on this machine. `palyra doctor` says why."""


class WasmProcessEnded(Internal):
    """The process that runs modules ended without a result, so the outcome of the call is not known."""


class _WorkerReply(msgspec.Struct):
    """The process's message about a module."""

    fault: str = ""
    stale: bool = False
    compiled: int = 0
    exit_code: int | None = None
    stopped: str = ""
    trap: str = ""
    folder: str = ""
    fuel: int = 0
    memory_bytes: int = 0
    milliseconds: int = 0
    stdout: tuple[int, int] = (0, 0)
    stderr: tuple[int, int] = (0, 0)


class WasmRunner:
    """Runs modules, a few at a time."""

    def __init__(self, *, keep: int = 0, at_once: int = MAX_CONCURRENT) -> None:
        """`keep` processes wait for further calls, for half a minute; then `close` must be called in the end."""
        self._keep = keep
        self._idle: list[Process] = []
        self._compiled: OrderedDict[str, bytes] = OrderedDict()
        self._turn = asyncio.Semaphore(at_once)

    async def run(self, job: ModuleJob) -> ModuleOutcome:
        """Run a module to its end, and leave nothing of it behind, also when cancelled."""
        _check(job)
        return await self._order(job, run=True)

    async def check_ready(self, job: ModuleJob) -> None:
        """Raise the error that would keep `run` from starting the module, as far as known without compiling it."""
        _check(job)
        await asyncio.to_thread(_packages)
        await asyncio.to_thread(_check_folders, job)

    async def check(self, module: bytes) -> None:
        """Raise `ModuleInvalid` if a module cannot be run; it is compiled, and not run."""
        job = ModuleJob(module=module)
        _check(job)
        await self._order(job, run=False)

    async def close(self) -> None:
        """End the processes that wait for calls."""
        while self._idle:
            await _end(self._idle.pop())

    async def _order(self, job: ModuleJob, *, run: bool) -> ModuleOutcome:
        async with self._turn:
            digest = await asyncio.to_thread(_digest, job.module)
            while True:
                code = self._compiled.get(digest)
                order = _written(job, digest, compiled=code, code_bytes=CODE_BYTES if self._keep else 0, run=run)
                process, is_new = await self._process()
                try:
                    outcome = await self._run(process, order, job, digest, run=run)
                except _CompiledCacheStale:
                    self._compiled.pop(digest, None)
                    await self._put_back(process)
                except _WorkerGone:
                    await _end(process)
                    # A waiting process may have ended just now, before it saw the order.
                    if is_new:
                        raise WasmProcessEnded(_ended(process)) from None
                except ModuleInvalid:
                    await self._put_back(process)
                    raise
                except BaseException:
                    await _end(process)
                    raise
                else:
                    await self._put_back(process)
                    return outcome

    async def _process(self) -> tuple[Process, bool]:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process, False
            await _end(process)
        return await _start(), True

    async def _put_back(self, process: Process) -> None:
        if len(self._idle) < self._keep and process.returncode is None:
            self._idle.append(process)
        else:
            await _end(process)

    async def _run(
        self, process: Process, order: Sequence[bytes], job: ModuleJob, digest: str, *, run: bool
    ) -> ModuleOutcome:
        code = await _compile(process, order)
        if code:
            self._compiled[digest] = code
            while sum(map(len, self._compiled.values())) > COMPILED_BYTES:
                self._compiled.popitem(last=False)
        if digest in self._compiled:
            self._compiled.move_to_end(digest)
        return (
            await _outcome(process, job) if run else ModuleOutcome(0, CapturedOutput(), CapturedOutput(), timedelta())
        )


class _WorkerGone(Exception):
    """The process ended."""


class _CompiledCacheStale(Exception):
    """What was compiled before does not fit the process."""


@cache
def _packages() -> str:
    """Return the folder that wasmtime is installed in."""
    spec = importlib.util.find_spec("wasmtime")
    if spec is None or spec.origin is None:
        raise WasmUnavailable("The package wasmtime is not installed, so modules cannot be run. Reinstall Palyra.")
    return str(Path(spec.origin).parents[1])


async def _start() -> Process:
    packages = await asyncio.to_thread(_packages)
    return await wait_out(
        lambda: asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            "-B",
            worker.__file__,
            packages,
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        ),
        what="a module",
    )


async def _end(process: Process) -> None:
    """Kill the process, whatever it does, and wait for its end, even if the caller is being cancelled."""
    with suppress(ProcessLookupError):
        process.kill()
    assert process.stdin is not None
    process.stdin.close()
    # It is dead already, so this takes almost no time.
    end = asyncio.get_running_loop().create_task(process.wait())
    while not end.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([end])


async def _compile(process: Process, order: Sequence[bytes]) -> bytes:
    """Compile the module, and return the code if it is new."""
    assert process.stdin is not None
    try:
        async with asyncio.timeout(COMPILE_SECONDS):
            process.stdin.writelines(order)
            await process.stdin.drain()
            worker_reply = await _message(process)
            code = await _bytes(process, worker_reply.compiled, maximum=CODE_BYTES)
    except TimeoutError:
        raise ModuleTooLarge(
            f"The module takes longer than {COMPILE_SECONDS:g} s to compile, so it was not run."
        ) from None
    except (BrokenPipeError, ConnectionResetError):
        raise _WorkerGone from None
    if worker_reply.stale:
        raise _CompiledCacheStale
    if worker_reply.fault:
        raise ModuleInvalid(f"The module cannot be run: {worker_reply.fault}.")
    return code


async def _outcome(process: Process, job: ModuleJob) -> ModuleOutcome:
    """Wait for the module's end, but no longer than it may take."""
    try:
        async with asyncio.timeout(job.bounds.wall.total_seconds() + GRACE_SECONDS):
            worker_reply = await _message(process)
            out, err = [
                CapturedOutput(await _bytes(process, kept_count, maximum=job.bounds.output_bytes), b"", removed)
                for kept_count, removed in (worker_reply.stdout, worker_reply.stderr)
            ]
    except TimeoutError:
        await _end(process)
        return ModuleOutcome(
            None, CapturedOutput(), CapturedOutput(), job.bounds.wall, stopped=_why("time", job.bounds)
        )
    except _WorkerGone:
        await _end(process)
        raise WasmProcessEnded(_ended(process)) from None
    if worker_reply.folder:
        raise FolderNotAllowed(f"The module was not run: one of its folders cannot be opened: {worker_reply.folder}.")
    return ModuleOutcome(
        exit_code=worker_reply.exit_code,
        stdout=out,
        stderr=err,
        took=timedelta(milliseconds=worker_reply.milliseconds),
        fuel=worker_reply.fuel,
        memory_bytes=worker_reply.memory_bytes,
        stopped=_why(worker_reply.stopped, job.bounds)
        if worker_reply.stopped
        else f"it failed: {worker_reply.trap}"
        if worker_reply.trap
        else "",
    )


async def _message(process: Process) -> _WorkerReply:
    (length,) = worker.LENGTH.unpack(await _bytes(process, worker.LENGTH.size, maximum=MESSAGE_BYTES))
    try:
        return msgspec.json.decode(await _bytes(process, length, maximum=MESSAGE_BYTES), type=_WorkerReply)
    except msgspec.DecodeError:
        raise _WorkerGone from None


async def _bytes(process: Process, count: int, *, maximum: int) -> bytes:
    """Read the process's message; it is not trusted, since a module that broke out could have written it."""
    assert process.stdout is not None
    if not 0 <= count <= maximum:
        raise _WorkerGone
    try:
        return await process.stdout.readexactly(count)
    except (asyncio.IncompleteReadError, ConnectionResetError):
        raise _WorkerGone from None


def _check(job: ModuleJob) -> None:
    if not job.module.startswith(MAGIC):
        raise ModuleInvalid("This is not a WebAssembly module. Name a .wasm file.")
    if len(job.module) > MAX_MODULE_BYTES:
        raise ModuleTooLarge(f"The module has {len(job.module)} bytes; the maximum is {MAX_MODULE_BYTES}.")
    if len(job.input) > MAX_INPUT_BYTES:
        raise ModuleTooLarge(f"The input has {len(job.input)} bytes; the maximum is {MAX_INPUT_BYTES}.")


def _check_folders(job: ModuleJob) -> None:
    for folder in job.folders:
        if not folder.path.is_dir():
            raise FolderNotAllowed(f"The module was not run: the folder {folder.path} does not exist. Create it.")


def _digest(module: bytes) -> str:
    return hashlib.sha256(module).hexdigest()


def _written(job: ModuleJob, digest: str, *, compiled: bytes | None, code_bytes: int, run: bool) -> Sequence[bytes]:
    module = job.module if compiled is None else compiled
    order = json.dumps(
        {
            "run": run,
            "digest": digest,
            "is_compiled": compiled is not None,
            "code_bytes": code_bytes,
            "argv": job.argv,
            "folders": [
                {"path": str(folder.path), "name": folder.name, "writable": folder.writable} for folder in job.folders
            ],
            "seconds": job.bounds.wall.total_seconds(),
            "fuel": job.bounds.fuel,
            "memory_bytes": job.bounds.memory_bytes,
            "output_bytes": job.bounds.output_bytes,
        }
    ).encode()
    return [worker.HEADER.pack(len(order), len(module), len(job.input)), order, module, job.input]


def _why(stopped: str, bounds: ModuleLimits) -> str:
    match stopped:
        case "fuel":
            return f"it used more than {bounds.fuel} steps (fuel)"
        case "time":
            return f"it took longer than {bounds.wall.total_seconds():g} s"
        case "output":
            return f"it wrote more than {bounds.output_bytes} bytes"
        case _:
            return stopped


def _ended(process: Process) -> str:
    return (
        f"The process that runs modules ended without a result (exit code {process.returncode}), so the "
        "outcome of the call is not known. Try it with less."
    )
