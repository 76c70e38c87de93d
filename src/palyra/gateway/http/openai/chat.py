"""`/v1/chat/completions`: takes a whole conversation and returns its next message."""

import asyncio

from starlette.requests import Request
from starlette.types import ASGIApp

from palyra.core.ids import PrincipalId
from palyra.core.message import AcceptedMessage, Inbound
from palyra.gateway.http.openai.chat_request import RULES, ChatRequest, conversation_of, parameters_of
from palyra.gateway.http.openai.chat_response import ChatFormat
from palyra.gateway.http.openai.endpoint import V1Endpoint, inbound_of
from palyra.gateway.http.openai.images import RequestImages
from palyra.gateway.http.openai.models import AnswerTarget, ModelResolver
from palyra.gateway.http.openai.request_body import parse, read_json
from palyra.gateway.http.openai.request_options import request_options
from palyra.gateway.http.openai.run_follower import RequestHeaders, request_headers
from palyra.gateway.http.openai.services import V1Services


class ChatEndpoint:
    """Serves chat completions."""

    def __init__(self, parts: V1Services) -> None:
        self._parts = parts
        self._door = V1Endpoint(parts)
        self._models = ModelResolver(parts)

    async def complete(self, request: Request, principal: PrincipalId) -> ASGIApp:
        """Complete a conversation."""
        body = await read_json(request)
        requested_request = parse(body, ChatRequest, RULES)
        manner = request_headers(request, user=requested_request.user)
        target = await self._models.target(principal, requested_request.model)
        pictures = RequestImages()
        inbound = await asyncio.to_thread(self._inbound, principal, requested_request, manner, target, pictures)
        inbound = await self._door.with_pictures(inbound, pictures)
        created = int(self._parts.clock.now().timestamp())
        usage = requested_request.stream_options is not None and bool(requested_request.stream_options.include_usage)

        def shape(accepted: AcceptedMessage) -> ChatFormat:
            return ChatFormat(accepted, requested_request.model, created=created, with_usage=usage)

        return await self._door.answer(inbound, manner, shape, stream=bool(requested_request.stream))

    def _inbound(
        self,
        principal: PrincipalId,
        request: ChatRequest,
        manner: RequestHeaders,
        target: AnswerTarget,
        pictures: RequestImages,
    ) -> Inbound:
        """Return the request as an inbound message. Slow if it contains images."""
        named = manner.session.key is not None
        talk = conversation_of(request.messages, pictures, named=named)
        run_input = talk.end(param="messages") if named else talk.build(param="messages")
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
