"""How long a search of many files takes: by reading all of them, and with ripgrep as a sieve, in turns.

The workspace has twenty thousand files of some kilobytes each, of which two hold what is looked for. A search is made
as `files.search` makes it: ripgrep is asked in the strict sandbox once the patience of the search is over, and its time
counts. Both must find the same. A small workspace of two hundred files stands beside it, where ripgrep is not asked.
"""

import asyncio
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

from palyra.daemon.process.system_clock import SystemClock
from palyra.sandbox.base import Sandbox, Tier
from palyra.sandbox.files.workspace import Workspace
from palyra.sandbox.processes.mounts import HiddenFolders
from palyra.sandbox.processes.process import ProcessSandbox
from palyra.sandbox.search.ripgrep import RipgrepFilter
from palyra.sandbox.search.search import SearchQuery, SearchResult, search
from tests.bench.figures import Figures
from tests.bench.ground import Ground, Measurement
from tests.bench.turns import run
from tests.support.needs import BUBBLEWRAP, RIPGREP, missing

QUERIES = {
    "text": SearchQuery("the needle"),
    "exact": SearchQuery("The Needle"),
    "regex": SearchQuery(r"the\s+needle in \d+", regex=True),
}
FOLDERS, SMALL_FOLDERS = 200, 2
FILES_PER_FOLDER = 100
LINES = 80


def available() -> bool:
    """Tell whether ripgrep can be asked on this machine."""
    return missing(BUBBLEWRAP) is None and missing(RIPGREP) is None


def rounds(ground: Ground) -> Iterator[Figures]:
    with tempfile.TemporaryDirectory(prefix="palyra-bench-") as name:
        large = _workspace(Path(name, "large"), folders=ground.amount(FOLDERS, 10))
        small = _workspace(Path(name, "small"), folders=SMALL_FOLDERS)
        for _ in range(ground.repeat):
            figures = run(_searches(large, times=ground.amount(5, 1)))
            beside = run(_searches(small, times=ground.amount(5, 1)))
            yield figures | {f"small_{name}": figure for name, figure in beside.items()}


def _workspace(root: Path, *, folders: int) -> Workspace:
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(3, 9))) for _ in range(2000)]
    for number in range(folders):
        folder = root / f"part{number % 20}" / f"folder{number}"
        folder.mkdir(parents=True)
        for file in range(FILES_PER_FOLDER):
            lines = [" ".join(chance.choices(words, k=9)) for _ in range(LINES)]
            if number == folders - 1 and file in (0, 50):
                lines[40] = "The Needle in 2026"
            (folder / f"file{file}.txt").write_text("\n".join(lines))
    return Workspace((root,))


async def _searches(workspace: Workspace, *, times: int) -> Figures:
    sandbox = ProcessSandbox(Tier.STRICT, private=HiddenFolders())
    figures: Figures = {}
    for name, query in QUERIES.items():
        plain: list[float] = []
        sifted: list[float] = []
        for _ in range(times):
            took, expected = await _search(workspace, query)
            plain.append(took)
            if available():
                took, found = await _search(workspace, query, sandbox=sandbox)
                assert found == expected
                sifted.append(took)
        figures[f"{name}_walk_ms"] = median(plain) * 1000
        if sifted:
            figures |= {f"{name}_rg_ms": median(sifted) * 1000, f"{name}_ratio": median(sifted) / median(plain)}
    return figures


async def _search(
    workspace: Workspace, query: SearchQuery, *, sandbox: Sandbox | None = None
) -> tuple[float, SearchResult]:
    began = perf_counter()
    sieve = None if sandbox is None else RipgrepFilter(sandbox, workspace, loop=asyncio.get_running_loop())
    found = await asyncio.to_thread(search, workspace, query, clock=SystemClock(), stop=lambda: False, sieve=sieve)
    if sieve is not None:
        await sieve.close()
    assert len(found.matches) == 2
    return perf_counter() - began, found


MEASUREMENT = Measurement(
    about="how long a search of many files takes, by reading all of them and with ripgrep",
    rounds=rounds,
    bars={},
)
