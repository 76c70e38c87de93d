"""Approvals over HTTP: approval requests, answers, and grants."""

from collections.abc import AsyncGenerator
from contextlib import ExitStack
from datetime import timedelta

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp

from palyra.core.ids import PrincipalId
from palyra.core.message import AcceptedMessage
from palyra.gateway.approval_export import chained
from palyra.gateway.cursor import from_approval, from_grant, page, to_position
from palyra.gateway.http.download import StreamedDownload
from palyra.gateway.http.messages import cursor, flag, json_response, number, read_body
from palyra.gateway.http.operation import CURSOR, EVENTS, Operation, Parameter, page_limit
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


class ApprovalRoutes:
    """The operations that concern approvals and grants."""

    def __init__(
        self, approvals: ApprovalService, watch: ApprovalWatch, *, intake: MessageIntake, streams: StreamLimiter
    ) -> None:
        self._approvals = approvals
        self._intake = intake
        self._watch = watch
        self._streams = streams

    def operations(self) -> list[Operation]:
        every, one = "/console/v1/approvals", "/console/v1/approvals/{approval_id}"
        only_open = Parameter("open", "boolean", "Only approvals that wait for an answer.", default=False)
        return [
            Operation(
                "listApprovals",
                "GET",
                every,
                self.index,
                "List approvals.",
                query=(only_open, LIMIT, CURSOR),
                answer=ApprovalPage,
            ),
            Operation(
                "followApprovals",
                "GET",
                f"{every}/events",
                self.events,
                "Follow approval requests and answers.",
                media=EVENTS,
            ),
            Operation(
                "exportApprovals",
                "GET",
                f"{every}/export",
                self.export,
                "Download all approvals, each line chained to the one before it.",
                media=(NDJSON,),
            ),
            Operation("getApproval", "GET", one, self.show, "Show an approval.", answer=ApprovalResponse),
            Operation(
                "revealApproval",
                "POST",
                f"{one}/reveal",
                self.reveal,
                "Show an approval with values in place of markers of sealed secrets.",
                need="write",
                answer=ApprovalResponse,
            ),
            Operation(
                "resolveApproval",
                "POST",
                f"{one}/resolve",
                self.resolve,
                "Answer an approval request.",
                need="write",
                body=ApprovalAnswerRequest,
                answer=ApprovalResponse,
            ),
            Operation(
                "reissueApproval",
                "POST",
                f"{one}/reissue",
                self.reissue,
                "Repeat an approval request that was not answered in time: a new run proposes the same call.",
                need="write",
                answer=AcceptedMessage,
                status=202,
            ),
            Operation(
                "listGrants",
                "GET",
                "/console/v1/grants",
                self.grants,
                "List grants.",
                query=(GRANT_LIMIT, CURSOR),
                answer=GrantPage,
            ),
            Operation(
                "revokeGrant",
                "POST",
                "/console/v1/grants/{grant_id}/revoke",
                self.revoke,
                "Revoke a grant.",
                need="write",
                answer=GrantResponse,
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        """List approvals, the latest first."""
        limit, before = number(request, LIMIT), cursor(request, to_position)
        matching_approvals = await self._approvals.page(
            principal, only_open=flag(request, "open"), before=before, limit=limit + 1
        )
        approvals, following = page(matching_approvals, limit, from_approval)
        return json_response(ApprovalPage(approvals=approvals, next_cursor=following))

    async def reveal(self, request: Request, principal: PrincipalId) -> Response:
        """Show one to its owner, with values in place of markers."""
        approval = await self._approvals.reveal(principal, request.path_params["approval_id"])
        return json_response(ApprovalResponse(approval=approval))

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        """Show one approval."""
        approval = await self._approvals.get(principal, request.path_params["approval_id"])
        return json_response(ApprovalResponse(approval=approval))

    async def resolve(self, request: Request, principal: PrincipalId) -> Response:
        """Answer an approval request; the first answer counts."""
        requested_request = await read_body(request, ApprovalAnswerRequest)
        resolved = await self._approvals.resolve(
            principal,
            request.path_params["approval_id"],
            allow=requested_request.decision == "allow",
            scope=requested_request.scope,
            ttl=timedelta(seconds=requested_request.ttl_seconds) if requested_request.ttl_seconds is not None else None,
            reason=requested_request.reason,
            arguments=requested_request.arguments,
            pattern=requested_request.pattern,
        )
        return json_response(ApprovalResponse(approval=resolved))

    async def reissue(self, request: Request, principal: PrincipalId) -> Response:
        """Start a run that proposes the call again."""
        accepted = await self._intake.reissue(principal, request.path_params["approval_id"])
        return json_response(accepted, status=202)

    async def grants(self, request: Request, principal: PrincipalId) -> Response:
        """List grants, the latest first."""
        limit, before = number(request, GRANT_LIMIT), cursor(request, to_position)
        matching_grants = await self._approvals.grants(principal, before=before, limit=limit + 1)
        grants, following = page(matching_grants, limit, from_grant)
        return json_response(GrantPage(grants=grants, next_cursor=following))

    async def revoke(self, request: Request, principal: PrincipalId) -> Response:
        """Revoke a grant."""
        return json_response(
            GrantResponse(grant=await self._approvals.revoke(principal, request.path_params["grant_id"]))
        )

    async def events(self, request: Request, principal: PrincipalId) -> ASGIApp:
        """Follow approval requests and answers; open requests come first."""
        position = ExitStack()
        position.enter_context(self._streams.slot(principal))
        return StreamingResponse(
            self._frames(principal, position),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    async def _frames(self, principal: PrincipalId, stack: ExitStack) -> AsyncGenerator[bytes, None]:
        with stack:
            async for news in self._watch.follow(principal):
                if not news:
                    yield b": still here\n\n"
                for one in news:
                    kind = "approval_requested" if one.decision is None else "approval_resolved"
                    yield b"event: " + kind.encode() + b"\ndata: " + _encode.encode(one) + b"\n\n"

    async def export(self, request: Request, principal: PrincipalId) -> ASGIApp:
        """Download every approval, each line chained to the one before it."""
        return StreamedDownload(chained(self._approvals, principal), media=NDJSON, name="approvals.ndjson")
