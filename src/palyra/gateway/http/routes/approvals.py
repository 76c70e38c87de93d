"""Approvals over HTTP: approval requests, answers, and grants."""

from collections.abc import AsyncGenerator
from contextlib import ExitStack
from datetime import timedelta

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp

from palyra.core.ids import PrincipalId
from palyra.core.message import AcceptedMessage
from palyra.gateway.approval_export import chained
from palyra.gateway.cursor import from_approval, to_position
from palyra.gateway.http.download import StreamedDownload
from palyra.gateway.http.messages import MAX_PAGE, json_response, number, read_body
from palyra.gateway.http.operation import CURSOR, LIMIT, Operation, QueryParameter
from palyra.gateway.http.routes.secrets import RevealRequest
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
_encode = msgspec.json.Encoder()


class ReissueRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An approval request is to be made again."""


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
        every = "/console/v1/approvals"
        one = f"{every}/{{approval_id}}"
        only_open = QueryParameter("open", "boolean", "Only those that wait for an answer.")
        return [
            Operation(
                "GET", every, self.index, "List approvals.", query=(only_open, LIMIT, CURSOR), answer=ApprovalPage
            ),
            Operation(
                "GET", f"{every}/events", self.events, "Follow questions and answers.", media="text/event-stream"
            ),
            Operation("GET", f"{every}/export", self.export, "Download all, chained line by line.", media=NDJSON),
            Operation("GET", one, self.show, "Show an approval.", answer=ApprovalResponse),
            Operation(
                "POST",
                f"{one}/reveal",
                self.reveal,
                "Show an approval with values in place of markers of sealed secrets.",
                need="write",
                body=RevealRequest,
                answer=ApprovalResponse,
            ),
            Operation(
                "POST",
                f"{one}/resolve",
                self.resolve,
                "Answer a question.",
                need="write",
                body=ApprovalAnswerRequest,
                answer=ApprovalResponse,
            ),
            Operation(
                "POST",
                f"{one}/reissue",
                self.reissue,
                "Ask once more what nobody answered in time: a new run proposes the same call.",
                need="write",
                body=ReissueRequest,
                answer=AcceptedMessage,
                status=202,
            ),
            Operation("GET", "/console/v1/grants", self.grants, "List grants.", query=(LIMIT,), answer=GrantPage),
            Operation(
                "DELETE",
                "/console/v1/grants/{grant_id}",
                self.revoke,
                "Take a grant back.",
                need="write",
                answer=GrantResponse,
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        """List approvals, the latest first."""
        limit = number(request, "limit", default=50, most=MAX_PAGE)
        cursor = request.query_params.get("cursor")
        found = await self._approvals.page(
            principal,
            only_open=request.query_params.get("open") == "true",
            before=to_position(cursor) if cursor is not None else None,
            limit=limit,
        )
        last = from_approval(found[-1]) if len(found) == limit else None
        return json_response(ApprovalPage(approvals=found, next_cursor=last))

    async def reveal(self, request: Request, principal: PrincipalId) -> Response:
        """Show one to its owner, with values in place of markers."""
        await read_body(request, RevealRequest)
        found = await self._approvals.reveal(principal, request.path_params["approval_id"])
        return json_response(ApprovalResponse(approval=found))

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        """Show one approval."""
        found = await self._approvals.get(principal, request.path_params["approval_id"])
        return json_response(ApprovalResponse(approval=found))

    async def resolve(self, request: Request, principal: PrincipalId) -> Response:
        """Answer an approval request; the first answer counts."""
        asked = await read_body(request, ApprovalAnswerRequest)
        resolved = await self._approvals.resolve(
            principal,
            request.path_params["approval_id"],
            allow=asked.decision == "allow",
            scope=asked.scope,
            ttl=timedelta(seconds=asked.ttl_seconds) if asked.ttl_seconds is not None else None,
            reason=asked.reason,
            arguments=asked.arguments,
            pattern=asked.pattern,
        )
        return json_response(ApprovalResponse(approval=resolved))

    async def reissue(self, request: Request, principal: PrincipalId) -> Response:
        """Start a run that proposes the call again."""
        await read_body(request, ReissueRequest)
        accepted = await self._intake.reissue(principal, request.path_params["approval_id"])
        return json_response(accepted, status=202)

    async def grants(self, request: Request, principal: PrincipalId) -> Response:
        """List grants, the latest first."""
        limit = number(request, "limit", default=100, most=MAX_PAGE)
        return json_response(GrantPage(grants=await self._approvals.grants(principal, limit=limit)))

    async def revoke(self, request: Request, principal: PrincipalId) -> Response:
        """Revoke a grant."""
        return json_response(
            GrantResponse(grant=await self._approvals.revoke(principal, request.path_params["grant_id"]))
        )

    async def events(self, request: Request, principal: PrincipalId) -> ASGIApp:
        """Follow approval requests and answers; open requests come first."""
        place = ExitStack()
        place.enter_context(self._streams.slot(principal))
        return StreamingResponse(
            self._frames(principal, place),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    async def _frames(self, principal: PrincipalId, place: ExitStack) -> AsyncGenerator[bytes, None]:
        with place:
            async for news in self._watch.follow(principal):
                if not news:
                    yield b": still here\n\n"
                for one in news:
                    kind = "approval_requested" if one.decision is None else "approval_resolved"
                    yield b"event: " + kind.encode() + b"\ndata: " + _encode.encode(one) + b"\n\n"

    async def export(self, request: Request, principal: PrincipalId) -> ASGIApp:
        """Download every approval, each line chained to the one before it."""
        return StreamedDownload(chained(self._approvals, principal), media=NDJSON, name="approvals.ndjson")
