"""Approvals over HTTP: what is asked, the answer, and what answers allow for longer."""

from collections.abc import AsyncGenerator
from contextlib import ExitStack
from datetime import timedelta
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp

from palyra.core.approval import Approval, Grant, Scope
from palyra.core.ids import PrincipalId
from palyra.core.message import Accepted
from palyra.core.tool import JsonObject
from palyra.gateway.cursor import from_approval, to_position
from palyra.gateway.export import chained
from palyra.gateway.http.download import Download
from palyra.gateway.http.operation import CURSOR, LIMIT, Operation, Query
from palyra.gateway.http.secrets import RevealRequest
from palyra.gateway.http.wire import MAX_PAGE, body, number, reply
from palyra.gateway.streams import Streams
from palyra.policy.patterns import MAX_PATTERN_CHARS
from palyra.runs.approvals import Approvals
from palyra.runs.intake import Intake
from palyra.runs.watch import Watch

MAX_TTL_SECONDS = 365 * 86400
NDJSON = "application/x-ndjson"
_encode = msgspec.json.Encoder()


class AnswerRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to a question."""

    decision: Literal["allow", "deny"]
    scope: Scope = Scope.ONCE
    ttl_seconds: Annotated[int, Meta(ge=1, le=MAX_TTL_SECONDS)] | None = None
    """For how long, if the scope is `timeboxed`."""
    reason: Annotated[str, Meta(max_length=500)] = ""
    """What the agent is told."""
    arguments: JsonObject | None = None
    """Other arguments than the agent proposed; they are judged anew."""
    pattern: Annotated[str, Meta(max_length=MAX_PATTERN_CHARS)] = ""
    """The commands that an answer for longer covers (`git push origin *`); else it covers the exact command. Options
    can have a program run others: whatever fits runs without a question."""


class ReissueRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The question is to be asked once more."""


class ApprovalsPage(Struct, frozen=True, kw_only=True):
    """Approvals, the latest first."""

    approvals: list[Approval]
    next_cursor: str | None


class ApprovalAnswer(Struct, frozen=True, kw_only=True):
    """One approval."""

    approval: Approval


class GrantsAnswer(Struct, frozen=True, kw_only=True):
    """What was allowed beyond single calls, the latest first."""

    grants: list[Grant]


class GrantAnswer(Struct, frozen=True, kw_only=True):
    """One grant."""

    grant: Grant


class ApprovalRoutes:
    """The operations that concern approvals and grants."""

    def __init__(self, approvals: Approvals, watch: Watch, *, intake: Intake, streams: Streams) -> None:
        self._approvals = approvals
        self._intake = intake
        self._watch = watch
        self._streams = streams

    def operations(self) -> list[Operation]:
        every = "/console/v1/approvals"
        one = f"{every}/{{approval_id}}"
        only_open = Query("open", "boolean", "Only those that wait for an answer.")
        return [
            Operation(
                "GET", every, self.index, "List approvals.", query=(only_open, LIMIT, CURSOR), answer=ApprovalsPage
            ),
            Operation(
                "GET", f"{every}/events", self.events, "Follow questions and answers.", media="text/event-stream"
            ),
            Operation("GET", f"{every}/export", self.export, "Download all, chained line by line.", media=NDJSON),
            Operation("GET", one, self.show, "Show an approval.", answer=ApprovalAnswer),
            Operation(
                "POST",
                f"{one}/reveal",
                self.reveal,
                "Show an approval with values in place of markers of sealed secrets.",
                need="write",
                body=RevealRequest,
                answer=ApprovalAnswer,
            ),
            Operation(
                "POST",
                f"{one}/resolve",
                self.resolve,
                "Answer a question.",
                need="write",
                body=AnswerRequest,
                answer=ApprovalAnswer,
            ),
            Operation(
                "POST",
                f"{one}/reissue",
                self.reissue,
                "Ask once more what nobody answered in time: a new run proposes the same call.",
                need="write",
                body=ReissueRequest,
                answer=Accepted,
                status=202,
            ),
            Operation("GET", "/console/v1/grants", self.grants, "List grants.", query=(LIMIT,), answer=GrantsAnswer),
            Operation(
                "DELETE",
                "/console/v1/grants/{grant_id}",
                self.revoke,
                "Take a grant back.",
                need="write",
                answer=GrantAnswer,
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
        return reply(ApprovalsPage(approvals=found, next_cursor=last))

    async def reveal(self, request: Request, principal: PrincipalId) -> Response:
        """Show one to its owner, with values in place of markers."""
        await body(request, RevealRequest)
        found = await self._approvals.reveal(principal, request.path_params["approval_id"])
        return reply(ApprovalAnswer(approval=found))

    async def show(self, request: Request, principal: PrincipalId) -> Response:
        """Show one approval."""
        found = await self._approvals.get(principal, request.path_params["approval_id"])
        return reply(ApprovalAnswer(approval=found))

    async def resolve(self, request: Request, principal: PrincipalId) -> Response:
        """Answer a question; the first answer counts."""
        asked = await body(request, AnswerRequest)
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
        return reply(ApprovalAnswer(approval=resolved))

    async def reissue(self, request: Request, principal: PrincipalId) -> Response:
        """Begin a run that proposes the call once more."""
        await body(request, ReissueRequest)
        accepted = await self._intake.reissue(principal, request.path_params["approval_id"])
        return reply(accepted, status=202)

    async def grants(self, request: Request, principal: PrincipalId) -> Response:
        """List grants, the latest first."""
        limit = number(request, "limit", default=100, most=MAX_PAGE)
        return reply(GrantsAnswer(grants=await self._approvals.grants(principal, limit=limit)))

    async def revoke(self, request: Request, principal: PrincipalId) -> Response:
        """Take a grant back."""
        return reply(GrantAnswer(grant=await self._approvals.revoke(principal, request.path_params["grant_id"])))

    async def events(self, request: Request, principal: PrincipalId) -> ASGIApp:
        """Follow what is asked and answered; first come the questions that are open."""
        place = ExitStack()
        place.enter_context(self._streams.place(principal))
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
        return Download(chained(self._approvals, principal), media=NDJSON, name="approvals.ndjson")
