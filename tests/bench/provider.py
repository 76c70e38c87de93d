"""What it costs to listen to a model: processor time for each piece of an answer, in every dialect, and 200 at once.

The answers come from a process of their own over real HTTP, all pieces of one at once, so that what is left is reading
them. They are read by turns by the adapter, as a run does, and bare: aiohttp's pieces cut into lines, the JSON of each
decoded, and nothing made of it. The ratio is the one to the other, of the same bytes.

The 200 are paced as a model speaks, a piece every 20 ms, and must all come to their end.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import perf_counter, process_time

import aiohttp
import msgspec

from palyra.core.model.catalog import ModelProvider
from palyra.core.model.prompt import ModelEvent, TextDelta, TurnDone
from palyra.providers.registry import load_dialect
from palyra.providers.transport.http import ProviderHttpClient
from palyra.providers.transport.remote_provider import RemoteProvider, full_model_card
from tests.bench.figures import Bar, Figures
from tests.bench.ground import Ground, Measurement
from tests.bench.process import rss_mb
from tests.bench.provider_process import PAUSE_SECONDS
from tests.bench.turns import run
from tests.contract.providers.conftest import PROMPT
from tests.contract.providers.wire import Wire, wires

STREAMS = 200
PACED = 50
"""Pieces of each answer when many come at once."""

MANY = """
import json, sys
from tests.bench.provider import many
from tests.bench.turns import run
print(json.dumps(run(many(int(sys.argv[1])))))
"""

Read = Callable[[], Awaitable[None]]


def rounds(ground: Ground) -> Iterator[Figures]:
    chunks, answers = ground.amount(2_000, 200), ground.amount(20, 3)
    with _answering(chunks) as burst, _answering(PACED) as paced:
        for _ in range(ground.repeat):
            figures: Figures = {}
            for wire in wires():
                figures |= run(_chunk_costs(wire, burst, chunks=chunks, answers=answers))
            yield {**figures, **_in_a_process(paced)}


async def _chunk_costs(wire: Wire, port: int, *, chunks: int, answers: int) -> Figures:
    """Return what a piece costs by the adapter and bare, read by turns so that both meet the same machine."""
    async with _model(wire, f"http://127.0.0.1:{port}/{wire.name}/burst") as model, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{port}/{wire.name}/burst/bare"

        async def ours() -> None:
            texts = 0
            async for event in model.stream(PROMPT):
                texts += type(event) is TextDelta
            assert texts >= chunks

        async def bare() -> None:
            await _bare(session, url)

        spent = {"ours": 0.0, "bare": 0.0}
        for read in (ours, bare):
            await read()  # connections and caches
        for _ in range(answers):
            for name, read in (("ours", ours), ("bare", bare)):
                spent[name] += await _cpu(read)
    each = {name: seconds * 1e6 / (answers * chunks) for name, seconds in spent.items()}
    return {
        f"{wire.name}_us": each["ours"],
        f"{wire.name}_bare_us": each["bare"],
        f"{wire.name}_ratio": each["ours"] / each["bare"],
    }


async def _bare(session: aiohttp.ClientSession, url: str) -> None:
    async with session.post(url, data=b"{}") as response:
        rest = b""
        async for piece in response.content.iter_any():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    msgspec.json.decode(line[6:])


async def _cpu(read: Read) -> float:
    began = process_time()
    await read()
    return process_time() - began


def _in_a_process(port: int) -> Figures:
    """Listen to many in a process of its own: in this one the memory of the round before would serve again."""
    done = subprocess.run([sys.executable, "-c", MANY, str(port)], capture_output=True, check=True)
    figures: Figures = json.loads(done.stdout)
    return figures


async def many(port: int) -> Figures:
    """Listen to many at once, a share of them in each dialect."""
    before = rss_mb(os.getpid())
    http = ProviderHttpClient()
    models = [_remote(wire, http, f"http://127.0.0.1:{port}/{wire.name}/paced") for wire in wires()]
    began, spent = perf_counter(), process_time()
    ended: list[list[ModelEvent]] = []

    async def listen(model: RemoteProvider) -> None:
        ended.append([event async for event in model.stream(PROMPT)])

    async with asyncio.TaskGroup() as group:
        for number in range(STREAMS):
            group.create_task(listen(models[number % len(models)]))
    seconds = perf_counter() - began
    memory = rss_mb(os.getpid()) - before
    await http.close()
    pieces = sum(type(event) is TextDelta for turn in ended for event in turn)
    return {
        "streams": float(sum(isinstance(turn[-1], TurnDone) for turn in ended)),
        "streams_s": seconds,
        "streams_late_ratio": seconds / (PAUSE_SECONDS * PACED),
        "streams_chunks_per_s": pieces / seconds,
        "streams_chunk_us": (process_time() - spent) * 1e6 / pieces,
        "streams_mb": memory,
    }


@asynccontextmanager
async def _model(wire: Wire, url: str) -> AsyncIterator[RemoteProvider]:
    http = ProviderHttpClient()
    try:
        yield _remote(wire, http, url)
    finally:
        await http.close()


def _remote(wire: Wire, http: ProviderHttpClient, url: str) -> RemoteProvider:
    settings = ModelProvider(dialect=wire.dialect, base_url=url, key="env:KEY")
    speaks = load_dialect(wire.dialect)
    return RemoteProvider(
        "bench",
        wire.model,
        speaks=speaks,
        settings=settings,
        card=full_model_card(settings, speaks, wire.model),
        key=_key,
        http=http,
    )


async def _key(reference: str) -> str:
    return "sk-nothing-of-value"


@contextmanager
def _answering(chunks: int) -> Iterator[int]:
    """Start the process that answers, and return its port."""
    command = [sys.executable, "-m", "tests.bench.provider_process", str(chunks)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


MEASUREMENT = Measurement(
    about="what a piece of a model's answer costs in each dialect, next to a bare reader, and 200 answers at once",
    rounds=rounds,
    bars={
        **{f"{wire.name}_ratio": Bar(2.0) for wire in wires()},
        "streams": Bar(STREAMS, most=False),
    },
)
