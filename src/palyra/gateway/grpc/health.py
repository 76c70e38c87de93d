"""How the daemon is, over gRPC."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import grpc

from palyra.core.version import VERSION
from palyra.gateway.auth import Auth
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.grpc.runs import PROTOCOL_VERSION
from palyra.gateway.grpc.serving import Context, Handler, authorization, fail, serialize


class PartHealth(Protocol):
    """How one part is."""

    @property
    def name(self) -> str: ...

    @property
    def status(self) -> str: ...

    @property
    def detail(self) -> str: ...


class Health(Protocol):
    """How all parts are."""

    @property
    def parts(self) -> Sequence[PartHealth]: ...


class HealthMethods:
    """GetHealth: the overall state for anybody, each part for those with a token."""

    def __init__(self, auth: Auth, status: Callable[[], Awaitable[Health]]) -> None:
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
            parts = (await self._status()).parts
        except Exception as error:
            await fail(context, error)
            return None
        return pb.GetHealthResponse(
            status=next((part.status for part in parts if part.status != "ok"), "ok"),
            version=VERSION,
            protocol_version=PROTOCOL_VERSION,
            parts=[
                pb.PartHealth(name=part.name, status=part.status, detail=part.detail) for part in parts if asked.parts
            ],
        )
