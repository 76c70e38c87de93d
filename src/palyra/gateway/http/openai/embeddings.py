"""`/v1/embeddings`: requests are forwarded unchanged to a provider that supports them, and their usage is recorded."""

import asyncio
import hashlib
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.errors import Invalid
from palyra.core.ids import PrincipalId
from palyra.core.model.catalog import DialectName, ModelNotFound, split_model_name
from palyra.core.session import SessionRef
from palyra.core.spending.budget import BudgetAction
from palyra.core.spending.usage import Usage
from palyra.core.text.secret_markers import map_texts, without_secrets
from palyra.core.text.token_bounds import max_tokens
from palyra.gateway.http.openai.errors import FAILURES, v1_error
from palyra.gateway.http.openai.models import AGENT
from palyra.gateway.http.openai.request_body import Rules, parse, read_json
from palyra.gateway.http.openai.run_follower import session_of
from palyra.gateway.http.openai.services import V1Services
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.dialect import ProviderRequest as Passed
from palyra.providers.dialects.usage_counts import count
from palyra.providers.registry import check_name
from palyra.providers.transport.answer import MAX_TOKENS
from palyra.runs.services.budgets import BudgetExceeded
from palyra.runs.services.embeddings import EmbeddingsRequestRecord, Vectors

SPEAK = (DialectName.OPENAI, DialectName.RESPONSES)
"""Dialects whose providers have embeddings of this form."""
NAME_CHARS = 100
CANNOT_WAIT = "This budget asks for approval, but a request for embeddings cannot wait for one, so it is refused."

RULES: Rules = {}
_VECTOR = re.compile(rb"\[[-+0-9.eE,\s]*\]|\"(?:[^\"\\]+|\\.)*\"")
"""For valid JSON only."""


class EmbeddingsNotConfigured(ModelNotFound):
    """No model is set for embeddings. Set `model.embeddings` to PROVIDER/MODEL, or request a PROVIDER/MODEL."""


class EmbeddingsUnsupported(Invalid):
    """This provider does not support embeddings: its dialect must be `openai` or `responses`."""

    param = "model"


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


class EmbeddingsResponse(Struct, frozen=True, kw_only=True):
    """The vectors, in the order of the texts."""

    object: str
    data: list[Embedding]
    model: str
    usage: dict[str, Any]
    """An estimate if the provider does not count."""


class _Vector(Struct):
    """A vector as providers send it: some leave out what goes without saying."""

    embedding: msgspec.Raw
    """Forwarded as it is: decoded, the numbers of a large response would take several times its size."""
    index: int | None = None
    object: str = "embedding"


class _ProviderEmbeddings(Struct):
    """What providers send."""

    data: list[_Vector]
    object: str = "list"
    model: str | None = None
    usage: dict[str, Any] | None = None


