"""The routes of the OpenAI-compatible API.

Most daemons never get a request here. So the code that reads and writes these requests is imported with the first of
them, or when the OpenAPI document is made: it takes a megabyte or two.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp

from palyra.core.events import InputMode
from palyra.core.ids import PrincipalId
from palyra.gateway.http.openai import lazy
from palyra.gateway.http.openai.services import V1Services
from palyra.gateway.http.operation import Handler, LazyType, Operation, Parameter

HEADERS = (
    Parameter("X-Palyra-Session", "string", "The key of the session; a new session if it is not set.", "header"),
    Parameter(
        "X-Palyra-Mode",
        "string",
        "What to do if another run is active in the session.",
        "header",
        default=InputMode.QUEUE.value,
        choices=tuple(mode.value for mode in InputMode),
    ),
    Parameter("X-Palyra-Detach", "boolean", "Let the run go on when the client disconnects.", "header", default=False),
)

E = TypeVar("E")


class LazyEndpoint(Generic[E]):
    """An endpoint whose class is imported with its first request."""

    def __init__(self, load: Callable[[], Callable[[V1Services], E]], parts: V1Services) -> None:
        """`load` imports the class and returns it."""
        self._load = load
        self._parts = parts
        self._endpoint: E | None = None

    def handler(self, method: Callable[[E], Handler]) -> Handler:
        """Return a handler that calls a method of the endpoint."""

        async def handle(request: Request, principal: PrincipalId) -> ASGIApp:
            endpoint = self._endpoint or self._build(await asyncio.to_thread(self._load))
            return await method(endpoint)(request, principal)

        return handle

    def _build(self, build: Callable[[V1Services], E]) -> E:
        """Build the endpoint, unless another request has meanwhile."""
        if self._endpoint is None:
            self._endpoint = build(self._parts)
        return self._endpoint


class V1Routes:
    """The operations of `/v1`."""

    def __init__(self, parts: V1Services) -> None:
        self._models = LazyEndpoint(lazy.models_endpoint, parts)
        self._chat = LazyEndpoint(lazy.chat_endpoint, parts)
        self._responses = LazyEndpoint(lazy.responses_endpoint, parts)
        self._embeddings = LazyEndpoint(lazy.embeddings_endpoint, parts)

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "listModels",
                "GET",
                "/v1/models",
                self._models.handler(lambda endpoint: endpoint.index),
                "List agents and models, as OpenAI's API does.",
                answer=LazyType(lazy.model_list),
                failure=LazyType(lazy.error_response),
            ),
            Operation(
                "getModel",
                "GET",
                "/v1/models/{model_name:path}",
                self._models.handler(lambda endpoint: endpoint.show),
                "Show an agent or a model; encode a slash in its name as %2F.",
                answer=LazyType(lazy.model_entry),
                failure=LazyType(lazy.error_response),
            ),
            Operation(
                "createChatCompletion",
                "POST",
                "/v1/chat/completions",
                self._chat.handler(lambda endpoint: endpoint.complete),
                "Answer a conversation, as OpenAI's API does.",
                need="write",
                query=HEADERS,
                body=LazyType(lazy.chat_request),
                answer=LazyType(lazy.chat_completion),
                failure=LazyType(lazy.error_response),
                streams=True,
            ),
            Operation(
                "createResponse",
                "POST",
                "/v1/responses",
                self._responses.handler(lambda endpoint: endpoint.create),
                "Answer a message, or continue from an earlier answer, as OpenAI's API does.",
                need="write",
                query=HEADERS,
                body=LazyType(lazy.response_request),
                answer=LazyType(lazy.response_body),
                failure=LazyType(lazy.error_response),
                streams=True,
            ),
            Operation(
                "getResponse",
                "GET",
                "/v1/responses/{response_id}",
                self._responses.handler(lambda endpoint: endpoint.show),
                "Show an answer again.",
                answer=LazyType(lazy.response_body),
                failure=LazyType(lazy.error_response),
            ),
            Operation(
                "createEmbeddings",
                "POST",
                "/v1/embeddings",
                self._embeddings.handler(lambda endpoint: endpoint.create),
                "Create embeddings, by a provider that offers them.",
                need="write",
                body=LazyType(lazy.embeddings_request),
                answer=LazyType(lazy.embeddings_response),
                failure=LazyType(lazy.error_response),
            ),
        ]
