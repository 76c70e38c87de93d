"""`/v1/chat/completions`: a conversation comes in whole, and its next message goes out."""

import asyncio

from starlette.requests import Request
from starlette.types import ASGIApp

from palyra.core.ids import PrincipalId
from palyra.core.message import Accepted, Inbound
from palyra.gateway.http.openai.brief import brief_of
from palyra.gateway.http.openai.call import Manner, manner_of
from palyra.gateway.http.openai.chat_request import RULES, ChatRequest, conversation_of, wanted_of
from palyra.gateway.http.openai.completion import ChatShape
from palyra.gateway.http.openai.door import Door, inbound_of
from palyra.gateway.http.openai.models import Models, Target
from palyra.gateway.http.openai.parts import Parts
from palyra.gateway.http.openai.pictures import Pictures
from palyra.gateway.http.openai.request import parse, read_json


class Chat:
    """Answers conversations."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._door = Door(parts)
        self._models = Models(parts)

    async def complete(self, request: Request, principal: PrincipalId) -> ASGIApp:
        """Answer a conversation."""
        body = await read_json(request)
        asked = parse(body, ChatRequest, RULES)
        manner = manner_of(request, user=asked.user)
        target = await self._models.target(principal, asked.model)
        pictures = Pictures()
        inbound = await asyncio.to_thread(self._inbound, principal, asked, manner, target, pictures)
        inbound = await self._door.with_pictures(inbound, pictures)
        created = int(self._parts.clock.now().timestamp())
        usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)

        def shape(accepted: Accepted) -> ChatShape:
            return ChatShape(accepted, asked.model, created=created, with_usage=usage)

        return await self._door.answer(inbound, manner, shape, stream=bool(asked.stream))

    def _inbound(
        self, principal: PrincipalId, asked: ChatRequest, manner: Manner, target: Target, pictures: Pictures
    ) -> Inbound:
        """Return the message that the request brings. Takes a while if there are pictures in it."""
        named = manner.session.key is not None
        talk = conversation_of(asked.messages, pictures, named=named)
        said = talk.end(param="messages") if named else talk.whole(param="messages")
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
