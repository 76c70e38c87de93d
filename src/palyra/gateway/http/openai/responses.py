"""`/v1/responses`: a message comes in, and its answer can be gone on from."""

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
from palyra.core.ids import MalformedId, PrincipalId, RunId, parse_ulid
from palyra.core.message import Accepted, Inbound
from palyra.core.session import SessionRef
from palyra.gateway.http.openai.brief import brief_of
from palyra.gateway.http.openai.call import Manner, manner_of
from palyra.gateway.http.openai.door import Door, inbound_of
from palyra.gateway.http.openai.models import AGENT, Models, Target
from palyra.gateway.http.openai.parts import Parts
from palyra.gateway.http.openai.pictures import Pictures
from palyra.gateway.http.openai.request import parse, read_json
from palyra.gateway.http.openai.response import PREFIX, Response, ResponseShape, id_of
from palyra.gateway.http.openai.response_request import (
    RULES,
    ResponseRequest,
    conversation_of,
    typed,
    wanted_of,
)
from palyra.gateway.http.openai.telling import Telling, void_turns
from palyra.gateway.http.wire import reply
from palyra.journal import runs, tape
from palyra.journal.runs import Run
from palyra.runs.intake import RunOvertaken


class ResponseNotFound(NotFound):
    """There is no such response among yours."""


class PreviousResponseNotFound(NotFound):
    """There is no response of that id among yours to go on from."""

    param = "previous_response_id"


class ResponseOvertaken(Conflict):
    """The conversation has gone on since that response. Go on from the last one."""

    param = "previous_response_id"


class Responses:
    """Answers messages, and shows answers again."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._door = Door(parts)
        self._models = Models(parts)

    async def create(self, request: Request, principal: PrincipalId) -> ASGIApp:
        """Answer a message."""
        body = typed(await read_json(request))
        asked = parse(body, ResponseRequest, RULES)
        manner = manner_of(request, user=asked.user)
        previous = await self._previous(principal, asked.previous_response_id)
        if previous is not None:
            manner = replace(manner, session=SessionRef(session_id=previous.session_id, require_existing=True))
        target = await self._models.target(principal, asked.model)
        pictures = Pictures()
        inbound = await asyncio.to_thread(self._inbound, principal, asked, manner, target, pictures)
        inbound = await self._door.with_pictures(inbound, pictures)
        created = int(self._parts.clock.now().timestamp())

        def shape(accepted: Accepted) -> ResponseShape:
            return ResponseShape(_frame(accepted, asked, body, created=created))

        if previous is not None:
            inbound = structs.replace(inbound, after=previous.run_id)
        try:
            return await self._door.answer(inbound, manner, shape, stream=bool(asked.stream))
        except RunOvertaken as error:
            raise ResponseOvertaken from error

    async def show(self, request: Request, principal: PrincipalId) -> HttpResponse:
        """Show an answer as its run stands now."""
        run_id = _run_id(request.path_params["response_id"])
        run = await self._run(principal, run_id) if run_id is not None else None
        if run is None:
            raise ResponseNotFound
        entries = await self._parts.engine.read(lambda conn: tape.of_run(conn, run.run_id))
        telling = Telling(void=void_turns(entries))
        for entry in entries:
            for _ in telling.take(entry):
                pass
        accepted = entries[0].event
        assert isinstance(accepted, RunAccepted)
        frame = Response(
            id=id_of(run.run_id),
            created_at=to_ms(run.accepted_at) // 1000,
            status="in_progress",
            model=accepted.brief.model or AGENT,
            output=[],
        )
        return reply(ResponseShape(frame).whole(telling))

    def _inbound(
        self, principal: PrincipalId, asked: ResponseRequest, manner: Manner, target: Target, pictures: Pictures
    ) -> Inbound:
        """Return the message that the request brings. Takes a while if there are pictures in it."""
        goes_on = manner.session != SessionRef()
        talk = conversation_of(asked, pictures, named=goes_on)
        # Who goes on from an answer sends what is new and nothing else; whoever names a session may send it all.
        by_name = manner.session.key is not None
        said = talk.end(param="input") if by_name else talk.whole(param="input")
        return inbound_of(
            principal,
            said,
            manner,
            agent=target.agent,
            brief=brief_of(
                wanted_of(asked, system=talk.instructions()), target, toolbox=self._parts.toolbox, who=principal
            ),
            pictures=pictures.found,
        )

    async def _previous(self, principal: PrincipalId, response_id: str | None) -> Run | None:
        """Return the run that a call goes on from, None if it begins anew."""
        if response_id is None:
            return None
        run_id = _run_id(response_id)
        run = await self._run(principal, run_id) if run_id is not None else None
        if run is None:
            raise PreviousResponseNotFound
        return run

    async def _run(self, principal: PrincipalId, run_id: RunId) -> Run | None:
        return await self._parts.engine.read(lambda conn: runs.get(conn, run_id, principal))


def _run_id(response_id: str) -> RunId | None:
    """Return the run whose answer is meant, None if that is no name of one."""
    if not response_id.startswith(PREFIX):
        return None
    try:
        return RunId(parse_ulid(response_id.removeprefix(PREFIX), "response id"))
    except MalformedId:
        return None


def _frame(accepted: Accepted, asked: ResponseRequest, body: dict[str, Any], *, created: int) -> Response:
    return Response(
        id=id_of(accepted.run_id),
        created_at=created,
        status="in_progress",
        model=asked.model,
        output=[],
        instructions=asked.instructions,
        max_output_tokens=asked.max_output_tokens,
        parallel_tool_calls=asked.parallel_tool_calls is not False,
        previous_response_id=asked.previous_response_id,
        temperature=asked.temperature,
        text=body.get("text") or {"format": {"type": "text"}},
        tool_choice=body.get("tool_choice") or "auto",
        tools=body.get("tools") or [],
        top_p=asked.top_p,
    )
