"""What is offered to programs that speak to OpenAI.

Most daemons are never asked here. So what reads and writes these requests is loaded with the first of them, and the
document says of them what it says of others: it takes a megabyte or two.
"""

import asyncio
from importlib import import_module
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from palyra.core.ids import PrincipalId
from palyra.gateway.http.openai.parts import Parts
from palyra.gateway.http.operation import Handler, Later, Operation

HERE = "palyra.gateway.http.openai"
FAILURE = Later(f"{HERE}.errors", "ErrorAnswer")


class V1Routes:
    """The operations of `/v1`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._loaded: dict[str, Any] = {}

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/v1/models",
                self._handler("models", "ModelsDoor", "index"),
                "List the agents and models that can be asked.",
                answer=Later(f"{HERE}.models", "ModelList"),
                failure=FAILURE,
            ),
            Operation(
                "GET",
                "/v1/models/{model_name:path}",
                self._handler("models", "ModelsDoor", "show"),
                "Show an agent or a model.",
                answer=Later(f"{HERE}.models", "ModelEntry"),
                failure=FAILURE,
            ),
            Operation(
                "POST",
                "/v1/chat/completions",
                self._handler("chat", "Chat", "complete"),
                "Answer a conversation, as OpenAI's API does.",
                need="write",
                body=Later(f"{HERE}.chat_request", "ChatRequest"),
                answer=Later(f"{HERE}.completion", "ChatAnswer"),
                failure=FAILURE,
                streams=True,
            ),
            Operation(
                "POST",
                "/v1/responses",
                self._handler("responses", "Responses", "create"),
                "Answer a message and go on from an earlier answer, as OpenAI's API does.",
                need="write",
                body=Later(f"{HERE}.response_request", "ResponseRequest"),
                answer=Later(f"{HERE}.response", "Response"),
                failure=FAILURE,
                streams=True,
            ),
            Operation(
                "GET",
                "/v1/responses/{response_id}",
                self._handler("responses", "Responses", "show"),
                "Show an answer again.",
                answer=Later(f"{HERE}.response", "Response"),
                failure=FAILURE,
            ),
            Operation(
                "POST",
                "/v1/embeddings",
                self._handler("embeddings", "Embeddings", "create"),
                "Turn texts into vectors, by a provider that can.",
                need="write",
                body=Later(f"{HERE}.embeddings", "EmbeddingsRequest"),
                answer=Later(f"{HERE}.embeddings", "EmbeddingsAnswer"),
                failure=FAILURE,
            ),
        ]

    def _handler(self, module: str, name: str, method: str) -> Handler:
        """Return what loads a part of the door when it is first asked, and has it answer."""

        async def handler(request: Request, principal: PrincipalId) -> ASGIApp:
            if module not in self._loaded:
                loaded = await asyncio.to_thread(import_module, f"{HERE}.{module}")
                self._loaded.setdefault(module, getattr(loaded, name)(self._parts))
            answered: ASGIApp = await getattr(self._loaded[module], method)(request, principal)
            return answered

        return handler
