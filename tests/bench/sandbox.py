"""What it costs to hold a program or a module: next to the bare start of a program, and to the same in Python.

A program is `true`, which ends at once, so that what is left is its start and its end. It is run as `shell.run` runs
one, in each tier that this machine has, and by `posix_spawn` alone, in turns.

A module is called as a plugin's tool is. `convert` of the plugin `units` does next to nothing, so that what is left is
the call: the first one starts a process and compiles, those after it find both. The work is a loop of two million
steps. The same functions in Python stand beside them, and must come to the same.
"""

import json
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

from palyra.sandbox.base import SandboxJob, Tier
from palyra.sandbox.files.root import WorkspaceRoot
from palyra.sandbox.processes.mounts import HiddenFolders
from palyra.sandbox.processes.process import ProcessSandbox
from palyra.sandbox.wasm.module import ModuleJob
from palyra.sandbox.wasm.runner import WasmRunner
from tests.bench.figures import Figures
from tests.bench.ground import Ground, Measurement
from tests.bench.turns import run
from tests.support.modules import built, imported
from tests.support.needs import TIERS, missing

TRUE = "/bin/true"
UNITS = Path(__file__).parents[2] / "examples" / "plugins" / "units" / "units.wasm"
GIVEN = b'{"value": 42.195, "from": "km", "to": "mi"}'
FACTORS = {"km": 1000.0, "mi": 1609.344}
STEPS = 2_000_000

WORK = f"""(module {imported("fd_write")} (memory (export "memory") 1)
  (func (export "_start") (local $n i32) (local $x i32)
    (local.set $n (i32.const {STEPS}))
    (loop $on
      (local.set $x (i32.add (i32.mul (local.get $x) (i32.const 1664525)) (i32.const 1013904223)))
      (br_if $on (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (i32.store (i32.const 16) (local.get $x))
    (i32.store (i32.const 0) (i32.const 16)) (i32.store (i32.const 4) (i32.const 4))
    (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"""


def available() -> list[Tier]:
    """Return the tiers that this machine has."""
    return [*(tier for tier, need in TIERS.items() if missing(need) is None), Tier.OFF]


def rounds(ground: Ground) -> Iterator[Figures]:
    with tempfile.TemporaryDirectory(prefix="palyra-bench-") as name:
        for _ in range(ground.repeat):
            yield {
                **run(_programs(Path(name), starts=ground.amount(40, 3))),
                **run(_modules(calls=ground.amount(200, 5), works=ground.amount(9, 1))),
            }


async def _programs(folder: Path, *, starts: int) -> Figures:
    job = SandboxJob(argv=(TRUE,), roots=(WorkspaceRoot(folder),), folder=folder)
    sandboxes = {tier: ProcessSandbox(tier, private=HiddenFolders()) for tier in available()}
    for sandbox in sandboxes.values():
        await sandbox.run(job)  # compiles the supervisor, and looks for what the tier needs
    bare: list[float] = []
    held: dict[Tier, list[float]] = {tier: [] for tier in sandboxes}
    for _ in range(starts):
        bare.append(_bare())
        for tier, sandbox in sandboxes.items():
            began = perf_counter()
            outcome = await sandbox.run(job)
            held[tier].append(perf_counter() - began)
            assert outcome.exit_code == 0
    figures = {"bare_ms": median(bare) * 1000}
    for tier, times in held.items():
        figures |= {f"{tier}_ms": median(times) * 1000, f"{tier}_ratio": median(times) / median(bare)}
    return figures


def _bare() -> float:
    began = perf_counter()
    os.waitpid(os.posix_spawn(TRUE, [TRUE], {}), 0)
    return perf_counter() - began


async def _modules(*, calls: int, works: int) -> Figures:
    small = ModuleJob(module=UNITS.read_bytes(), input=GIVEN, argv=("units", "convert"))
    large = ModuleJob(module=built(WORK))
    modules = WasmRunner(keep=1)
    try:
        began = perf_counter()
        outcome = await modules.run(small)
        first = perf_counter() - began
        assert json.loads(outcome.stdout.text) == json.loads(_convert(GIVEN))
        assert int.from_bytes((await modules.run(large)).stdout.head, "little") == _work()
        call, native = await _seconds(lambda: modules.run(small), times=calls), _native(lambda: _convert(GIVEN), calls)
        work, native_work = await _seconds(lambda: modules.run(large), times=works), _native(_work, works)
    finally:
        await modules.close()
    return {
        "module_first_ms": first * 1000,
        "module_ms": call * 1000,
        "native_ms": native * 1000,
        "module_more_ms": (call - native) * 1000,
        "module_work_ms": work * 1000,
        "native_work_ms": native_work * 1000,
        "work_ratio": work / native_work,
    }


async def _seconds(call: Callable[[], Awaitable[object]], *, times: int) -> float:
    taken: list[float] = []
    for _ in range(times):
        began = perf_counter()
        await call()
        taken.append(perf_counter() - began)
    return median(taken)


def _native(call: Callable[[], object], times: int) -> float:
    taken: list[float] = []
    for _ in range(times):
        began = perf_counter()
        call()
        taken.append(perf_counter() - began)
    return median(taken)


def _convert(given: bytes) -> str:
    asked = json.loads(given)
    value = asked["value"] * FACTORS[asked["from"]] / FACTORS[asked["to"]]
    return json.dumps({"value": float(f"{value:.12g}"), "unit": asked["to"]})


def _work() -> int:
    x = 0
    for _ in range(STEPS):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
    return x


MEASUREMENT = Measurement(
    about="what it costs to hold a program or a module, next to the bare start of one and to the same in Python",
    rounds=rounds,
    bars={},
)
