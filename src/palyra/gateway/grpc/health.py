"""How the daemon is, over gRPC."""

from collections.abc import Awaitable, Callable

from palyra.gateway.auth import Auth
from palyra.gateway.grpc import convert
from palyra.gateway.grpc.call import Call
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.grpc.runs import PROTOCOL_VERSION
from palyra.gateway.grpc.serving import ANYBODYS_BYTES, Handler, authorization, open_to_anybody, read, reply
from palyra.gateway.records import Status
from palyra.gateway.visibility import visible


class HealthMethods:
    """GetHealth: the overall state for anybody, each part for those with a token."""

    def __init__(self, auth: Auth, status: Callable[[], Awaitable[Status]], *, ready: Callable[[], str | None]) -> None:
        self._auth = auth
        self._status = status
        self._ready = ready

    def handlers(self) -> dict[str, Handler]:
        return {"GetHealth": open_to_anybody(self.get_health)}

    async def get_health(self, call: Call) -> None:
        """Say how each part is."""
        asked = await read(call, pb.GetHealthRequest, most=ANYBODYS_BYTES)
        if asked.parts:
            holder = await self._auth.admit(authorization(call), slot=call.slot)
            status = visible(await self._status(), holder)
            health = convert.from_status(status)
            health.status = next((part.status for part in status.parts if part.status != "ok"), "ok")
        else:
            code = self._ready()
            health = pb.GetHealthResponse(status="ok" if code is None else "not_ready", storage=code)
        health.protocol_version = PROTOCOL_VERSION
        await reply(call, health)
