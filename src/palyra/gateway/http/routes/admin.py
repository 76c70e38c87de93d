"""The operator's routes: status and metrics."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.gateway.auth import Auth
from palyra.gateway.http.messages import json_response
from palyra.gateway.http.operation import Operation
from palyra.gateway.records.daemon import DaemonStatus
from palyra.gateway.visibility import visible_status


class AdminRoutes:
    """The operations of an operator."""

    def __init__(
        self, auth: Auth, status: Callable[[], Awaitable[DaemonStatus]], metrics: Callable[[], Awaitable[str]]
    ) -> None:
        self._auth = auth
        self._status = status
        self._metrics = metrics

    def operations(self) -> list[Operation]:
        about = "Show the status of the daemon."
        return [
            Operation("getStatus", "GET", "/console/v1/status", self.status, about, answer=DaemonStatus),
            Operation(
                "adminGetStatus", "GET", "/admin/v1/status", self.status, about, need="admin", answer=DaemonStatus
            ),
            Operation(
                "getMetrics",
                "GET",
                "/metrics",
                self.metrics,
                "Metrics for Prometheus.",
                need="admin",
                media=("text/plain",),
            ),
        ]

    async def status(self, request: Request, principal: PrincipalId) -> Response:
        """Return the status of each part, as far as the caller may see it."""
        holder = await self._auth.holder(request.headers.get("authorization"))
        return json_response(visible_status(await self._status(), holder))

    async def metrics(self, request: Request, principal: PrincipalId) -> Response:
        """Return the metrics."""
        return Response(await self._metrics(), media_type="text/plain; version=0.0.4")
