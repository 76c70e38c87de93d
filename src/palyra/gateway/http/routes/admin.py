"""The operator's routes: status and metrics."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from palyra.gateway.auth import Auth
from palyra.gateway.http.declaration import Routes, operation
from palyra.gateway.records.daemon import DaemonStatus
from palyra.gateway.visibility import visible_status


class AdminRoutes(Routes):
    """The operations of an operator."""

    def __init__(
        self, auth: Auth, status: Callable[[], Awaitable[DaemonStatus]], metrics: Callable[[], Awaitable[str]]
    ) -> None:
        self._auth = auth
        self._status = status
        self._metrics = metrics

    @operation("getStatus", "GET /console/v1/status")
    @operation("adminGetStatus", "GET /admin/v1/status", need="admin")
    async def status(self, request: Request) -> DaemonStatus:
        """Show the status of the daemon."""
        holder = await self._auth.holder(request.headers.get("authorization"))
        return visible_status(await self._status(), holder)

    @operation("getMetrics", "GET /metrics", need="admin", media=("text/plain",))
    async def metrics(self) -> Response:
        """Metrics for Prometheus."""
        return Response(await self._metrics(), media_type="text/plain; version=0.0.4")
