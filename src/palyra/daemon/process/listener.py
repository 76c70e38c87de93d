"""The addresses of a daemon: the socket of its HTTP API, and the record from which clients learn both addresses."""

import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime

from palyra.daemon.process import connection_limits
from palyra.daemon.process.home_setup import Announcement
from palyra.daemon.process.ports import address, listen, tls_context, tls_files
from palyra.gateway.connections import ConnectionBudget
from palyra.gateway.grpc.server import GrpcServer, PortInUse
from palyra.home import Home
from palyra.runs.system import System
from palyra.settings import DEFAULT_PORT, Settings

GRPC_PORT = 7718


class Addresses:
    """The addresses of both APIs; that of gRPC is empty until its server listens."""

    def __init__(self, http: str) -> None:
        self.http = http
        self.grpc = ""

    def ports(self) -> tuple[int, int]:
        """Return both ports; 0 for gRPC until its server listens."""
        return int(self.http.rpartition(":")[2]), int(self.grpc.rpartition(":")[2] or 0)


@dataclass(frozen=True, slots=True)
class ListenerParts:
    """Where clients connect."""

    socket: socket.socket
    """The socket of the HTTP API. Connections wait on it until a server accepts them."""
    addresses: Addresses
    announcement: Announcement
    connections: ConnectionBudget
    started_at: datetime


def open_listener(home: Home, system: System, stack: AsyncExitStack) -> ListenerParts:
    """Listen on the HTTP port until the stack is closed; the address is not published yet."""
    http = system.config.now.http
    listening = stack.enter_context(listen(http.host, http.port, usual=DEFAULT_PORT))
    certificate, _ = tls_files(http) or (None, None)
    addresses = Addresses(address(listening, tls=certificate is not None))
    started_at = system.clock.now()
    announcement = Announcement(home, addresses.http, certificate=certificate, started_at=started_at)
    stack.callback(announcement.withdraw)
    connections = connection_limits.build(system.config, clock=system.clock)
    return ListenerParts(listening, addresses, announcement, connections, started_at)


async def start_grpc(server: GrpcServer, addresses: Addresses, settings: Settings, stack: AsyncExitStack) -> None:
    """Start the gRPC server and note its address; it is stopped when the stack is closed."""
    host, port = settings.grpc.host, settings.grpc.port
    tls = tls_context(settings.http)
    if port is not None:
        port = await server.start(host, port, tls=tls)
    else:
        try:
            port = await server.start(host, GRPC_PORT, tls=tls)
        except PortInUse:
            port = await server.start(host, 0, tls=tls)
    addresses.grpc = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    stack.push_async_callback(server.stop, seconds=0.0)
