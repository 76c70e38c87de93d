"""The daemon's status over gRPC."""

from collections.abc import Awaitable, Callable

from palyra.gateway.auth import Auth
from palyra.gateway.grpc import convert
from palyra.gateway.grpc.methods import ANYBODYS_BYTES, Handler, authorization, public_method, read, reply
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.grpc.runs import PROTOCOL_VERSION
from palyra.gateway.grpc.server_call import ServerCall
from palyra.gateway.records.daemon import DaemonStatus
from palyra.gateway.visibility import visible_status


class HealthMethods:
    """GetHealth: the overall state for anyone, each part for callers with a token."""

    def __init__(
        self, auth: Auth, status: Callable[[], Awaitable[DaemonStatus]], *, ready: Callable[[], str | None]
    ) -> None:
        self._auth = auth
        self._status = status
        self._ready = ready

    def handlers(self) -> dict[str, Handler]:
        return {"GetHealth": public_method(self.get_health)}

    async def get_health(self, call: ServerCall) -> None:
        """Report the status of each part."""
        request = await read(call, pb.GetHealthRequest, maximum=ANYBODYS_BYTES)
        if request.parts:
            holder = await self._auth.admit(authorization(call), slot=call.slot)
            status = visible_status(await self._status(), holder)
            health = convert.to_message(pb.GetHealthResponse, status)
            health.status = next((part.status for part in status.parts if part.status != "ok"), "ok")
        else:
            code = self._ready()
            health = pb.GetHealthResponse(status="ok" if code is None else "not_ready", storage=code)
        health.protocol_version = PROTOCOL_VERSION
        await reply(call, health)
