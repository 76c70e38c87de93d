"""How long a connection waits for its reader."""

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from palyra.gateway.http.protocol import BoundedProtocol, bounded
from tests.support.connections import a_slot
from tests.support.eventually import eventually

KIB = 1024
LONG = 3600.0


class Line(asyncio.Transport):
    """A connection whose reader leaves this much unread, each time that it is looked at."""

    def __init__(self, *unread: int) -> None:
        super().__init__()
        self.unread = list(unread)
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unread.pop(0) if len(self.unread) > 1 else self.unread[0]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        pass


def connected(line: Line, *waits: float) -> BoundedProtocol:
    """Return a connection that gives its reader these times, one after another, and for ever after that."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nobody asked")

    config = uvicorn.Config(app, log_config=None)
    config.load()
    left = iter(waits)
    protocol = bounded(lambda: next(left, LONG))(config=config, server_state=ServerState(), app_state={})
    protocol.slot = a_slot()
    protocol.connection_made(line)
    return protocol


async def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    line = Line(200 * KIB)
    connected(line, 0).pause_writing()
    await eventually(lambda: line.aborted)


async def test_a_reader_that_takes_next_to_nothing_is_cut_off() -> None:
    line = Line(200 * KIB, 199 * KIB)
    connected(line, 0).pause_writing()
    await eventually(lambda: line.aborted)
    assert line.unread == [199 * KIB]


async def test_a_slow_reader_that_goes_on_is_waited_for() -> None:
    # Two looks at each place: one when the time is over, one when it begins anew.
    line = Line(200 * KIB, 180 * KIB, 180 * KIB, 160 * KIB, 160 * KIB)
    protocol = connected(line, 0, 0)
    protocol.pause_writing()
    await eventually(lambda: len(line.unread) == 1)
    assert not line.aborted
    protocol.connection_lost(None)


@pytest.mark.parametrize("left", [False, True])
async def test_a_reader_that_has_caught_up_or_left_is_looked_at_no_more(left: bool) -> None:
    line = Line(200 * KIB)
    protocol = connected(line, 0)
    protocol.pause_writing()
    if left:
        protocol.connection_lost(None)
    else:
        protocol.resume_writing()
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, passed.set)
    await passed.wait()
    assert not line.aborted
