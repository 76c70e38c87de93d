"""A model that is called over HTTP: one attempt, with timeouts, limits, and one sentence for each failure.

The dialect builds the request and parses the answer. What is common to all dialects is here: keys, connection errors,
and redaction. `answer.py` checks the invariants of a turn.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from urllib.parse import urlsplit

import msgspec

from palyra.core.errors import PalyraError
from palyra.core.model.catalog import Capabilities, ModelCard, ModelProvider
from palyra.core.model.prompt import ModelEvent, Prompt, TurnDone
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.dialect import Dialect, ModelTarget, ProviderRequest
from palyra.providers.failures import BROKE_OFF, failure, quoted, retry_after
from palyra.providers.transport.answer import AnswerInProgress
from palyra.providers.transport.http import MAX_LIST_BYTES, ProviderHttpClient, RequestFailed, ResponseStream
from palyra.providers.transport.key_redaction import KeyRedactor
from palyra.providers.transport.sse import EventTooLarge, begins
from palyra.providers.transport.unstreamed import as_events
from palyra.secret_references import KINDS

MAX_PASSED_ON_BYTES = 48 * 1024 * 1024
LARGE_BYTES = 256 * 1024
"""Images larger than this in total are encoded off the event loop."""
BODY_SECONDS = 10.0

CANNOT_BE_SENT = "the conversation cannot be encoded for {model} of {provider}: start a new session"
MOVED = (
    "{provider} redirects requests for {model} to {host}, and its key is not sent there: set base_url if that is right"
)

ResolveKey = Callable[[str], Awaitable[str]]
"""Returns the secret of a reference, or raises a `PalyraError` that says where it should be."""

log = logging.getLogger(__name__)


class RemoteProvider:
    """One model of one provider."""

    def __init__(
        self,
        name: str,
        model: str,
        *,
        speaks: Dialect,
        settings: ModelProvider,
        card: ModelCard,
        key: ResolveKey,
        http: ProviderHttpClient,
        max_output_tokens: int = 8192,
    ) -> None:
        """All fields of `card` are set (see `full_model_card`). Both it and `max_output_tokens` limit the answer."""
        self.name = name
        self.model = model
        self._speaks = speaks
        self._settings = settings
        self._key = key
        self._http = http
        window, longest = card.window_tokens or 0, card.max_output_tokens or max_output_tokens
        self._base_url = (settings.base_url or speaks.base_url).rstrip("/")
        self._target = ModelTarget(
            provider=name,
            model=model,
            card=card,
            max_output_tokens=max(1, min(longest, max_output_tokens)),
            base_url=self._base_url,
        )
        self.capabilities = Capabilities(
            window_tokens=window, max_output_tokens=longest, tools=card.tools != "none", vision=bool(card.vision)
        )

    async def stream(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        """Make one attempt of a model turn."""
        ends_at = asyncio.get_running_loop().time() + self._settings.total_timeout_seconds
        hidden = KeyRedactor()
        try:
            request = await self._request(prompt)
            async with await self._send(request, hidden) as answer:
                piece = await self._begun(answer)
                turn = AnswerInProgress(prompt, self._target, self._speaks.reader(prompt, self._target))
                while piece:
                    for event in turn.take(piece):
                        if type(event) is TurnDone:
                            # At its end the connection can be reused.
                            await answer.finish()
                        for model_event in hidden.out_of_event(event):
                            yield model_event
                        if type(event) is TurnDone:
                            return
                    piece = await self._piece(answer, ends_at)
                for event in turn.end():
                    for model_event in hidden.out_of_event(event):
                        yield model_event
                    if type(event) is TurnDone:
                        return
                raise failure(self._target, FailureKind.NETWORK, why="the stream ended early", instead=BROKE_OFF)
        except RequestFailed as failed:
            raise self._line_failed(failed) from failed
        except ProviderFailed as failed:
            raise hidden.out_of(failed) from failed.__cause__
        except (msgspec.DecodeError, UnicodeDecodeError, EventTooLarge, RecursionError) as error:
            raise self._malformed(error) from error

    async def models(self) -> list[str]:
        """Return the models that the provider lists, or raise `ProviderFailed`."""
        hidden = KeyRedactor()
        try:
            async with await self._send(None, hidden) as answer:
                body = await answer.body(seconds=self._settings.first_byte_timeout_seconds, maximum=MAX_LIST_BYTES)
            return self._speaks.listed(hidden.out_of_bytes(body))
        except RequestFailed as failed:
            raise self._line_failed(failed) from failed
        except ProviderFailed as failed:
            raise hidden.out_of(failed) from failed.__cause__
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise failure(self._target, FailureKind.MALFORMED, why="its list of models is not valid") from error

    async def pass_on(self, request: ProviderRequest) -> bytes:
        """Send a request that another component built, and return the whole answer; or raise `ProviderFailed`."""
        hidden = KeyRedactor()
        try:
            async with await self._send(request, hidden) as answer:
                body = await answer.body(seconds=self._settings.total_timeout_seconds, maximum=MAX_PASSED_ON_BYTES)
            return hidden.out_of_bytes(body)
        except RequestFailed as failed:
            raise self._line_failed(failed) from failed
        except ProviderFailed as failed:
            raise hidden.out_of(failed) from failed.__cause__

    async def _request(self, prompt: Prompt) -> ProviderRequest:
        try:
            if sum(map(len, prompt.images.values())) > LARGE_BYTES:
                return await asyncio.to_thread(self._speaks.request, prompt, self._target)
            return self._speaks.request(prompt, self._target)
        except (UnicodeError, RecursionError) as error:
            raise failure(self._target, FailureKind.MALFORMED, instead=CANNOT_BE_SENT, refused=True) from error

    async def _send(self, request: ProviderRequest | None, hidden: KeyRedactor) -> ResponseStream:
        """Send a request, or request the list of models, with the first key that is not refused."""
        headers = {**(request.headers if request is not None else {}), **await self._own_headers(hidden)}
        references = [reference for reference in (self._settings.key, *self._settings.keys) if reference] or [""]
        failed: ProviderFailed | None = None
        for reference in references:
            try:
                key = await self._authorised(reference, hidden)
            except ProviderFailed as error:
                failed = error
                continue
            answer = await self._ask(request, {**headers, **key})
            if 200 <= answer.status < 300:
                return answer
            async with answer:
                failed = await self._refused(answer, reference)
            if failed.kind is not FailureKind.AUTH:
                break
            if reference != references[-1]:
                # It is a failure even if another key works, and would otherwise go unnoticed.
                log.warning(
                    "%s rejected the key at %s; trying the next key",
                    self.name,
                    reference,
                    extra={
                        "provider": self.name,
                        "model": self.model,
                        "code": "model_auth",
                        "status": failed.status,
                        "next": "next key",
                    },
                )
        assert failed is not None, "there is always a key to try, even if it is None"
        raise failed

    async def _ask(self, request: ProviderRequest | None, headers: Mapping[str, str]) -> ResponseStream:
        seconds = min(self._settings.first_byte_timeout_seconds, self._settings.total_timeout_seconds)
        if request is None:
            url = _address(self._base_url, self._speaks.list_path())
            return await self._http.get(url, headers=headers, seconds=seconds)
        url = _address(self._base_url, request.path)
        return await self._http.post(url, headers=headers, body=request.body, seconds=seconds)

    async def _authorised(self, reference: str, hidden: KeyRedactor) -> Mapping[str, str]:
        """Return the headers with the key of a reference; none if there is no reference."""
        if not reference:
            return {}
        secret = await self._secret(reference, hidden)
        return self._speaks.authorised(secret)

    async def _own_headers(self, hidden: KeyRedactor) -> dict[str, str]:
        return {
            name: await self._secret(value, hidden) if _is_reference(value) else value
            for name, value in self._settings.headers.items()
        }

    async def _secret(self, reference: str, hidden: KeyRedactor) -> str:
        try:
            secret = await self._key(reference)
        except PalyraError as error:
            why = error.detail.rstrip(".")
            raise self._no_key(f"the key of {{provider}} for {{model}} cannot be read from {reference}", why) from error
        if not (secret and secret.isascii() and secret.isprintable()):
            raise self._no_key(
                f"the value of {reference} is not a key for {{model}} of {{provider}}: it is empty, or "
                "has characters that cannot be sent, such as line breaks"
            )
        hidden.add(secret, reference)
        return secret

    def _no_key(self, tells: str, why: str = "") -> ProviderFailed:
        tells = tells.replace("{provider}", self.name).replace("{model}", self.model)
        return ProviderFailed(
            (
                f"{tells[0].upper()}{tells[1:]}{f' ({why})' if why else ''}. Store it there, or set another "
                f"key in [model.providers.{self.name}]."
            ),
            kind=FailureKind.AUTH,
            refused=True,
        )

    async def _refused(self, answer: ResponseStream, reference: str) -> ProviderFailed:
        """Return the failure for a response that is not 2xx."""
        if 300 <= answer.status < 400:
            instead = MOVED.replace("{host}", _host(answer.headers.get("location", "")))
            return failure(self._target, FailureKind.MALFORMED, instead=instead, refused=True)
        body = await answer.body(seconds=BODY_SECONDS)
        provider_failed = self._speaks.refused(answer.status, answer.headers, body, self._target)
        detail = self._key_refused(reference) if provider_failed.kind is FailureKind.AUTH else provider_failed.detail
        wait = provider_failed.retry_after or retry_after(answer.headers)
        return ProviderFailed(
            detail,
            kind=provider_failed.kind,
            retry_after=wait,
            refused=answer.status >= 400,
            status=answer.status,
            cause=provider_failed.cause,
        )

    def _key_refused(self, reference: str) -> str:
        table = f"[model.providers.{self.name}]"
        if not reference:
            return f"{self.name} requires a key for {self.model}, and none is set. Set key in {table}."
        return (
            f"{self.name} rejected the key at {reference} for {self.model}. Store a valid one there, or "
            f"set another key in {table}."
        )

    async def _begun(self, answer: ResponseStream) -> bytes:
        """Return the first bytes of the stream, or raise the failure for what came instead."""
        first = await answer.begin()
        if answer.headers.get("content-encoding", "").strip().lower() not in ("", "identity", "none"):
            raise failure(
                self._target, FailureKind.MALFORMED, why="its response is compressed, which was not requested"
            )
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/event-stream":
            return first
        # Some servers send another content type.
        while len(first.lstrip()) < 6 and (more := await answer.begin()):
            first += more
        if begins(first):
            return first
        body = await answer.body(seconds=BODY_SECONDS, first=first, maximum=MAX_LIST_BYTES)
        if data := as_events(self._settings.dialect, body):
            return data
        raise self._speaks.refused(answer.status, answer.headers, body, self._target)

    async def _piece(self, answer: ResponseStream, ends_at: float) -> bytes:
        """Return the next bytes of the stream; empty at its end."""
        idle_at = asyncio.get_running_loop().time() + self._settings.read_timeout_seconds
        try:
            return await answer.read(until=min(idle_at, ends_at))
        except RequestFailed as failed:
            if failed.kind is not FailureKind.TIMEOUT:
                raise
            if idle_at < ends_at:
                why = f"its answer stalled for {self._settings.read_timeout_seconds:g} s"
            else:
                why = f"its answer was not complete after {self._settings.total_timeout_seconds:g} s"
            raise RequestFailed(FailureKind.TIMEOUT, why, begun=True) from failed

    def _line_failed(self, failed: RequestFailed) -> ProviderFailed:
        instead = BROKE_OFF if failed.begun and failed.kind is FailureKind.NETWORK else ""
        return failure(self._target, failed.kind, why=failed.why, instead=instead, refused=failed.refused)

    def _malformed(self, error: Exception) -> ProviderFailed:
        why = "a part of its answer is too large" if isinstance(error, EventTooLarge) else "it sent incomplete JSON"
        return failure(self._target, FailureKind.MALFORMED, why=why)


def full_model_card(settings: ModelProvider, speaks: Dialect, model: str) -> ModelCard:
    """Return what the owner says about a model, and otherwise what is known or estimated."""
    card, cached_card = settings.models.get(model, ModelCard()), speaks.model_card(model)
    return ModelCard(
        **{
            field: getattr(cached_card if getattr(card, field) is None else card, field)
            for field in ModelCard.__struct_fields__
        }
    )


def _address(base_url: str, path: str) -> str:
    """Return the URL of a request; the query of the base URL (`?api-version=…`) comes after the path."""
    base, mark, query = base_url.partition("?")
    return base.rstrip("/") + path + (f"{'&' if '?' in path else '?'}{query}" if mark else "")


def _host(location: str) -> str:
    """Return the target of a redirect, as far as it may be shown."""
    try:
        host = urlsplit(location[:2000]).hostname or ""
    except ValueError:
        host = ""
    return quoted(host) or "another host"


def _is_reference(value: str) -> bool:
    kind, colon, rest = value.partition(":")
    return bool(colon and rest) and kind in KINDS and not rest.startswith("//")
