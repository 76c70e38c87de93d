"""The brake over HTTP: everybody pulls it for their own work, an administrator for all."""

from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.core.stop import MAX_STOP_REASON_CHARS, Stop
from palyra.gateway.http.operation import Operation
from palyra.gateway.http.wire import body, reply
from palyra.runs.stops import Stops

Reason = Annotated[str, Meta(max_length=MAX_STOP_REASON_CHARS)]


class OwnStopRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why the caller's own work is to stop."""

    reason: Reason = ""


class StopRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose work is to stop, and why."""

    principal: str | None = None
    """Everybody's if nobody is named."""
    reason: Reason = ""


class ResumeRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to go on."""

    principal: str | None = None
    """What was stopped for one principal; if nobody is named, what was stopped for everybody, and the caller's own."""
    remove_file: bool = False
    """Take the file STOP out of the home folder first, if it is there."""


class OwnResumeRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The caller's own work is to go on."""


class StopsAnswer(Struct, frozen=True, kw_only=True):
    """The stops that hold, the first one first."""

    stops: list[Stop]


class StopAnswer(Struct, frozen=True, kw_only=True):
    """The stop that holds now, and how many active runs it ended."""

    stop: Stop
    runs: int


class ResumeAnswer(Struct, frozen=True, kw_only=True):
    """What was lifted, and what still holds."""

    lifted: list[Stop]
    stops: list[Stop]


class StopRoutes:
    """The operations that stop work and let it go on."""

    def __init__(self, stops: Stops) -> None:
        self._stops = stops

    def operations(self) -> list[Operation]:
        return [
            Operation("GET", "/console/v1/stops", self.own, "Say what stops your work.", answer=StopsAnswer),
            Operation(
                "POST",
                "/console/v1/stop",
                self.stop_own,
                "Stop all of your own work.",
                need="write",
                body=OwnStopRequest,
                answer=StopAnswer,
            ),
            Operation(
                "POST",
                "/console/v1/resume",
                self.resume_own,
                "Let your own work go on.",
                need="write",
                body=OwnResumeRequest,
                answer=ResumeAnswer,
            ),
            Operation("GET", "/admin/v1/stops", self.index, "Say what is stopped.", need="admin", answer=StopsAnswer),
            Operation(
                "POST",
                "/admin/v1/stop",
                self.stop,
                "Stop all work, or that of one principal.",
                need="admin",
                body=StopRequest,
                answer=StopAnswer,
            ),
            Operation(
                "POST",
                "/admin/v1/resume",
                self.resume,
                "Let work go on.",
                need="admin",
                body=ResumeRequest,
                answer=ResumeAnswer,
            ),
        ]

    async def own(self, request: Request, principal: PrincipalId) -> Response:
        return reply(StopsAnswer(stops=list(self._stops.covering(principal))))

    async def stop_own(self, request: Request, principal: PrincipalId) -> Response:
        asked = await body(request, OwnStopRequest)
        halted = await self._stops.stop(principal, principal=principal, reason=asked.reason)
        return reply(StopAnswer(stop=halted.stop, runs=halted.runs))

    async def resume_own(self, request: Request, principal: PrincipalId) -> Response:
        await body(request, OwnResumeRequest)
        lifted = await self._stops.resume(principal, principal=principal, admin=False)
        return reply(ResumeAnswer(lifted=list(lifted), stops=list(self._stops.covering(principal))))

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        return reply(StopsAnswer(stops=list(self._stops.standing)))

    async def stop(self, request: Request, principal: PrincipalId) -> Response:
        asked = await body(request, StopRequest)
        halted = await self._stops.stop(principal, principal=asked.principal, reason=asked.reason)
        return reply(StopAnswer(stop=halted.stop, runs=halted.runs))

    async def resume(self, request: Request, principal: PrincipalId) -> Response:
        asked = await body(request, ResumeRequest)
        lifted = await self._stops.resume(
            principal, principal=asked.principal, admin=True, remove_file=asked.remove_file
        )
        return reply(ResumeAnswer(lifted=list(lifted), stops=list(self._stops.standing)))
