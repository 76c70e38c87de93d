"""What an operator looks at: status, and how the journal grows."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.gateway.auth import Auth
from palyra.gateway.http.operation import Operation
from palyra.gateway.http.wire import reply
from palyra.gateway.records import Status
from palyra.gateway.visibility import visible


class AdminRoutes:
    """The operations of an operator."""

    def __init__(
        self, auth: Auth, status: Callable[[], Awaitable[Status]], metrics: Callable[[], Awaitable[str]]
    ) -> None:
        self._auth = auth
        self._status = status
        self._metrics = metrics

    def operations(self) -> list[Operation]:
        return [
            Operation("GET", "/console/v1/status", self.status, "Say how the daemon is.", answer=Status),
            Operation("GET", "/admin/v1/status", self.status, "Say how the daemon is.", need="admin", answer=Status),
            Operation("GET", "/metrics", self.metrics, "Figures for Prometheus.", need="admin", media="text/plain"),
        ]

    async def status(self, request: Request, principal: PrincipalId) -> Response:
        """Say how each part is, as far as the caller may know."""
        holder = await self._auth.holder(request.headers.get("authorization"))
        return reply(visible(await self._status(), holder))

    async def metrics(self, request: Request, principal: PrincipalId) -> Response:
        """Give the figures."""
        return Response(await self._metrics(), media_type="text/plain; version=0.0.4")
