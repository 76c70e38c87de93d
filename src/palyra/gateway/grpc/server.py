"""The gRPC server: it listens, and passes each call to its method."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress

from palyra.core.errors import Unavailable
from palyra.gateway.allowed_hosts import AllowedHosts, RequestOrigin
from palyra.gateway.connections import ConnectionBudget, ConnectionSlot
from palyra.gateway.error_status import GrpcStatus
from palyra.gateway.grpc import standard_services
from palyra.gateway.grpc.connection import GrpcConnection
from palyra.gateway.grpc.methods import Handler, grpc_error
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.grpc.server_call import ServerCall
from palyra.gateway.listener import Listener

SERVICE = pb.DESCRIPTOR.services_by_name["GatewayService"].full_name
BACKLOG = 1_024
LINGER_SECONDS = 0.5
"""How long clients have to read the last output of a daemon that stops."""

log = logging.getLogger(__name__)


class PortInUse(Unavailable):
    """The gRPC port is already in use."""


def port_taken(host: str, port: int) -> PortInUse:
    """Return the error for a port that is in use."""
    return PortInUse(
        f"Port {port} of {host} is already in use. Stop the program that uses it, or set another `port` "
        "in section [grpc] of the configuration."
    )


class GrpcServer:
    """Serves services on one address, together with the standard health service and reflection."""

    def __init__(
        self,
        services: Mapping[str, dict[str, Handler]],
        connections: ConnectionBudget,
        hosts: AllowedHosts,
        *,
        ready: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`services` has the handlers of each service, by its full name; `ready` returns the code of a problem."""
        self._health = standard_services.HealthService(tuple(services), ready=ready)
        offered = {**services, **self._health.services()}
        offered |= standard_services.reflection_service(tuple(offered))
        self._methods = {
            f"/{service}/{name}": handler for service, handlers in offered.items() for name, handler in handlers.items()
        }
        self._budget = connections
        self._hosts = hosts
        self._connections: set[GrpcConnection] = set()
        self._left = asyncio.Event()
        self._stopping = False
        self._serving: set[asyncio.Task[None]] = set()
        self._group = asyncio.TaskGroup()
        self._open = AsyncExitStack()

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Start to serve and return the port."""
        try:
            listening = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG
            )
        except OSError as error:
            raise port_taken(host, port) from error
        bound: int = listening.getsockname()[1]
        await self._open.enter_async_context(self._group)
        listener = Listener(listening, self._budget, self._connection, tls=tls)
        await listener.start()
        self._open.push_async_callback(listener.wait_closed)
        self._open.callback(listener.close)
        return bound

    async def stop(self, *, seconds: float) -> None:
        """Accept no further calls, and give those in progress this long to end."""
        self._stopping = True
        self._health.stop()
        for connection in list(self._connections):
            connection.go_away()
        if self._serving:
            await asyncio.wait(self._serving, timeout=seconds)
        for task in self._serving:
            task.cancel()
        await self._open.aclose()
        for connection in list(self._connections):
            connection.hang_up()
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while self._connections:
                    self._left.clear()
                    await self._left.wait()
        for connection in list(self._connections):
            connection.abort()

    def _connection(self, slot: ConnectionSlot) -> GrpcConnection:
        return GrpcConnection(self._accept, slot=slot, made=self._made, lost=self._lost)

    def _made(self, connection: GrpcConnection) -> None:
        if self._stopping:
            connection.abort()
        else:
            self._connections.add(connection)

    def _lost(self, connection: GrpcConnection) -> None:
        self._connections.discard(connection)
        self._left.set()

    def _accept(self, call: ServerCall) -> None:
        call.task = task = self._group.create_task(self._serve(call))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, call: ServerCall) -> None:
        """Serve a call to its end, whatever that is. An error raised from here would end the daemon."""
        serve = self._methods.get(call.path)
        try:
            async with asyncio.timeout(call.seconds):
                self._hosts.check(_request_origin(call))
                if serve is None:
                    call.leave(GrpcStatus.UNIMPLEMENTED, "Unknown method.")
                else:
                    await serve(call)
        except TimeoutError:
            # Pending output is too late as well.
            call.leave(GrpcStatus.DEADLINE_EXCEEDED, "The deadline of the call has passed.")
        except asyncio.CancelledError:
            # The caller has left, or the daemon stops; in the second case the caller gets a status, if it still reads.
            call.leave(GrpcStatus.UNAVAILABLE, "The daemon is stopping.")
        except Exception as error:
            call.leave(*grpc_error(error))


def _request_origin(call: ServerCall) -> RequestOrigin:
    text = call.metadata
    host = text.get(":authority") or text.get("host")
    return RequestOrigin(host, text.get("origin"), text.get("sec-fetch-site"), text.get(":scheme", ""), call.slot.local)
