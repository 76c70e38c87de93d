"""Whether a daemon grows: its memory and its open handles over very many turns.

Clients of both doors talk at once; each begins a new session on a new connection every 50 turns. The
slope is that of a line through the second half of the samples, when whatever fills up once has filled up.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count
from statistics import linear_regression
from time import perf_counter

from tests.bench.figures import Bar, Figures
from tests.bench.ground import Ground, Measurement
from tests.bench.process import handles, rss_mb
from tests.bench.turns import DOORS, Turn, run
from tests.support.daemon import Daemon

TURNS = 100_000
CLIENTS = {"http": 12, "grpc": 4}
SESSION_TURNS = 50
SAMPLES = 200
Sample = tuple[int, float, int]


def rounds(ground: Ground) -> Iterator[Figures]:
    turns = ground.turns or ground.amount(TURNS, 300)
    for _ in range(ground.repeat):
        with ground.daemon() as daemon:
            began = perf_counter()
            samples = run(_soak(daemon, turns))
            seconds = perf_counter() - began
            later = samples[len(samples) // 2 :]
            yield {
                "turns": samples[-1][0],
                "turns_per_s": samples[-1][0] / seconds,
                "rss_first_mb": samples[0][1],
                "rss_last_mb": samples[-1][1],
                "rss_slope_mb": _slope(later, [rss for _, rss, _ in later]),
                "handles_first": samples[0][2],
                "handles_last": samples[-1][2],
                "handles_slope": _slope(later, [opened for _, _, opened in later]),
            }


async def _soak(daemon: Daemon, turns: int) -> list[Sample]:
    """Take the turns, and look at the daemon now and then."""
    taken = count()
    done = 0
    samples: list[Sample] = []
    every = max(1, turns // SAMPLES)

    async def client(door: str, number: int) -> None:
        nonlocal done
        async for turn in _for_ever(daemon, door, number):
            if next(taken) >= turns:
                return
            await turn()
            done += 1
            if done % every == 0:
                samples.append((done, rss_mb(daemon.pid), handles(daemon.pid)))

    async with asyncio.TaskGroup() as group:
        for door, clients in CLIENTS.items():
            for number in range(clients):
                group.create_task(client(door, number))
    return samples


async def _for_ever(daemon: Daemon, door: str, number: int) -> AsyncIterator[Turn]:
    for session in count():
        async with DOORS[door](daemon, [f"{door}-{number}-{session}"]) as turns:
            for _ in range(SESSION_TURNS):
                yield turns[0]


def _slope(samples: Sequence[Sample], values: Sequence[float]) -> float:
    """Return how much a value rises in 100,000 turns."""
    if len(samples) < 2:
        return 0.0
    return linear_regression([done for done, _, _ in samples], values).slope * TURNS


MEASUREMENT = Measurement(
    about="whether memory and open handles grow over 100,000 turns",
    rounds=rounds,
    bars={"rss_slope_mb": Bar(2), "handles_slope": Bar(2)},
    repeat=1,
)
