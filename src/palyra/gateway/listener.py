"""Accepts connections, and counts each before a byte of it is read: a TLS handshake needs a slot too."""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from palyra.gateway.connections import ConnectionBudget, ConnectionSlot

if TYPE_CHECKING:
    from ssl import SSLContext

EVICTED_AT_ONCE = 32
"""How many connections are closed when there are no descriptors left."""
PAUSE_SECONDS = 0.2
TLS_CLOSE_SECONDS = 2.0
"""How long a client has to answer the end of a TLS connection."""

log = logging.getLogger(__name__)


class Listener:
    """Serves one listening socket, from `start` until it is closed."""

    def __init__(
        self,
        listening: socket.socket,
        connections: ConnectionBudget,
        make: Callable[[ConnectionSlot], asyncio.BaseProtocol],
        *,
        tls: "SSLContext | None",
    ) -> None:
        """`make` returns the protocol of a connection, which becomes its slot's peer and releases the slot."""
        self._listening = listening
        self._connections = connections
        self._make = make
        self._tls = tls
        self._arriving: set[_PendingConnection] = set()
        self._group = asyncio.TaskGroup()
        self._pause: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Start to accept connections."""
        self._loop = asyncio.get_running_loop()
        await self._group.__aenter__()
        self._listening.setblocking(False)
        self._loop.add_reader(self._listening, self._accept)

    def close(self) -> None:
        """Accept no further connections."""
        self._loop.remove_reader(self._listening)
        if self._pause is not None:
            self._pause.cancel()
        self._listening.close()
        for arrival in list(self._arriving):
            arrival.abort()

    async def wait_closed(self) -> None:
        """Wait until `close` has finished."""
        await self._group.__aexit__(None, None, None)

    def _accept(self) -> None:
        for _ in range(self._connections.limits.accepted_at_once):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._make_room(error)
                return
            accepted.setblocking(False)
            local = None
            with suppress(OSError):  # it may be closed already
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                local = accepted.getsockname()[0]
            arrival = _PendingConnection(accepted)
            slot = self._connections.admit(address[0], arrival, local=local)
            arrival.task = self._group.create_task(self._connect(arrival, slot))
            self._arriving.add(arrival)
            arrival.task.add_done_callback(partial(self._arrived, arrival, slot))

    def _make_room(self, error: OSError) -> None:
        """Free some descriptors and pause: the kernel would report the waiting connection again and again."""
        log.warning("no connection can be accepted for %g s: %s", PAUSE_SECONDS, error.strerror)
        for _ in range(EVICTED_AT_ONCE):
            self._connections.evict()
        self._loop.remove_reader(self._listening)
        self._pause = self._loop.call_later(PAUSE_SECONDS, self._loop.add_reader, self._listening, self._accept)

    async def _connect(self, arrival: "_PendingConnection", slot: ConnectionSlot) -> None:
        def make() -> asyncio.BaseProtocol:
            arrival.handed_over = True
            return self._make(slot)

        try:
            await self._loop.connect_accepted_socket(
                make,
                arrival.accepted,
                ssl=self._tls,
                ssl_shutdown_timeout=TLS_CLOSE_SECONDS if self._tls else None,
            )
        except Exception as error:
            # A handshake failed, or the client has disconnected; nothing to report.
            log.debug("a connection was not established: %s", error)

    def _arrived(self, arrival: "_PendingConnection", slot: ConnectionSlot, _: asyncio.Task[None]) -> None:
        self._arriving.discard(arrival)
        if slot.peer is arrival:
            # It was closed before it was established.
            slot.release()
        if not arrival.handed_over:
            arrival.accepted.close()


class _PendingConnection:
    """A connection that is not established yet: with TLS, its handshake is in progress."""

    busy = False

    def __init__(self, accepted: socket.socket) -> None:
        self.accepted = accepted
        self.task: asyncio.Task[None] | None = None
        self.handed_over = False
        """The socket belongs to a transport."""

    def overdue(self, now: float, seconds: float) -> bool:
        return False

    def leave(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self.task is not None:
            self.task.cancel()
