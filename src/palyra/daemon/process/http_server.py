"""The HTTP server of a daemon."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from palyra.core.errors import PalyraError
from palyra.daemon.process.ports import tls_files
from palyra.gateway.allowed_hosts import AllowedHosts
from palyra.gateway.connections import ConnectionBudget, ConnectionSlot
from palyra.gateway.http import app
from palyra.gateway.http.protocol import BoundedProtocol, bounded
from palyra.gateway.listener import Listener
from palyra.runs.system import CurrentConfig
from palyra.settings import Settings

DRAIN_SECONDS = 5.0


class HttpServer(uvicorn.Server):
    """Uvicorn without its own signal handling and connection limits: the daemon and the shared budget do those."""

    def __init__(self, config: uvicorn.Config, connections: ConnectionBudget) -> None:
        super().__init__(config)
        self._connections = connections

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        self.servers = []
        for listening in sockets or ():
            listener = Listener(listening, self._connections, self._protocol, tls=self.config.ssl)
            await listener.start()
            self.servers.append(listener)  # type: ignore[arg-type]
        self.started = True

    def _protocol(self, slot: ConnectionSlot) -> BoundedProtocol:
        kind = cast(type[BoundedProtocol], self.config.http_protocol_class)
        protocol = kind(self.config, self.server_state, self.lifespan.state)
        protocol.slot = slot
        return protocol


def build_http_server(application: ASGIApp, config: CurrentConfig, connections: ConnectionBudget) -> HttpServer:
    """Return the server of an application, not yet started."""
    certificate, key = tls_files(config.now.http) or (None, None)
    options = uvicorn.Config(
        application,
        loop="none",
        http=bounded(lambda: config.now.gateway.write_timeout_seconds),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        # Streams end when the runs are parked; closed before that, they would end in the middle of a chunk.
        timeout_graceful_shutdown=int(DRAIN_SECONDS) + 2,
    )
    return HttpServer(options, connections)


def build_refusing_server(error: PalyraError, config: CurrentConfig, connections: ConnectionBudget) -> HttpServer:
    """Return the server of a daemon that is not ready: it answers every request with the error."""
    return build_http_server(app.refusing(error, hosts=allowed_hosts(config.now)), config, connections)


def allowed_hosts(settings: Settings) -> AllowedHosts:
    """Return the names by which clients may call this daemon."""
    http, grpc = settings.http, settings.grpc
    return AllowedHosts((*http.allowed_hosts, http.host, grpc.host), origins=http.allowed_origins)
