"""How the daemon is, over gRPC."""

from collections.abc import Awaitable, Callable

from palyra.core.version import VERSION
from palyra.gateway.auth import Auth
from palyra.gateway.grpc import convert
from palyra.gateway.grpc.call import Call
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.grpc.runs import PROTOCOL_VERSION
from palyra.gateway.grpc.serving import ANYBODYS_BYTES, Handler, authorization, open_to_anybody, read, reply
from palyra.gateway.records import Status


class HealthMethods:
    """GetHealth: the overall state for anybody, each part for those with a token."""

    def __init__(self, auth: Auth, status: Callable[[], Awaitable[Status]]) -> None:
        self._auth = auth
        self._status = status

    def handlers(self) -> dict[str, Handler]:
        return {"GetHealth": open_to_anybody(self.get_health)}

    async def get_health(self, call: Call) -> None:
        """Say how each part is."""
        asked = await read(call, pb.GetHealthRequest, most=ANYBODYS_BYTES)
        if asked.parts:
            await self._auth.principal(authorization(call), slot=call.slot)
        status = await self._status()
        health = convert.from_status(status) if asked.parts else pb.GetHealthResponse()
        health.status = next((part.status for part in status.parts if part.status != "ok"), "ok")
        health.version = VERSION
        health.protocol_version = PROTOCOL_VERSION
        await reply(call, health)