class EmbeddingsEndpoint:
    """Forwards embedding requests to providers."""

    def __init__(self, parts: V1Services) -> None:
        self._parts = parts

    async def create(self, request: Request, principal: PrincipalId) -> Response:
        """Create embeddings for texts."""
        body = await read_json(request)
        requested_request = parse(body, EmbeddingsRequest, RULES)
        provider, model = self._target(requested_request.model)
        session = session_of(request, user=requested_request.user)
        # Decoding and counting many texts would block all other requests.
        content, size, digest = await asyncio.to_thread(_content, body, model)
        texts, tokens = await asyncio.to_thread(_counted, requested_request.input)
        record = EmbeddingsRequestRecord(
            principal=principal,
            session=session if session != SessionRef() else None,
            provider=provider,
            model=model,
            texts=texts,
            size=size,
            digest=digest,
            tokens=tokens,
        )
        try:
            begun, vectors = await self._parts.embeddings.ask(record, lambda: self._pass_on(record, content))
        except BudgetExceeded as refused:
            status, code = FAILURES["budget_exceeded"]
            return v1_error(status, code, _refusal_text(refused)).answer()
        except ProviderFailed as failed:
            status, code = FAILURES.get(f"model_{failed.kind.value}", (502, f"model_{failed.kind.value}"))
            return v1_error(status, code, failed.detail).answer()
        headers = {"x-request-id": begun.request_id, "x-palyra-session-id": begun.session_id}
        return Response(vectors.content, media_type="application/json", headers=headers)

    async def _pass_on(self, record: EmbeddingsRequestRecord, content: bytes) -> Vectors:
        """Send the request to the provider once."""
        remote = self._parts.remote(record.provider, record.model)
        answer = await remote.pass_on(Passed("/embeddings", {"Content-Type": "application/json"}, content))
        try:
            vectors = await asyncio.to_thread(_read, answer, record)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProviderFailed(
                (
                    f"The response of {record.provider} for {record.model} does not contain embeddings. "
                    "Check its base_url, and the model."
                ),
                kind=FailureKind.MALFORMED,
            ) from error
        if vectors.count < record.texts:
            raise ProviderFailed(
                (
                    f"{record.provider} returned only {vectors.count} of the {record.texts} embeddings "
                    f"requested from {record.model}. Send fewer texts at once."
                ),
                kind=FailureKind.MALFORMED,
            )
        return vectors

    def _target(self, name: str) -> tuple[str, str]:
        settings = self._parts.settings()
        provider, model = split_model_name(name)
        if model is None or provider not in settings.providers:
            own = settings.embeddings
            if own is None:
                raise EmbeddingsNotConfigured
            provider, model = split_model_name(own)
            offered = settings.providers.get(provider)
            model = model or (offered.model if offered is not None else None)
            if name not in (AGENT, own, model):
                raise ModelNotFound(
                    f"Unknown model {name[:NAME_CHARS]!r} for embeddings. Use {own}, or PROVIDER/MODEL."
                )
        table = settings.providers.get(provider)
        if table is None or table.dialect not in SPEAK or model is None:
            raise EmbeddingsUnsupported
        check_name(model)
        return provider, model


def _content(body: dict[str, Any], model: str) -> tuple[bytes, int, str]:
    """Return the body for the provider, and the length and the digest of its texts."""
    texts = msgspec.json.encode(body["input"])
    # The provider need not know the user.
    passed = {name: value for name, value in {**body, "model": model}.items() if name != "user"}
    # The digest stays here. The digest of a secret alone would let others test guesses of it.
    data = msgspec.json.encode(map_texts(body["input"], without_secrets))
    return msgspec.json.encode(passed), len(texts), hashlib.sha256(data).hexdigest()


def _counted(value: str | Sequence[str | int | list[int]]) -> tuple[int, int]:
    """Return how many texts there are, and an upper bound of their tokens; texts that are tokens already are counted.

    One list of numbers is one text.
    """
    if isinstance(value, str):
        return 1, max_tokens(value)
    numbers = [one for one in value if isinstance(one, int)]
    tokens = len(numbers)
    for one in value:
        if not isinstance(one, int):
            tokens += max_tokens(one) if isinstance(one, str) else len(one)
    return len(value) - len(numbers) + bool(numbers), tokens


def _read(answer: bytes, record: EmbeddingsRequestRecord) -> Vectors:
    """Decode a provider's response, and the usage that it reports."""
    provider_embeddings = msgspec.json.decode(answer, type=_ProviderEmbeddings)
    counted = count(provider_embeddings.usage, "prompt_tokens") or count(provider_embeddings.usage, "total_tokens")
    usage = Usage(input_tokens=counted) if 0 < counted <= MAX_TOKENS else None
    tokens = usage.input_tokens if usage is not None else record.tokens
    told_usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    if not all(_VECTOR.fullmatch(one.embedding) for one in provider_embeddings.data):
        raise msgspec.ValidationError("a vector must be a list of numbers, or base64 of them")
    # Like `EmbeddingsResponse`, except for the vectors.
    fields = {
        "object": provider_embeddings.object,
        "data": [
            {"object": one.object, "index": index if one.index is None else one.index, "embedding": one.embedding}
            for index, one in enumerate(provider_embeddings.data)
        ],
        "model": provider_embeddings.model or record.model,
        "usage": told_usage if usage is None else {**told_usage, **(provider_embeddings.usage or {})},
    }
    return Vectors(msgspec.json.encode(fields), len(provider_embeddings.data), usage)


def _refusal_text(refused: BudgetExceeded) -> str:
    asks = any(one.action is BudgetAction.ASK and not one.unpriced for one in refused.overdrawn)
    return f"{refused.detail} {CANNOT_WAIT}" if asks else refused.detail
