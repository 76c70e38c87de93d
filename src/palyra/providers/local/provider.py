"""The provider "local": a model file that runs in this process, without key or network.

Requests have the format of OpenAI Chat Completions, which llama.cpp accepts, but are function calls and not HTTP.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec

from palyra.core.model.catalog import Capabilities, ModelCard, ModelNotFound, ModelProvider
from palyra.core.model.prompt import CallProposed, ModelEvent, Prompt
from palyra.core.tool import JsonObject
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.dialect import ModelTarget
from palyra.providers.dialects.openai import DIALECT
from palyra.providers.failures import failure
from palyra.providers.local.gguf import GgufHeader, GgufInvalid, read_header
from palyra.providers.local.llama import LlamaFailed, LlamaGeneration, LlamaRequest, LlamaRuntime
from palyra.providers.tool_calls import call_id

DEFAULT_WINDOW_TOKENS = 8192
"""The default window: many models were trained for more than a machine has memory for."""
ANSWER_SHARE = 4
"""The share of the window for the answer: one part in this many."""

BUSY = "it was busy with other answers for {seconds:g} s, the limit in total_timeout_seconds"
SILENT = "it did not start to read the prompt within {seconds:g} s"
STALLED = "its answer stalled for {seconds:g} s"
ENDLESS = "its answer was not complete after {seconds:g} s"

BEGUN = b""
_TOOLS = re.compile(r"\btools\b")


class LocalProvider:
    """The model of one file."""

    def __init__(
        self, name: str, settings: ModelProvider, card: ModelCard, llama: LlamaRuntime, *, max_output_tokens: int = 8192
    ) -> None:
        """All fields of `card` are set (see `known`). Both it and `max_output_tokens` limit the answer."""
        self.name = name
        self.model = model_name(settings)
        self._settings = settings
        self._llama = llama
        window, longest = card.window_tokens or DEFAULT_WINDOW_TOKENS, card.max_output_tokens or max_output_tokens
        self._target = ModelTarget(
            provider=name, model=self.model, card=card, max_output_tokens=max(1, min(longest, max_output_tokens))
        )
        self.capabilities = Capabilities(
            window_tokens=window, max_output_tokens=longest, tools=card.tools != "none", vision=False
        )

    async def stream(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        """Request one answer. If the model is busy with another answer, the request waits.

        When the request is cancelled, the model stops after its next token, or the next few of the prompt. The caller
        does not wait for that; the next request does.
        """
        question = self._question(prompt)
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[bytes | None] = asyncio.Queue()

        def tell(piece: bytes | None) -> None:
            # After the loop has ended there is no listener.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        llama_generation = LlamaGeneration(begun=lambda: tell(BEGUN), piece=lambda piece: tell(piece.encode()))
        reader = DIALECT.reader(prompt, self._target)
        timeout = _ReadTimeout(self._settings, loop.time())
        calls, begun = 0, False
        try:
            answered = self._llama.ask(question, llama_generation)
            answered.add_done_callback(lambda _: tell(None))
            while (piece := await self._next(pieces, timeout)) is not None:
                if piece == BEGUN:
                    begun = True
                    timeout.begins(loop.time())
                    continue
                timeout.goes_on(loop.time())
                for event in reader.feed("", piece):
                    yield event
            answered.result()
            for event in reader.end():
                if isinstance(event, CallProposed):
                    calls += 1
                    event = msgspec.structs.replace(event, call_id=event.call_id or call_id(prompt, calls))
                yield event
        except LlamaFailed as failed:
            kind = FailureKind.UNUSABLE if failed.lasting else FailureKind.UNAVAILABLE
            if begun:
                kind = FailureKind.MALFORMED
            raise ProviderFailed(str(failed), kind=kind, refused=True) from failed
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise failure(self._target, FailureKind.MALFORMED, why="it sent incomplete JSON") from error
        finally:
            llama_generation.take_back()

    def _question(self, prompt: Prompt) -> LlamaRequest:
        try:
            body: JsonObject = msgspec.json.decode(DIALECT.request(prompt, self._target).body)
        except (UnicodeError, RecursionError) as error:
            raise failure(self._target, FailureKind.MALFORMED, why="the conversation cannot be sent") from error
        # It reports its progress, so that a long prompt does not time out, and can be cancelled.
        body["return_progress"] = True
        return LlamaRequest(path_of(self._settings), self.capabilities.window_tokens, msgspec.json.encode(body))

    async def _next(self, pieces: "asyncio.Queue[bytes | None]", limit: "_ReadTimeout") -> bytes | None:
        try:
            async with asyncio.timeout_at(limit.until):
                return await pieces.get()
        except TimeoutError:
            raise failure(self._target, FailureKind.TIMEOUT, why=limit.why) from None


class _ReadTimeout:
    """The timeout for the next piece, and the error if it does not come."""

    def __init__(self, settings: ModelProvider, now: float) -> None:
        self._settings = settings
        self._ends_at = self.until = now + settings.total_timeout_seconds
        self.why = BUSY.format(seconds=settings.total_timeout_seconds)

    def begins(self, now: float) -> None:
        """The model has begun to process this request."""
        self._ends_at = now + self._settings.total_timeout_seconds
        self._wait(now, self._settings.first_byte_timeout_seconds, SILENT)

    def goes_on(self, now: float) -> None:
        """A piece has come."""
        self._wait(now, self._settings.read_timeout_seconds, STALLED)

    def _wait(self, now: float, seconds: float, why: str) -> None:
        if now + seconds < self._ends_at:
            self.until, self.why = now + seconds, why.format(seconds=seconds)
        else:
            self.until, self.why = self._ends_at, ENDLESS.format(seconds=self._settings.total_timeout_seconds)


def path_of(settings: ModelProvider) -> Path:
    """Return the path of the model file."""
    return Path(os.path.expanduser(settings.path or ""))


def model_name(settings: ModelProvider, request: str | None = None) -> str:
    """Return the model's name: the owner's, or that of its file. It has no other name."""
    name = settings.model or path_of(settings).stem
    if request is not None and request != name:
        raise ModelNotFound(f"Unknown model {request[:60]!r}. The file {settings.path} contains {name}.")
    return name


def model_card(settings: ModelProvider) -> ModelCard:
    """Return what the owner says about the model, and otherwise what its file says. Blocks.

    A file that cannot be read is not an error yet: it is reported when the model is used.
    """
    try:
        head = read_header(path_of(settings))
    except GgufInvalid:
        head = GgufHeader(size=0)
    card = settings.models.get(model_name(settings), ModelCard())
    window = card.window_tokens or min(head.trained_tokens or DEFAULT_WINDOW_TOKENS, DEFAULT_WINDOW_TOKENS)
    return ModelCard(
        window_tokens=window,
        max_output_tokens=min(card.max_output_tokens or window // ANSWER_SHARE, window),
        # Models trained to call tools have that in the template; for others calls are emulated.
        tools=card.tools or ("native" if _TOOLS.search(head.chat_template) else "schema"),
        vision=False,
        reasoning=bool(card.reasoning),
    )
