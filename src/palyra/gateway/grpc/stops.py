"""Emergency stops over gRPC."""

from palyra.core.ids import PrincipalId
from palyra.gateway.grpc.convert import to_message, to_messages
from palyra.gateway.grpc.methods import Handler, Methods
from palyra.gateway.grpc.pb import stops_pb2 as pb
from palyra.runs.services.emergency_stops import StopService

SERVICE = pb.DESCRIPTOR.services_by_name["StopService"].full_name


class StopMethods:
    """The methods that stop work and resume it."""

    def __init__(self, stops: StopService) -> None:
        self._stops = stops

    def handlers(self, methods: Methods) -> dict[str, Handler]:
        return {
            "ListStops": methods.unary(self.list_stops, pb.ListStopsRequest),
            "StopOwn": methods.unary(self.stop_own, pb.StopOwnRequest, need="write"),
            "ResumeOwn": methods.unary(self.resume_own, pb.ResumeOwnRequest, need="write"),
            "StopAll": methods.unary(self.stop_all, pb.StopAllRequest, need="admin"),
            "ResumeAll": methods.unary(self.resume_all, pb.ResumeAllRequest, need="admin"),
        }

    async def list_stops(self, request: pb.ListStopsRequest, principal: PrincipalId) -> pb.ListStopsResponse:
        return pb.ListStopsResponse(stops=to_messages(pb.Stop, self._stops.covering(principal)))

    async def stop_own(self, request: pb.StopOwnRequest, principal: PrincipalId) -> pb.StopResponse:
        stopped = await self._stops.stop(principal, principal=principal, reason=request.reason)
        return pb.StopResponse(stop=to_message(pb.Stop, stopped.stop), cancelled_runs=stopped.runs)

    async def resume_own(self, request: pb.ResumeOwnRequest, principal: PrincipalId) -> pb.ResumeResponse:
        resumed = await self._stops.resume(principal, principal=principal, admin=False)
        stops = self._stops.covering(principal)
        return pb.ResumeResponse(resumed=to_messages(pb.Stop, resumed), stops=to_messages(pb.Stop, stops))

    async def stop_all(self, request: pb.StopAllRequest, principal: PrincipalId) -> pb.StopResponse:
        stopped = await self._stops.stop(principal, principal=request.principal or None, reason=request.reason)
        return pb.StopResponse(stop=to_message(pb.Stop, stopped.stop), cancelled_runs=stopped.runs)

    async def resume_all(self, request: pb.ResumeAllRequest, principal: PrincipalId) -> pb.ResumeResponse:
        resumed = await self._stops.resume(
            principal, principal=request.principal or None, admin=True, remove_file=request.remove_file
        )
        return pb.ResumeResponse(
            resumed=to_messages(pb.Stop, resumed), stops=to_messages(pb.Stop, self._stops.in_force)
        )
