"""The gRPC server: its methods, health and reflection, and the limits of its messages."""

from collections.abc import Mapping

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from palyra.core.errors import Unavailable
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.grpc.serving import Handler

SERVICE = pb.DESCRIPTOR.services_by_name["GatewayService"].full_name
MAX_REQUEST_BYTES = 1024 * 1024
MAX_RESPONSE_BYTES = 4 * 1024 * 1024


class GrpcPortTaken(Unavailable):
    """The gRPC port is taken by another program."""


class GrpcServer:
    """Serves services on one address, with the standard health service and reflection beside them."""

    def __init__(self, services: Mapping[str, dict[str, Handler]]) -> None:
        """`services` has the handlers of each service, by its full name."""
        self._names = tuple(services)
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
                ("grpc.max_send_message_length", MAX_RESPONSE_BYTES),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ]
        )
        self._server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(name, handlers) for name, handlers in services.items())
        )
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self, host: str, port: int, *, tls: tuple[bytes, bytes] | None = None) -> int:
        """Begin to serve and return the port; with a private key and its certificate, over TLS."""
        at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if tls is None:
                bound = self._server.add_insecure_port(at)
            else:
                bound = self._server.add_secure_port(at, grpc.ssl_server_credentials([tls]))
        except RuntimeError as error:
            raise GrpcPortTaken(
                f"Port {port} of {host} can not be had. Stop the program that has it, "
                "or set another as `port` in section [grpc] of the configuration."
            ) from error
        await self._server.start()
        for name in ("", *self._names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return bound

    async def stop(self, *, seconds: float) -> None:
        """Take no further calls, and give those under way so long to end."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(seconds)
