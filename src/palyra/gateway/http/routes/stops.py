"""Emergency stops over HTTP: each principal for their own work, an administrator for all."""

from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.core.stop import MAX_STOP_REASON_CHARS, EmergencyStop
from palyra.gateway.http.messages import json_response, read_body
from palyra.gateway.http.operation import Operation
from palyra.runs.services.emergency_stops import StopService

Reason = Annotated[str, Meta(max_length=MAX_STOP_REASON_CHARS)]


class OwnStopRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why the caller's own work is to stop."""

    reason: Reason = ""


class StopRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose work is to stop, and why."""

    principal: str | None = None
    """Everyone's if none is named."""
    reason: Reason = ""


class ResumeRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be resumed."""

    principal: str | None = None
    """The stop of one principal; if none is named, the stop of everything, and the caller's own."""
    remove_file: bool = False
    """Remove the file STOP from the home folder first, if it exists."""


class OwnResumeRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The caller's own work is to be resumed."""


class StopList(Struct, frozen=True, kw_only=True):
    """The stops in force, the first one first."""

    stops: list[EmergencyStop]


class StopResponse(Struct, frozen=True, kw_only=True):
    """The stop in force now, and how many active runs it ended."""

    stop: EmergencyStop
    runs: int


class ResumeResponse(Struct, frozen=True, kw_only=True):
    """What was lifted, and what is still stopped."""

    lifted: list[EmergencyStop]
    stops: list[EmergencyStop]


class StopRoutes:
    """The operations that stop work and resume it."""

    def __init__(self, stops: StopService) -> None:
        self._stops = stops

    def operations(self) -> list[Operation]:
        return [
            Operation("GET", "/console/v1/stops", self.own, "Say what stops your work.", answer=StopList),
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
            Operation("GET", "/admin/v1/stops", self.index, "Say what is stopped.", need="admin", answer=StopList),
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
        return json_response(StopList(stops=list(self._stops.covering(principal))))

    async def stop_own(self, request: Request, principal: PrincipalId) -> Response:
        asked = await read_body(request, OwnStopRequest)
        halted = await self._stops.stop(principal, principal=principal, reason=asked.reason)
        return json_response(StopResponse(stop=halted.stop, runs=halted.runs))

    async def resume_own(self, request: Request, principal: PrincipalId) -> Response:
        await read_body(request, OwnResumeRequest)
        lifted = await self._stops.resume(principal, principal=principal, admin=False)
        return json_response(ResumeResponse(lifted=list(lifted), stops=list(self._stops.covering(principal))))

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(StopList(stops=list(self._stops.standing)))

    async def stop(self, request: Request, principal: PrincipalId) -> Response:
        asked = await read_body(request, StopRequest)
        halted = await self._stops.stop(principal, principal=asked.principal, reason=asked.reason)
        return json_response(StopResponse(stop=halted.stop, runs=halted.runs))

    async def resume(self, request: Request, principal: PrincipalId) -> Response:
        asked = await read_body(request, ResumeRequest)
        lifted = await self._stops.resume(
            principal, principal=asked.principal, admin=True, remove_file=asked.remove_file
        )
        return json_response(ResumeResponse(lifted=list(lifted), stops=list(self._stops.standing)))
