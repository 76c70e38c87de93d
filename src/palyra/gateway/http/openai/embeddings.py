"""`/v1/embeddings`: passed on to a provider that has them, as it is."""

from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.errors import Denied, Invalid
from palyra.core.ids import PrincipalId
from palyra.core.model import Dialect, split
from palyra.gateway.http.openai.errors import FAILURES, ModelNotFound, fault
from palyra.gateway.http.openai.models import AGENT
from palyra.gateway.http.openai.parts import Parts
from palyra.gateway.http.openai.request import Rules, parse, read_json
from palyra.providers.base import ProviderFailed
from palyra.providers.dialect import Request as Passed
from palyra.providers.registry import check_name

SPEAK = (Dialect.OPENAI, Dialect.RESPONSES)
"""Dialects whose makers have embeddings of this form."""
NAME_CHARS = 100

RULES: Rules = {}


class NoEmbeddings(ModelNotFound):
    """No model is set for embeddings. Set `model.embeddings` to PROVIDER/MODEL, or ask for a PROVIDER/MODEL."""


class EmbeddingsUnsupported(Invalid):
    """This provider has no embeddings that could be passed on: its dialect must be `openai` or `responses`."""

    param = "model"


class EmbeddingsUncounted(Denied):
    """Budgets are set, and embeddings are no turns of a run that could be held against them. Remove the budgets in
    [spending], or ask the provider of the embeddings yourself."""


class EmbeddingsRequest(Struct, frozen=True, kw_only=True):
    """Texts to be turned into vectors; they may be tokens already."""

    model: str
    input: str | list[str | int | list[int]]
    encoding_format: str | None = None
    dimensions: int | None = None
    user: str | None = None


class Embedding(Struct, frozen=True, kw_only=True):
    """One vector, as numbers, or as base64 of them."""

    object: str
    index: int
    embedding: list[float] | str


class EmbeddingsAnswer(Struct, frozen=True, kw_only=True):
    """The vectors, in the order of the texts."""

    object: str
    data: list[Embedding]
    model: str
    usage: dict[str, Any]


class Embeddings:
    """Passes requests on."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def create(self, request: Request, principal: PrincipalId) -> Response:
        """Have texts turned into vectors."""
        body = await read_json(request)
        asked = parse(body, EmbeddingsRequest, RULES)
        if self._parts.budgets_are_set():
            raise EmbeddingsUncounted
        provider, model = self._target(asked.model)
        # Who asks is nothing that the provider must know.
        passed = {name: value for name, value in {**body, "model": model}.items() if name != "user"}
        content = msgspec.json.encode(passed)
        remote = self._parts.remote(provider, model)
        try:
            answer = await remote.pass_on(Passed("/embeddings", {"Content-Type": "application/json"}, content))
            read = msgspec.json.decode(answer, type=EmbeddingsAnswer)
        except ProviderFailed as failed:
            status, code = FAILURES.get(f"model_{failed.kind.value}", (502, f"model_{failed.kind.value}"))
            return fault(status, code, failed.detail).answer()
        except (msgspec.DecodeError, UnicodeDecodeError):
            said = f"{provider} gave no embeddings for {model}, but something else. Check its base_url, and the model."
            return fault(502, "model_malformed", said).answer()
        return Response(msgspec.json.encode(read), media_type="application/json")

    def _target(self, name: str) -> tuple[str, str]:
        settings = self._parts.settings()
        provider, model = split(name)
        if model is None or provider not in settings.providers:
            own = settings.embeddings
            if own is None:
                raise NoEmbeddings
            provider, model = split(own)
            offered = settings.providers.get(provider)
            model = model or (offered.model if offered is not None else None)
            if name not in (AGENT, own, model):
                raise ModelNotFound(
                    f"There is no model {name[:NAME_CHARS]!r} for embeddings. Ask for {own}, or for PROVIDER/MODEL."
                )
        table = settings.providers.get(provider)
        if table is None or table.dialect not in SPEAK or model is None:
            raise EmbeddingsUnsupported
        check_name(model)
        return provider, model
