"""`/v1/responses`: answers a message; a later request can continue from the response."""

import asyncio
from dataclasses import replace
from typing import Any

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.types import ASGIApp

from palyra.core.clock import to_ms
from palyra.core.errors import Conflict, NotFound
from palyra.core.events import RunAccepted
from palyra.core.ids import IdInvalid, PrincipalId, RunId, parse_ulid
from palyra.core.message import AcceptedMessage, Inbound
from palyra.core.run.record import RunRecord
from palyra.core.session import SessionRef
from palyra.gateway.http.messages import json_response
from palyra.gateway.http.openai.endpoint import V1Endpoint, inbound_of
from palyra.gateway.http.openai.images import RequestImages
from palyra.gateway.http.openai.models import AGENT, AnswerTarget, ModelResolver
from palyra.gateway.http.openai.request_body import parse, read_json
from palyra.gateway.http.openai.request_options import request_options
from palyra.gateway.http.openai.responses_request import (
    RULES,
    ResponseRequest,
    conversation_of,
    parameters_of,
    with_item_types,
)
from palyra.gateway.http.openai.responses_response import PREFIX, ResponseBody, ResponseFormat, id_of
from palyra.gateway.http.openai.run_answer import RunAnswer, discarded_turns
from palyra.gateway.http.openai.run_follower import RequestHeaders, request_headers
from palyra.gateway.http.openai.services import V1Services
from palyra.journal import tape
from palyra.journal.stores import runs
from palyra.runs.services.intake import RunSuperseded


class ResponseNotFound(NotFound):
    """You have no such response."""


class PreviousResponseNotFound(NotFound):
    """You have no response with this id to continue from."""

    param = "previous_response_id"


class ResponseSuperseded(Conflict):
    """The conversation has continued since that response. Continue from the last one."""

    param = "previous_response_id"


class ResponsesEndpoint:
    """Creates responses, and returns stored ones."""

    def __init__(self, parts: V1Services) -> None:
        self._parts = parts
        self._door = V1Endpoint(parts)
        self._models = ModelResolver(parts)

    async def create(self, request: Request, principal: PrincipalId) -> ASGIApp:
        """Create a response."""
        body = with_item_types(await read_json(request))
        requested_request = parse(body, ResponseRequest, RULES)
        manner = request_headers(request, user=requested_request.user)
        previous = await self._previous(principal, requested_request.previous_response_id)
        if previous is not None:
            manner = replace(manner, session=SessionRef(session_id=previous.session_id, require_existing=True))
        target = await self._models.target(principal, requested_request.model)
        pictures = RequestImages()
        inbound = await asyncio.to_thread(self._inbound, principal, requested_request, manner, target, pictures)
        inbound = await self._door.with_pictures(inbound, pictures)
        created = int(self._parts.clock.now().timestamp())

        def shape(accepted: AcceptedMessage) -> ResponseFormat:
            return ResponseFormat(_frame(accepted, requested_request, body, created=created))

        if previous is not None:
            inbound = structs.replace(inbound, after=previous.run_id)
        try:
            return await self._door.answer(inbound, manner, shape, stream=bool(requested_request.stream))
        except RunSuperseded as error:
            raise ResponseSuperseded from error

    async def show(self, request: Request, principal: PrincipalId) -> HttpResponse:
        """Return a response with its run's current state."""
        run_id = _run_id(request.path_params["response_id"])
        run = await self._run(principal, run_id) if run_id is not None else None
        if run is None:
            raise ResponseNotFound
        entries = await self._parts.engine.read(lambda conn: tape.of_run(conn, run.run_id))
        answer = RunAnswer(void=discarded_turns(entries))
        for entry in entries:
            for _ in answer.take(entry):
                pass
        accepted = entries[0].event
        assert isinstance(accepted, RunAccepted)
        frame = ResponseBody(
            id=id_of(run.run_id),
            created_at=to_ms(run.accepted_at) // 1000,
            status="in_progress",
            model=accepted.options.model or AGENT,
            output=[],
        )
        return json_response(ResponseFormat(frame).complete(answer))

    def _inbound(
        self,
        principal: PrincipalId,
        request: ResponseRequest,
        manner: RequestHeaders,
        target: AnswerTarget,
        pictures: RequestImages,
    ) -> Inbound:
        """Return the request as an inbound message. Slow if it contains images."""
        goes_on = manner.session != SessionRef()
        talk = conversation_of(request, pictures, named=goes_on)
        # A request that continues a response sends only what is new; one that names a session may send everything.
        by_name = manner.session.key is not None
        run_input = talk.end(param="input") if by_name else talk.build(param="input")
        return inbound_of(
            principal,
            run_input,
            manner,
            agent=target.agent,
            options=request_options(
                parameters_of(request, system=talk.instructions()), target, toolbox=self._parts.toolbox, who=principal
            ),
            pictures=pictures.found,
        )

    async def _previous(self, principal: PrincipalId, response_id: str | None) -> RunRecord | None:
        """Return the run that a call continues, None if it starts a conversation."""
        if response_id is None:
            return None
        run_id = _run_id(response_id)
        run = await self._run(principal, run_id) if run_id is not None else None
        if run is None:
            raise PreviousResponseNotFound
        return run

    async def _run(self, principal: PrincipalId, run_id: RunId) -> RunRecord | None:
        return await self._parts.engine.read(lambda conn: runs.get(conn, run_id, principal))


def _run_id(response_id: str) -> RunId | None:
    """Return the run of a response id, None if it is not a response id."""
    if not response_id.startswith(PREFIX):
        return None
    try:
        return RunId(parse_ulid(response_id.removeprefix(PREFIX), "response id"))
    except IdInvalid:
        return None


def _frame(accepted: AcceptedMessage, request: ResponseRequest, body: dict[str, Any], *, created: int) -> ResponseBody:
    return ResponseBody(
        id=id_of(accepted.run_id),
        created_at=created,
        status="in_progress",
        model=request.model,
        output=[],
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        temperature=request.temperature,
        text=body.get("text") or {"format": {"type": "text"}},
        tool_choice=body.get("tool_choice") or "auto",
        tools=body.get("tools") or [],
        top_p=request.top_p,
    )
