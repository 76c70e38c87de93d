"""Approvals over HTTP: approval requests, answers, and grants."""

from collections.abc import AsyncGenerator
from contextlib import ExitStack
from datetime import timedelta

import msgspec
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp

from palyra.core.ids import PrincipalId
from palyra.core.message import AcceptedMessage
from palyra.core.policy.approval import Approval
from palyra.gateway.approval_export import chained
from palyra.gateway.cursor import from_approval, from_grant, page, to_position
from palyra.gateway.http.declaration import Routes, operation
from palyra.gateway.http.download import StreamedDownload
from palyra.gateway.http.messages import cursor, flag, number
from palyra.gateway.http.operation import CURSOR, EVENTS, Parameter, page_limit
from palyra.gateway.records.approvals import (
    ApprovalAnswerRequest,
    ApprovalPage,
    ApprovalResponse,
    GrantPage,
    GrantResponse,
)
from palyra.gateway.stream_limit import StreamLimiter
from palyra.runs.services.approval_watch import ApprovalWatch
from palyra.runs.services.approvals import ApprovalService
from palyra.runs.services.intake import MessageIntake

NDJSON = "application/x-ndjson"
LIMIT = page_limit(50)
GRANT_LIMIT = page_limit(100)
_encode = msgspec.json.Encoder()
ONLY_OPEN = Parameter("open", "boolean", "Only approvals that wait for an answer.", default=False)


class ApprovalRoutes(Routes):
    """The operations that concern approvals and grants."""

    def __init__(
        self, approvals: ApprovalService, watch: ApprovalWatch, *, intake: MessageIntake, streams: StreamLimiter
    ) -> None:
        self._approvals = approvals
        self._intake = intake
        self._watch = watch
        self._streams = streams

    @operation("listApprovals", "GET /console/v1/approvals", query=(ONLY_OPEN, LIMIT, CURSOR))
    async def index(self, request: Request, principal: PrincipalId) -> ApprovalPage:
        """List approvals."""
        limit, before = number(request, LIMIT), cursor(request, to_position)
        matching_approvals = await self._approvals.page(
            principal, only_open=flag(request, "open"), before=before, limit=limit + 1
        )
        approvals, following = page(matching_approvals, limit, from_approval)
        return ApprovalPage(approvals=approvals, next_cursor=following)

    @operation("followApprovals", "GET /console/v1/approvals/events", media=EVENTS, answer=Approval)
    async def events(self, principal: PrincipalId) -> ASGIApp:
        """Follow approval requests and answers."""
        position = ExitStack()
        position.enter_context(self._streams.slot(principal))
        return StreamingResponse(
            self._frames(principal, position),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    @operation("exportApprovals", "GET /console/v1/approvals/export", media=(NDJSON,))
    async def export(self, principal: PrincipalId) -> ASGIApp:
        """Download all approvals, each line chained to the one before it."""
        return StreamedDownload(chained(self._approvals, principal), media=NDJSON, name="approvals.ndjson")

    @operation("getApproval", "GET /console/v1/approvals/{approval_id}")
    async def show(self, principal: PrincipalId, approval_id: str) -> ApprovalResponse:
        """Show an approval."""
        return ApprovalResponse(approval=await self._approvals.get(principal, approval_id))

    @operation("revealApproval", "POST /console/v1/approvals/{approval_id}/reveal")
    async def reveal(self, principal: PrincipalId, approval_id: str) -> ApprovalResponse:
        """Show an approval with values in place of markers of sealed secrets."""
        return ApprovalResponse(approval=await self._approvals.reveal(principal, approval_id))

    @operation("resolveApproval", "POST /console/v1/approvals/{approval_id}/resolve")
    async def resolve(self, principal: PrincipalId, approval_id: str, body: ApprovalAnswerRequest) -> ApprovalResponse:
        """Answer an approval request."""
        resolved = await self._approvals.resolve(
            principal,
            approval_id,
            allow=body.decision == "allow",
            scope=body.scope,
            ttl=timedelta(seconds=body.ttl_seconds) if body.ttl_seconds is not None else None,
            reason=body.reason,
            arguments=body.arguments,
            pattern=body.pattern,
        )
        return ApprovalResponse(approval=resolved)

    @operation("reissueApproval", "POST /console/v1/approvals/{approval_id}/reissue", status=202)
    async def reissue(self, principal: PrincipalId, approval_id: str) -> AcceptedMessage:
        """Repeat an approval request that was not answered in time: a new run proposes the same call."""
        return await self._intake.reissue(principal, approval_id)

    @operation("listGrants", "GET /console/v1/grants", query=(GRANT_LIMIT, CURSOR))
    async def grants(self, request: Request, principal: PrincipalId) -> GrantPage:
        """List grants."""
        limit, before = number(request, GRANT_LIMIT), cursor(request, to_position)
        matching_grants = await self._approvals.grants(principal, before=before, limit=limit + 1)
        grants, following = page(matching_grants, limit, from_grant)
        return GrantPage(grants=grants, next_cursor=following)

    @operation("revokeGrant", "POST /console/v1/grants/{grant_id}/revoke")
    async def revoke(self, principal: PrincipalId, grant_id: str) -> GrantResponse:
        """Revoke a grant."""
        return GrantResponse(grant=await self._approvals.revoke(principal, grant_id))

    async def _frames(self, principal: PrincipalId, stack: ExitStack) -> AsyncGenerator[bytes, None]:
        with stack:
            async for news in self._watch.follow(principal):
                if not news:
                    yield b": still here\n\n"
                for one in news:
                    kind = "approval_requested" if one.decision is None else "approval_resolved"
                    yield b"event: " + kind.encode() + b"\ndata: " + _encode.encode(one) + b"\n\n"
