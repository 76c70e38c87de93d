"""What a turn costs beside the model: from the first byte of a message to the last of its run, the model being instant.

A client keeps its connection and its session. One client alone shows the latency, 32 at once the throughput. Client and
daemon share the machine's cores, so the client is as plain as it can be; `..._cpu_ms` is the daemon's part alone.
"""

from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import Bar, Figures, quantile
from tests.bench.ground import Ground, Measurement
from tests.bench.machine import syncs_per_second
from tests.bench.turns import DOORS, Timing, run, timed
from tests.support.daemon import Daemon

CLIENTS = 32


def rounds(ground: Ground) -> Iterator[Figures]:
    for _ in range(ground.repeat):
        with ground.daemon() as daemon:
            figures: Figures = {}
            for door in DOORS:
                figures |= run(_measure(daemon, door, ground))
            yield figures | {"fdatasync_per_s": syncs_per_second(Path(daemon.home.path))}


async def _measure(daemon: Daemon, door: str, ground: Ground) -> Figures:
    alone = await _timing(daemon, door, clients=1, warm_up=ground.amount(200, 10), count=ground.amount(1000, 20))
    many = await _timing(daemon, door, clients=CLIENTS, warm_up=ground.amount(640, 32), count=ground.amount(3200, 64))
    return {
        f"{door}_p50_ms": quantile(alone.each_ms, 0.5),
        f"{door}_p95_ms": quantile(alone.each_ms, 0.95),
        f"{door}_cpu_ms": alone.server_cpu_ms,
        f"{door}_{CLIENTS}_p50_ms": quantile(many.each_ms, 0.5),
        f"{door}_{CLIENTS}_p95_ms": quantile(many.each_ms, 0.95),
        f"{door}_{CLIENTS}_turns_per_s": many.per_second,
        f"{door}_{CLIENTS}_cpu_ms": many.server_cpu_ms,
    }


async def _timing(daemon: Daemon, door: str, *, clients: int, warm_up: int, count: int) -> Timing:
    sessions = [f"{door}-{clients}-{number}" for number in range(clients)]
    async with DOORS[door](daemon, sessions) as turns:
        await timed(daemon, turns, warm_up)
        return await timed(daemon, turns, count)


MEASUREMENT = Measurement(
    about="what a turn costs beside the model, over HTTP and gRPC",
    rounds=rounds,
    bars={
        "http_p50_ms": Bar(4),
        "grpc_p50_ms": Bar(4),
        "http_32_turns_per_s": Bar(500, most=False),
        "grpc_32_turns_per_s": Bar(500, most=False),
    },
)
