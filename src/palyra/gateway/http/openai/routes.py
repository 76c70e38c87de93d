"""The routes of the OpenAI-compatible API.

Most daemons never get a request here. So the code that reads and writes these requests is imported with the first of
them, or when the OpenAPI document is made: it takes a megabyte or two.
"""

import asyncio
from importlib import import_module
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from palyra.core.ids import PrincipalId
from palyra.gateway.http.openai.services import V1Services
from palyra.gateway.http.operation import Handler, LazyType, Operation

HERE = "palyra.gateway.http.openai"
FAILURE = LazyType(f"{HERE}.errors", "ErrorResponse")


class V1Routes:
    """The operations of `/v1`."""

    def __init__(self, parts: V1Services) -> None:
        self._parts = parts
        self._loaded: dict[str, Any] = {}

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/v1/models",
                self._handler("models", "ModelsEndpoint", "index"),
                "List the agents and models that can be asked.",
                answer=LazyType(f"{HERE}.models", "ModelList"),
                failure=FAILURE,
            ),
            Operation(
                "GET",
                "/v1/models/{model_name:path}",
                self._handler("models", "ModelsEndpoint", "show"),
                "Show an agent or a model.",
                answer=LazyType(f"{HERE}.models", "ModelEntry"),
                failure=FAILURE,
            ),
            Operation(
                "POST",
                "/v1/chat/completions",
                self._handler("chat", "ChatEndpoint", "complete"),
                "Answer a conversation, as OpenAI's API does.",
                need="write",
                body=LazyType(f"{HERE}.chat_request", "ChatRequest"),
                answer=LazyType(f"{HERE}.chat_response", "ChatCompletion"),
                failure=FAILURE,
                streams=True,
            ),
            Operation(
                "POST",
                "/v1/responses",
                self._handler("responses", "ResponsesEndpoint", "create"),
                "Answer a message and go on from an earlier answer, as OpenAI's API does.",
                need="write",
                body=LazyType(f"{HERE}.responses_request", "ResponseRequest"),
                answer=LazyType(f"{HERE}.responses_response", "ResponseBody"),
                failure=FAILURE,
                streams=True,
            ),
            Operation(
                "GET",
                "/v1/responses/{response_id}",
                self._handler("responses", "ResponsesEndpoint", "show"),
                "Show an answer again.",
                answer=LazyType(f"{HERE}.responses_response", "ResponseBody"),
                failure=FAILURE,
            ),
            Operation(
                "POST",
                "/v1/embeddings",
                self._handler("embeddings", "EmbeddingsEndpoint", "create"),
                "Turn texts into vectors, by a provider that can.",
                need="write",
                body=LazyType(f"{HERE}.embeddings", "EmbeddingsRequest"),
                answer=LazyType(f"{HERE}.embeddings", "EmbeddingsResponse"),
                failure=FAILURE,
            ),
        ]

    def _handler(self, module: str, name: str, method: str) -> Handler:
        """Return a handler that imports an endpoint on its first request."""

        async def handler(request: Request, principal: PrincipalId) -> ASGIApp:
            if module not in self._loaded:
                loaded = await asyncio.to_thread(import_module, f"{HERE}.{module}")
                self._loaded.setdefault(module, getattr(loaded, name)(self._parts))
            answered: ASGIApp = await getattr(self._loaded[module], method)(request, principal)
            return answered

        return handler
