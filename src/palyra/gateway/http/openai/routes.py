"""The routes of the OpenAI-compatible API.

Most daemons never get a request here. So the code that reads and writes these requests is imported with the first of
them, or when the OpenAPI document is made: it takes a megabyte or two.
"""

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.types import ASGIApp

from palyra.core.events import InputMode
from palyra.core.ids import PrincipalId
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

ERROR = LazyType("palyra.gateway.http.openai.errors", "ErrorResponse")


class LazyEndpoint:
    """An endpoint whose class is imported with its first request."""

    def __init__(self, kind: LazyType, parts: V1Services) -> None:
        self._kind = kind
        self._parts = parts
        self._endpoint: object | None = None

    def handler(self, method: str) -> Handler:
        """Return a handler that calls a method of the endpoint."""

        async def handle(request: Request, principal: PrincipalId) -> ASGIApp:
            if self._endpoint is None:
                self._build(await asyncio.to_thread(self._kind.load))
            handler: Handler = getattr(self._endpoint, method)
            return await handler(request, principal)

        return handle

    def _build(self, build: Callable[[V1Services], object]) -> None:
        """Build the endpoint, unless another request has meanwhile."""
        if self._endpoint is None:
            self._endpoint = build(self._parts)


class V1Routes:
    """The operations of `/v1`."""

    def __init__(self, parts: V1Services) -> None:
        self._models = LazyEndpoint(_lazy("models", "ModelsEndpoint"), parts)
        self._chat = LazyEndpoint(_lazy("chat", "ChatEndpoint"), parts)
        self._responses = LazyEndpoint(_lazy("responses", "ResponsesEndpoint"), parts)
        self._embeddings = LazyEndpoint(_lazy("embeddings", "EmbeddingsEndpoint"), parts)

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "listModels",
                "GET",
                "/v1/models",
                self._models.handler("index"),
                "List agents and models, as OpenAI's API does.",
                answer=_lazy("models", "ModelList"),
                failure=ERROR,
            ),
            Operation(
                "getModel",
                "GET",
                "/v1/models/{model_name:path}",
                self._models.handler("show"),
                "Show an agent or a model; encode a slash in its name as %2F.",
                answer=_lazy("models", "ModelEntry"),
                failure=ERROR,
            ),
            Operation(
                "createChatCompletion",
                "POST",
                "/v1/chat/completions",
                self._chat.handler("complete"),
                "Answer a conversation, as OpenAI's API does.",
                need="write",
                query=HEADERS,
                body=_lazy("chat_request", "ChatRequest"),
                answer=_lazy("chat_response", "ChatCompletion"),
                failure=ERROR,
                streams=(_lazy("chat_response", "ChatChunk"), ERROR),
            ),
            Operation(
                "createResponse",
                "POST",
                "/v1/responses",
                self._responses.handler("create"),
                "Answer a message, or continue from an earlier answer, as OpenAI's API does.",
                need="write",
                query=HEADERS,
                body=_lazy("responses_request", "ResponseRequest"),
                answer=_lazy("responses_response", "ResponseBody"),
                failure=ERROR,
                streams=(_lazy("responses_response", "ResponseEvent"),),
            ),
            Operation(
                "getResponse",
                "GET",
                "/v1/responses/{response_id}",
                self._responses.handler("show"),
                "Show an answer again.",
                answer=_lazy("responses_response", "ResponseBody"),
                failure=ERROR,
            ),
            Operation(
                "createEmbeddings",
                "POST",
                "/v1/embeddings",
                self._embeddings.handler("create"),
                "Create embeddings, by a provider that offers them.",
                need="write",
                body=_lazy("embeddings", "EmbeddingsRequest"),
                answer=_lazy("embeddings", "EmbeddingsResponse"),
                failure=ERROR,
            ),
        ]


def _lazy(module: str, name: str) -> LazyType:
    return LazyType(f"palyra.gateway.http.openai.{module}", name)
