"""Turns through either door: by one client, one after the other, or by many at once, each in a session of its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import uvloop

from tests.bench.grpc_client import GrpcClient, start_request
from tests.bench.http_client import HttpClient
from tests.bench.process import cpu_ms
from tests.support.daemon import Daemon

T = TypeVar("T")
Turn = Callable[[], Awaitable[object]]

TEXT = "Say ok."


@dataclass(frozen=True, slots=True)
class Timing:
    """How many turns went how fast."""

    each_ms: list[float]
    seconds: float
    server_cpu_ms: float
    """The daemon's processor time per turn."""

    @property
    def per_second(self) -> float:
        return len(self.each_ms) / self.seconds


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a client to its end."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


@asynccontextmanager
async def http_turns(daemon: Daemon, sessions: list[str], *, text: str = TEXT) -> AsyncIterator[list[Turn]]:
    """Connect a client for each session, and return what takes a turn in it."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(HttpClient(daemon)) for _ in sessions]
        yield [http_turn(client, text, session) for client, session in zip(clients, sessions, strict=True)]


@asynccontextmanager
async def grpc_turns(daemon: Daemon, sessions: list[str], *, text: str = TEXT) -> AsyncIterator[list[Turn]]:
    """Connect one client, and return what takes a turn in each session."""
    async with GrpcClient(daemon) as client:
        yield [_grpc_turn(client, text, session) for session in sessions]


DOORS = {"http": http_turns, "grpc": grpc_turns}


async def timed(daemon: Daemon, turns: list[Turn], count: int) -> Timing:
    """Take so many turns in all, each client its share, all clients at once."""
    each_ms: list[float] = []
    share = max(1, count // len(turns))

    async def client(turn: Turn) -> None:
        for _ in range(share):
            began = perf_counter()
            await turn()
            each_ms.append((perf_counter() - began) * 1000)

    began, spent = perf_counter(), cpu_ms(daemon.pid)
    async with asyncio.TaskGroup() as group:
        for turn in turns:
            group.create_task(client(turn))
    seconds = perf_counter() - began
    return Timing(each_ms, seconds, (cpu_ms(daemon.pid) - spent) / len(each_ms))


def http_turn(client: HttpClient, text: str, session: str) -> Turn:
    """Return what takes a turn in a session; a client takes one at a time."""
    request = client.chat(text, session)
    return lambda: client.turn(request)


def _grpc_turn(client: GrpcClient, text: str, session: str) -> Turn:
    request = start_request(text, session)
    return lambda: client.turn(request)
