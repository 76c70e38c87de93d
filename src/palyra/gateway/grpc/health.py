"""How the daemon is, over gRPC."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from palyra.core.version import VERSION
from palyra.gateway.auth import Auth
from palyra.gateway.grpc import convert
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.grpc.runs import PROTOCOL_VERSION
from palyra.gateway.grpc.serving import Context, Handler, authorization, fail, serialize
from palyra.gateway.records import Status


class HealthMethods:
    """GetHealth: the overall state for anybody, each part for those with a token."""

    def __init__(self, auth: Auth, status: Callable[[], Awaitable[Status]]) -> None:
        self._auth = auth
        self._status = status

    def handlers(self) -> dict[str, Handler]:
        return {
            "GetHealth": grpc.unary_unary_rpc_method_handler(
                self.get_health,
                request_deserializer=pb.GetHealthRequest.FromString,
                response_serializer=serialize,
            )
        }

    async def get_health(self, asked: Any, context: Context) -> pb.GetHealthResponse | None:
        """Say how each part is."""
        try:
            if asked.parts:
                await self._auth.principal(authorization(context))
            status = await self._status()
        except Exception as error:
            await fail(context, error)
            return None
        health = convert.from_status(status) if asked.parts else pb.GetHealthResponse()
        health.status = next((part.status for part in status.parts if part.status != "ok"), "ok")
        health.version = VERSION
        health.protocol_version = PROTOCOL_VERSION
        return health
