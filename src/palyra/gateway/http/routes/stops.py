"""Emergency stops over HTTP: each principal for their own work, an administrator for all."""

from msgspec import Struct
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


class OwnResumeRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The caller's own work is to be resumed."""


class StopRoutes:
    """The operations that stop work and resume it."""

    def __init__(self, stops: StopService) -> None:
        self._stops = stops

    def operations(self) -> list[Operation]:
        return [
            Operation("GET", "/console/v1/stops", self.own, "Say what stops your work.", answer=StopPage),
            Operation(
                "POST",
                "/console/v1/stop",
                self.stop_own,
                "Stop all of your own work.",
                need="write",
                body=OwnStopRequest,
                answer=StopResponse,
            ),
            Operation(
                "POST",
                "/console/v1/resume",
                self.resume_own,
                "Let your own work go on.",
                need="write",
                body=OwnResumeRequest,
                answer=ResumeResponse,
            ),
            Operation("GET", "/admin/v1/stops", self.index, "Say what is stopped.", need="admin", answer=StopPage),
            Operation(
                "POST",
                "/admin/v1/stop",
                self.stop,
                "Stop all work, or that of one principal.",
                need="admin",
                body=StopRequest,
                answer=StopResponse,
            ),
            Operation(
                "POST",
                "/admin/v1/resume",
                self.resume,
                "Let work go on.",
                need="admin",
                body=ResumeRequest,
                answer=ResumeResponse,
            ),
        ]

    async def own(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(StopPage(stops=list(self._stops.covering(principal))))

    async def stop_own(self, request: Request, principal: PrincipalId) -> Response:
        asked = await read_body(request, OwnStopRequest)
        halted = await self._stops.stop(principal, principal=principal, reason=asked.reason)
        return json_response(StopResponse(stop=halted.stop, runs=halted.runs))

    async def resume_own(self, request: Request, principal: PrincipalId) -> Response:
        await read_body(request, OwnResumeRequest)
        lifted = await self._stops.resume(principal, principal=principal, admin=False)
        return json_response(ResumeResponse(lifted=list(lifted), stops=list(self._stops.covering(principal))))

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(StopPage(stops=list(self._stops.in_force)))

    async def stop(self, request: Request, principal: PrincipalId) -> Response:
        asked = await read_body(request, StopRequest)
        halted = await self._stops.stop(principal, principal=asked.principal, reason=asked.reason)
        return json_response(StopResponse(stop=halted.stop, runs=halted.runs))

    async def resume(self, request: Request, principal: PrincipalId) -> Response:
        asked = await read_body(request, ResumeRequest)
        lifted = await self._stops.resume(
            principal, principal=asked.principal, admin=True, remove_file=asked.remove_file
        )
        return json_response(ResumeResponse(lifted=list(lifted), stops=list(self._stops.in_force)))
