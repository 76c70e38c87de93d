"""How fast what a model says reaches those who follow it.

The model speaks as fast as it can in pieces of eight characters, the deltas. The daemon puts on the tape, and shows, as
much as came together; so deltas are counted as the model spoke them (characters / 8), and entries beside them. One
client follows its own run over each door, then eight clients do at once.

Then a crowd: a thousand streams, half of them over HTTP and half over gRPC, each on a session of its own. In a hundred
of these a slow model speaks, 20 deltas a second. The latency is from the time that stands in an entry, taken before it
was recorded, to its arrival; that time is cut to whole milliseconds, so half of one is too much on average.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import datetime
from time import perf_counter, time
from typing import Any

from palyra.gateway.grpc.pb import gateway_pb2 as pb
from tests.bench.figures import Bar, Figures, quantile
from tests.bench.ground import Ground, Measurement
from tests.bench.grpc_client import GrpcClient, start_request
from tests.bench.http_client import HttpClient, events_of
from tests.bench.process import cpu_ms, rss_mb
from tests.bench.turns import run
from tests.support.daemon import Daemon

DELTA = 8
CLIENTS = (1, 8)
FAST, SLOW = "Speak fast.", "Speak slowly."
SLOW_DELTAS_PER_S = 20


def rounds(ground: Ground) -> Iterator[Figures]:
    chars, seconds = ground.amount(512 * 1024, 16 * 1024), ground.amount(10, 1)
    slow = {"do": "text", "text": "slowly. " * SLOW_DELTAS_PER_S * seconds, "chunk": DELTA}
    script = {
        "rules": [
            {"when": {"equals": FAST}, "actions": [{"do": "text", "text": "quickly " * (chars // 8), "chunk": DELTA}]},
            {"when": {"equals": SLOW}, "actions": [{**slow, "delay_ms": 1000 // SLOW_DELTAS_PER_S}]},
        ]
    }
    streams, active = ground.amount(1000, 40), ground.amount(100, 8)
    for _ in range(ground.repeat):
        with ground.daemon(script, runs_max_concurrent=2 * active) as daemon:
            figures: Figures = {}
            for clients in CLIENTS:
                figures |= run(_http(daemon, clients, chars)) | run(_grpc(daemon, clients, chars))
        # A daemon of its own: what the texts above left in memory is no part of what a stream takes.
        with ground.daemon(script, runs_max_concurrent=2 * active) as daemon:
            yield figures | run(_crowd(daemon, streams=streams, active=active, seconds=seconds))


async def _http(daemon: Daemon, clients: int, chars: int) -> Figures:
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(HttpClient(daemon)) for _ in range(clients)]
        asked = [client.chat(FAST, f"http-{clients}-{number}") for number, client in enumerate(made)]
        began = perf_counter()
        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(c.turn(request)) for c, request in zip(made, asked, strict=True)]
        seconds = perf_counter() - began
    events = [event for answer in answers for event in events_of(answer.result())]
    return _speed("http", clients, chars, [json.loads(event)["event"] for event in events], seconds)


async def _grpc(daemon: Daemon, clients: int, chars: int) -> Figures:
    async with GrpcClient(daemon) as client:
        began = perf_counter()
        async with asyncio.TaskGroup() as group:
            answers = [
                group.create_task(client.turn(start_request(FAST, f"grpc-{clients}-{number}")))
                for number in range(clients)
            ]
        seconds = perf_counter() - began
    events = [json.loads(entry.event) for answer in answers for entry in answer.result()]
    return _speed("grpc", clients, chars, events, seconds)


def _speed(door: str, clients: int, chars: int, events: list[Any], seconds: float) -> Figures:
    said = sum(len(event["text"]) for event in events if event["kind"] == "model_text")
    assert said == clients * chars, f"{said} characters came of {clients * chars}"
    return {
        f"{door}_{clients}_deltas_per_s": said / DELTA / seconds,
        f"{door}_{clients}_entries_per_s": len(events) / seconds,
    }


class HttpFollower(HttpClient):
    """A follower that notes when each piece came."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon)
        self.arrived: list[tuple[float, bytes]] = []

    def data_received(self, data: bytes) -> None:
        self.arrived.append((time(), data))


async def _crowd(daemon: Daemon, *, streams: int, active: int, seconds: int) -> Figures:
    arrived: list[tuple[float, bytes]] = []
    before_mb = rss_mb(daemon.pid)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        channels = [await stack.enter_async_context(GrpcClient(daemon)) for _ in range(1 + streams // 100)]
        keys = [f"crowd-{number}" for number in range(streams)]
        ids = [await channels[0].session(key) for key in keys]
        over_http: list[HttpFollower] = []
        calls = []
        # The sessions that speak are followed over one door as often as over the other.
        for number, session_id in enumerate(ids):
            if number % 2:
                calls.append(call := channels[number % len(channels)].attach(session_id))
                group.create_task(_follow(call, arrived))
            else:
                over_http.append(follower := await stack.enter_async_context(HttpFollower(daemon)))
                follower.send(follower.request("GET", f"/console/v1/sessions/{session_id}/events"))
        await asyncio.sleep(0.2 + streams / 1000)
        full_mb = rss_mb(daemon.pid)
        spent, began = cpu_ms(daemon.pid), perf_counter()
        for key in keys[:active]:
            await channels[0].send(SLOW, key)
        await asyncio.sleep(seconds * 1.2)
        busy = (cpu_ms(daemon.pid) - spent) / ((perf_counter() - began) * 1000)
        for call in calls:
            call.cancel()
    http = [wait for follower in over_http for wait in _waits(_http_entries(follower))]
    grpc = [wait for came, batch in arrived for wait in _waits(_grpc_entries(came, batch))]
    assert min(len(http), len(grpc)) > 0, "nothing came"
    return {
        "crowd_streams": streams,
        "crowd_entries": len(http) + len(grpc),
        "crowd_http_p50_ms": quantile(http, 0.5),
        "crowd_http_p95_ms": quantile(http, 0.95),
        "crowd_grpc_p50_ms": quantile(grpc, 0.5),
        "crowd_grpc_p95_ms": quantile(grpc, 0.95),
        "crowd_server_cores": busy,
        "crowd_kib_per_stream": (full_mb - before_mb) * 1024 / streams,
    }


async def _follow(call: Any, arrived: list[tuple[float, bytes]]) -> None:
    try:
        async for batch in call:
            arrived.append((time(), batch))
    except asyncio.CancelledError:
        if not call.cancelled():
            raise


def _http_entries(follower: HttpFollower) -> Iterator[tuple[float, Any]]:
    pending = b""
    for came, data in follower.arrived:
        # An event may come in two pieces; it is there with the second.
        whole, end, pending = (pending + data).rpartition(b"\n\n")
        for event in events_of(whole + end):
            yield came, json.loads(event)["event"]


def _grpc_entries(came: float, batch: bytes) -> Iterator[tuple[float, Any]]:
    for entry in pb.TapeBatch.FromString(batch).entries:
        yield came, json.loads(entry.event)


def _waits(entries: Iterator[tuple[float, Any]]) -> Iterator[float]:
    """Yield how many milliseconds each piece of text took to arrive."""
    for came, event in entries:
        if event["kind"] == "model_text":
            yield (came - datetime.fromisoformat(event["at"]).timestamp()) * 1000


MEASUREMENT = Measurement(
    about="how fast what a model says reaches its followers, one, several and a thousand",
    rounds=rounds,
    bars={
        f"{door}_{clients}_deltas_per_s": Bar(20_000, most=False) for door in ("http", "grpc") for clients in CLIENTS
    },
)
