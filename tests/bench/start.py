"""How soon a daemon serves, what it holds while it has nothing to do, and how soon a command answers.

A start is measured from the making of the process to its word that it serves: the first in an empty home, which makes
the schema and the keys, and later ones. All modules are compiled beforehand, as after any installation.

A first turn is the first that a warmed-up daemon takes, from sending a message to the end of its run: of the built-in
helper over both doors, with and without a call of a tool, and of a model that is asked over HTTP.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

from tests.bench.figures import Bar, Figures
from tests.bench.ground import Ground, Measurement
from tests.bench.process import rss_mb
from tests.bench.turns import DOORS, TEXT, http_turns, run, timed
from tests.support.daemon import Daemon, warmed_up
from tests.support.provider_thread import played

COMMAND = Path(sys.executable).with_name("palyra")
HELPER = {"model_provider": None, "model_script": None}
CALLS = "What time is it?"
"""Has the helper call a tool."""
REMOTE = """\
[model]
provider = "bench"

[model.providers.bench]
dialect = "openai"
base_url = "{url}"
model = "tiny"
"""


def rounds(ground: Ground) -> Iterator[Figures]:
    if not ground.quick:
        with ground.daemon():
            pass  # compiles what is not compiled yet
    for _ in range(ground.repeat):
        starts = ground.amount(5, 1)
        yield {
            "first_ready_ms": median(_first_start_ms(ground) for _ in range(starts)),
            **_later(ground, starts),
            "http_first_turn_ms": _first_turn_ms(ground, "http", starts=starts),
            "grpc_first_turn_ms": _first_turn_ms(ground, "grpc", starts=starts),
            "call_first_turn_ms": _first_turn_ms(ground, "http", starts=starts, text=CALLS),
            **_remote(ground, starts),
            "version_ms": _command_ms("--version", times=ground.amount(20, 2)),
            "help_ms": _command_ms("--help", times=ground.amount(20, 2)),
        }


def _first_start_ms(ground: Ground) -> float:
    with ground.home() as daemon:
        return _start_ms(daemon)


def _later(ground: Ground, starts: int) -> Figures:
    times: list[float] = []
    with ground.home() as daemon:
        daemon.start().stop()
        for _ in range(starts):
            times.append(_start_ms(daemon))
            daemon.stop()
        daemon.start()
        sleep(ground.amount(3, 0))
        idle = rss_mb(daemon.pid)
        run(_turns(daemon, ground.amount(100, 10)))
        sleep(ground.amount(5, 0))
        return {"ready_ms": median(times), "idle_rss_mb": idle, "used_rss_mb": rss_mb(daemon.pid)}


def _remote(ground: Ground, starts: int) -> Figures:
    """Measure a daemon whose model answers over HTTP."""
    with played() as provider, ground.home(**HELPER) as daemon:
        daemon.home.path.mkdir(mode=0o700, parents=True)
        daemon.home.config.write_text(REMOTE.format(url=provider.url))
        daemon.home.config.chmod(0o600)
        times = [_turn_after_start_ms(daemon, "http", TEXT) for _ in range(starts)]
        daemon.start()
        warmed_up(daemon)
        sleep(ground.amount(3, 0))
        return {"remote_first_turn_ms": median(times), "remote_idle_rss_mb": rss_mb(daemon.pid)}


def _first_turn_ms(ground: Ground, door: str, *, starts: int, text: str = TEXT) -> float:
    with ground.home(**HELPER) as daemon:
        return median(_turn_after_start_ms(daemon, door, text) for _ in range(starts))


def _turn_after_start_ms(daemon: Daemon, door: str, text: str) -> float:
    async def first() -> float:
        async with DOORS[door](daemon, ["first"], text=text) as turns:
            return (await timed(daemon, turns, 1)).each_ms[0]

    daemon.start()
    warmed_up(daemon)
    taken = run(first())
    daemon.stop()
    return taken


def _start_ms(daemon: Daemon) -> float:
    began = perf_counter()
    daemon.start()
    return (perf_counter() - began) * 1000


async def _turns(daemon: Daemon, count: int) -> None:
    async with http_turns(daemon, ["used"]) as turns:
        await timed(daemon, turns, count)


def _command_ms(option: str, *, times: int) -> float:
    taken: list[float] = []
    for _ in range(times + 1):
        began = perf_counter()
        subprocess.run([COMMAND, option], stdout=subprocess.DEVNULL, check=True)
        taken.append((perf_counter() - began) * 1000)
    return median(taken[1:])


MEASUREMENT = Measurement(
    about="how soon a daemon serves, its first turn, what it holds when idle, how soon a command answers",
    rounds=rounds,
    bars={
        "ready_ms": Bar(600),
        "first_ready_ms": Bar(600),
        "idle_rss_mb": Bar(60),
        "http_first_turn_ms": Bar(50),
        "grpc_first_turn_ms": Bar(50),
        "call_first_turn_ms": Bar(50),
        "remote_first_turn_ms": Bar(50),
        "version_ms": Bar(100),
    },
)
