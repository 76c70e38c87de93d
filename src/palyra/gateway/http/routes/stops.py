"""Emergency stops over HTTP: each principal for their own work, an administrator for all."""

from palyra.core.ids import PrincipalId
from palyra.gateway.http.declaration import Routes, operation
from palyra.gateway.records.stops import (
    OwnStopRequest,
    ResumeRequest,
    ResumeResponse,
    StopPage,
    StopRequest,
    StopResponse,
)
from palyra.runs.services.emergency_stops import StopService


class StopRoutes(Routes):
    """The operations that stop work and resume it."""

    def __init__(self, stops: StopService) -> None:
        self._stops = stops

    @operation("listStops", "GET /console/v1/stops")
    async def own(self, principal: PrincipalId) -> StopPage:
        """List the stops of the caller's work."""
        return StopPage(stops=list(self._stops.covering(principal)))

    @operation("createStop", "POST /console/v1/stops", status=201)
    async def stop_own(self, principal: PrincipalId, body: OwnStopRequest) -> StopResponse:
        """Stop all of the caller's work."""
        halted = await self._stops.stop(principal, principal=principal, reason=body.reason)
        return StopResponse(stop=halted.stop, cancelled_runs=halted.runs)

    @operation("resumeWork", "POST /console/v1/stops/resume")
    async def resume_own(self, principal: PrincipalId) -> ResumeResponse:
        """Resume the caller's work."""
        lifted = await self._stops.resume(principal, principal=principal, admin=False)
        return ResumeResponse(resumed=list(lifted), stops=list(self._stops.covering(principal)))

    @operation("adminListStops", "GET /admin/v1/stops", need="admin")
    async def index(self) -> StopPage:
        """List all stops."""
        return StopPage(stops=list(self._stops.in_force))

    @operation("adminCreateStop", "POST /admin/v1/stops", need="admin", status=201)
    async def stop(self, principal: PrincipalId, body: StopRequest) -> StopResponse:
        """Stop all work, or that of one principal."""
        halted = await self._stops.stop(principal, principal=body.principal, reason=body.reason)
        return StopResponse(stop=halted.stop, cancelled_runs=halted.runs)

    @operation("adminResumeWork", "POST /admin/v1/stops/resume", need="admin")
    async def resume(self, principal: PrincipalId, body: ResumeRequest) -> ResumeResponse:
        """Resume all work, or that of one principal."""
        lifted = await self._stops.resume(principal, principal=body.principal, admin=True, remove_file=body.remove_file)
        return ResumeResponse(resumed=list(lifted), stops=list(self._stops.in_force))
