"""Emergency stops over HTTP: each principal for their own work, an administrator for all."""

from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.gateway.http.messages import json_response, read_body
from palyra.gateway.http.operation import Operation
from palyra.gateway.records.stops import (
    OwnStopRequest,
    ResumeRequest,
    ResumeResponse,
    StopPage,
    StopRequest,
    StopResponse,
)
from palyra.runs.services.emergency_stops import StopService


class StopRoutes:
    """The operations that stop work and resume it."""

    def __init__(self, stops: StopService) -> None:
        self._stops = stops

    def operations(self) -> list[Operation]:
        own, every = "/console/v1/stops", "/admin/v1/stops"
        return [
            Operation("listStops", "GET", own, self.own, "List the stops of the caller's work.", answer=StopPage),
            Operation(
                "createStop",
                "POST",
                own,
                self.stop_own,
                "Stop all of the caller's work.",
                need="write",
                body=OwnStopRequest,
                answer=StopResponse,
                status=201,
            ),
            Operation(
                "resumeWork",
                "POST",
                f"{own}/resume",
                self.resume_own,
                "Resume the caller's work.",
                need="write",
                answer=ResumeResponse,
            ),
            Operation("adminListStops", "GET", every, self.index, "List all stops.", need="admin", answer=StopPage),
            Operation(
                "adminCreateStop",
                "POST",
                every,
                self.stop,
                "Stop all work, or that of one principal.",
                need="admin",
                body=StopRequest,
                answer=StopResponse,
                status=201,
            ),
            Operation(
                "adminResumeWork",
                "POST",
                f"{every}/resume",
                self.resume,
                "Resume all work, or that of one principal.",
                need="admin",
                body=ResumeRequest,
                answer=ResumeResponse,
            ),
        ]

    async def own(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(StopPage(stops=list(self._stops.covering(principal))))

    async def stop_own(self, request: Request, principal: PrincipalId) -> Response:
        requested_request = await read_body(request, OwnStopRequest)
        halted = await self._stops.stop(principal, principal=principal, reason=requested_request.reason)
        return json_response(StopResponse(stop=halted.stop, cancelled_runs=halted.runs), status=201)

    async def resume_own(self, request: Request, principal: PrincipalId) -> Response:
        lifted = await self._stops.resume(principal, principal=principal, admin=False)
        return json_response(ResumeResponse(resumed=list(lifted), stops=list(self._stops.covering(principal))))

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(StopPage(stops=list(self._stops.in_force)))

    async def stop(self, request: Request, principal: PrincipalId) -> Response:
        requested_request = await read_body(request, StopRequest)
        halted = await self._stops.stop(
            principal, principal=requested_request.principal, reason=requested_request.reason
        )
        return json_response(StopResponse(stop=halted.stop, cancelled_runs=halted.runs), status=201)

    async def resume(self, request: Request, principal: PrincipalId) -> Response:
        requested_request = await read_body(request, ResumeRequest)
        lifted = await self._stops.resume(
            principal, principal=requested_request.principal, admin=True, remove_file=requested_request.remove_file
        )
        return json_response(ResumeResponse(resumed=list(lifted), stops=list(self._stops.in_force)))
