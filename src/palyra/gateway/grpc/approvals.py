"""Approvals over gRPC: approval requests, answers, and grants."""

from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta

import msgspec

from palyra.core.ids import PrincipalId
from palyra.core.policy.approval import ApprovalScope
from palyra.core.tool import JsonObject
from palyra.gateway.approval_export import chained
from palyra.gateway.cursor import from_approval, from_grant, page, to_position
from palyra.gateway.error_status import RequestInvalid
from palyra.gateway.grpc.convert import to_message, to_messages
from palyra.gateway.grpc.methods import Handler, Methods, send
from palyra.gateway.grpc.pb import approvals_pb2 as pb
from palyra.gateway.grpc.server_call import ServerCall
from palyra.runs.services.approval_watch import ApprovalWatch
from palyra.runs.services.approvals import ApprovalService
from palyra.runs.services.intake import MessageIntake

SERVICE = pb.DESCRIPTOR.services_by_name["ApprovalsService"].full_name
DEFAULT_LIMIT = 50
MAX_LIMIT = 200
LINES_BYTES = 256 * 1024
_arguments = msgspec.json.Decoder(JsonObject)


class ApprovalMethods:
    """The methods that concern approvals and grants."""

    def __init__(
        self, approvals: ApprovalService, watch: ApprovalWatch, *, intake: MessageIntake, timeout: Callable[[], float]
    ) -> None:
        """`timeout` returns how many seconds a message may wait for its reader; it is called each time."""
        self._approvals = approvals
        self._intake = intake
        self._watch = watch
        self._timeout = timeout

    def handlers(self, methods: Methods) -> dict[str, Handler]:
        return {
            "ListApprovals": methods.unary(self.list_approvals, pb.ListApprovalsRequest),
            "GetApproval": methods.unary(self.get_approval, pb.GetApprovalRequest),
            "RevealApproval": methods.unary(self.reveal_approval, pb.RevealApprovalRequest, need="write"),
            "ResolveApproval": methods.unary(self.resolve_approval, pb.ResolveApprovalRequest, need="write"),
            "ReissueApproval": methods.unary(self.reissue_approval, pb.ReissueApprovalRequest, need="write"),
            "WatchApprovals": methods.stream(self.watch_approvals, pb.WatchApprovalsRequest),
            "ExportApprovals": methods.stream(self.export_approvals, pb.ExportApprovalsRequest),
            "ListGrants": methods.unary(self.list_grants, pb.ListGrantsRequest),
            "RevokeGrant": methods.unary(self.revoke_grant, pb.RevokeGrantRequest, need="write"),
        }

    async def list_approvals(
        self, request: pb.ListApprovalsRequest, principal: PrincipalId
    ) -> pb.ListApprovalsResponse:
        limit = _limit(request.limit)
        before = to_position(request.cursor) if request.cursor else None
        approvals = await self._approvals.page(principal, only_open=request.only_open, before=before, limit=limit + 1)
        listed, following = page(approvals, limit, from_approval)
        return pb.ListApprovalsResponse(approvals=to_messages(pb.Approval, listed), next_cursor=following)

    async def get_approval(self, request: pb.GetApprovalRequest, principal: PrincipalId) -> pb.GetApprovalResponse:
        approval = await self._approvals.get(principal, request.approval_id)
        return pb.GetApprovalResponse(approval=to_message(pb.Approval, approval))

    async def reveal_approval(
        self, request: pb.RevealApprovalRequest, principal: PrincipalId
    ) -> pb.RevealApprovalResponse:
        approval = await self._approvals.reveal(principal, request.approval_id)
        return pb.RevealApprovalResponse(approval=to_message(pb.Approval, approval))

    async def resolve_approval(
        self, request: pb.ResolveApprovalRequest, principal: PrincipalId
    ) -> pb.ResolveApprovalResponse:
        resolved = await self._approvals.resolve(
            principal,
            request.approval_id,
            allow=request.allow,
            scope=_scope(request.scope),
            ttl=_ttl(request.ttl_seconds),
            reason=request.reason,
            arguments=_object(request.arguments) if request.arguments else None,
            pattern=request.pattern,
        )
        return pb.ResolveApprovalResponse(approval=to_message(pb.Approval, resolved))

    async def reissue_approval(
        self, request: pb.ReissueApprovalRequest, principal: PrincipalId
    ) -> pb.ReissueApprovalResponse:
        return to_message(pb.ReissueApprovalResponse, await self._intake.reissue(principal, request.approval_id))

    async def watch_approvals(
        self, request: pb.WatchApprovalsRequest, call: ServerCall, principal: PrincipalId
    ) -> None:
        async with aclosing(self._watch.follow(principal)) as news:
            async for some in news:
                if some:
                    answer = pb.WatchApprovalsResponse(approvals=to_messages(pb.Approval, some))
                    await send(call, answer, seconds=self._timeout())

    async def export_approvals(
        self, request: pb.ExportApprovalsRequest, call: ServerCall, principal: PrincipalId
    ) -> None:
        waiting = b""
        async with aclosing(chained(self._approvals, principal)) as lines:
            async for line in lines:
                waiting += line
                if len(waiting) >= LINES_BYTES:
                    await send(call, pb.ExportApprovalsResponse(lines=waiting), seconds=self._timeout())
                    waiting = b""
        await send(call, pb.ExportApprovalsResponse(lines=waiting), seconds=self._timeout())

    async def list_grants(self, request: pb.ListGrantsRequest, principal: PrincipalId) -> pb.ListGrantsResponse:
        limit = _limit(request.limit)
        before = to_position(request.cursor) if request.cursor else None
        grants = await self._approvals.grants(principal, before=before, limit=limit + 1)
        listed, following = page(grants, limit, from_grant)
        return pb.ListGrantsResponse(grants=to_messages(pb.Grant, listed), next_cursor=following)

    async def revoke_grant(self, request: pb.RevokeGrantRequest, principal: PrincipalId) -> pb.RevokeGrantResponse:
        return pb.RevokeGrantResponse(
            grant=to_message(pb.Grant, await self._approvals.revoke(principal, request.grant_id))
        )


def _limit(requested: int) -> int:
    if not 0 <= requested <= MAX_LIMIT:
        raise RequestInvalid(f"limit must be between 1 and {MAX_LIMIT}; 0 means {DEFAULT_LIMIT}.")
    return requested or DEFAULT_LIMIT


def _scope(text: str) -> ApprovalScope:
    try:
        return ApprovalScope(text or ApprovalScope.ONCE)
    except ValueError:
        raise RequestInvalid("scope must be once, session, timeboxed or always.") from None


def _ttl(seconds: int) -> timedelta | None:
    if not 0 <= seconds <= 10**9:
        raise RequestInvalid("ttl_seconds must be a number of seconds.")
    return timedelta(seconds=seconds) if seconds else None


def _object(raw: bytes) -> JsonObject:
    try:
        return _arguments.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RequestInvalid("arguments must be a JSON object.") from None
