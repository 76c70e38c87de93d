"""How soon a daemon ends when it is told to, and how soon an emergency stop has ended everything that runs.

A daemon is told by SIGTERM, which is what `palyra down` sends, and has ended when its process has. With a run under way
it first waits a few seconds for the run, which here never ends. An emergency stop is measured from the request to the
end of the last of its runs.
"""

from collections.abc import Iterator
from statistics import median
from time import perf_counter

import httpx

from tests.bench.figures import Bar, Figures
from tests.bench.ground import Ground, Measurement
from tests.support.daemon import Daemon, Watcher, until, warmed_up

ENDLESS = {"default": [{"do": "endless", "text": "and on ", "delay_ms": 20}]}
RUNS = 8


def rounds(ground: Ground) -> Iterator[Figures]:
    for _ in range(ground.repeat):
        times = ground.amount(5, 1)
        yield {
            "idle_ms": median(_end_ms(ground, runs=0) for _ in range(times)),
            "busy_ms": median(_end_ms(ground, runs=1) for _ in range(ground.amount(2, 1))),
            "emergency_ms": median(_emergency_ms(ground) for _ in range(times)),
        }


def _end_ms(ground: Ground, *, runs: int) -> float:
    with ground.daemon(ENDLESS) as daemon:
        warmed_up(daemon)
        _begin(daemon, runs)
        began = perf_counter()
        daemon.stop()
        return (perf_counter() - began) * 1000


def _emergency_ms(ground: Ground) -> float:
    with ground.daemon(ENDLESS) as daemon:
        warmed_up(daemon)
        run_ids = _begin(daemon, RUNS)
        headers = {"authorization": f"Bearer {daemon.token}"}
        began = perf_counter()
        httpx.post(f"{daemon.address}/admin/v1/stops", headers=headers, json={}, timeout=60).raise_for_status()
        until(lambda: all(daemon.run(run_id)["ended_at"] for run_id in run_ids))
        return (perf_counter() - began) * 1000


def _begin(daemon: Daemon, runs: int) -> list[str]:
    """Begin runs that never end, and return them when the model of each is speaking."""
    sent = [daemon.send("Go on.", session={"key": str(number)}) for number in range(runs)]
    for one in sent:
        Watcher(daemon, one["session_id"]).follow(lambda line: line.kind == "model_text")
    return [one["run_id"] for one in sent]


MEASUREMENT = Measurement(
    about="how soon a daemon ends, idle and with a run under way, and how soon an emergency stop ends all runs",
    rounds=rounds,
    bars={"idle_ms": Bar(1000), "emergency_ms": Bar(1000)},
)
