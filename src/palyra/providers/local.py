"""A model file that is run in this process: no key, no network.

It is asked in the words of OpenAI Chat Completions, which llama.cpp speaks, but by a call and not over a line.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec

from palyra.core.errors import NotFound
from palyra.core.model import Capabilities, ModelCard, ModelProvider
from palyra.core.prompt import CallProposed, ModelEvent, Prompt
from palyra.core.tool import JsonObject
from palyra.providers.base import FailureKind, ProviderFailed
from palyra.providers.calls import call_id
from palyra.providers.dialect import Target
from palyra.providers.failure import failure
from palyra.providers.gguf import Head, NotAModel, read_head
from palyra.providers.llama import Asked, Llama, LlamaFailed, Question
from palyra.providers.openai import DIALECT

USUAL_WINDOW = 8192
"""How large a window is unless its owner says so: many models were trained for more than a machine has room for."""
ANSWER_SHARE = 4
"""One part in so many of the window is for the answer."""

BUSY = "it was busy with other answers for {seconds:g} s; total_seconds says how long it is waited for"
SILENT = "it did not begin to read within {seconds:g} s"
STALLED = "its answer stood still for {seconds:g} s"
ENDLESS = "its answer was not over after {seconds:g} s"

BEGUN = b""
_TOOLS = re.compile(r"\btools\b")


class ModelNotInFile(NotFound):
    """A local provider has one model only, the one in its file."""


class Local:
    """The model of one file."""

    def __init__(
        self, name: str, settings: ModelProvider, card: ModelCard, llama: Llama, *, max_output_tokens: int = 8192
    ) -> None:
        """`card` has no gaps (see `known`). An answer is as long as it and `max_output_tokens` both allow."""
        self.name = name
        self.model = model_name(settings)
        self._settings = settings
        self._llama = llama
        window, longest = card.window_tokens or USUAL_WINDOW, card.max_output_tokens or max_output_tokens
        self._target = Target(
            provider=name, model=self.model, card=card, max_output_tokens=max(1, min(longest, max_output_tokens))
        )
        self.capabilities = Capabilities(
            window_tokens=window, max_output_tokens=longest, tools=card.tools != "none", vision=False
        )

    async def stream(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        """Ask the model once. One that is busy with another answer is waited for.

        When the answer is not wanted any more, the model stops after its next token, or the next few of the prompt. The
        caller does not wait for that; who asks next does.
        """
        question = self._question(prompt)
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[bytes | None] = asyncio.Queue()

        def tell(piece: bytes | None) -> None:
            # After the end of the loop nobody listens.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        asked = Asked(begun=lambda: tell(BEGUN), piece=lambda piece: tell(piece.encode()))
        reader = DIALECT.reader(prompt, self._target)
        patience = _Patience(self._settings, loop.time())
        calls, begun = 0, False
        try:
            answered = self._llama.ask(question, asked)
            answered.add_done_callback(lambda _: tell(None))
            while (piece := await self._next(pieces, patience)) is not None:
                if piece == BEGUN:
                    begun = True
                    patience.begins(loop.time())
                    continue
                patience.goes_on(loop.time())
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
            raise failure(self._target, FailureKind.MALFORMED, why="it sent no whole JSON") from error
        finally:
            asked.take_back()

    def _question(self, prompt: Prompt) -> Question:
        try:
            body: JsonObject = msgspec.json.decode(DIALECT.request(prompt, self._target).body)
        except (UnicodeError, RecursionError) as error:
            raise failure(self._target, FailureKind.MALFORMED, why="the conversation can not be sent") from error
        # It tells how far it has read, so that a long prompt is not taken for silence, and can be taken back.
        body["return_progress"] = True
        return Question(path_of(self._settings), self.capabilities.window_tokens, msgspec.json.encode(body))

    async def _next(self, pieces: "asyncio.Queue[bytes | None]", patience: "_Patience") -> bytes | None:
        try:
            async with asyncio.timeout_at(patience.until):
                return await pieces.get()
        except TimeoutError:
            raise failure(self._target, FailureKind.TIMEOUT, why=patience.why) from None


class _Patience:
    """How long the next piece is waited for, and what is said if it does not come."""

    def __init__(self, settings: ModelProvider, now: float) -> None:
        self._settings = settings
        self._ends_at = self.until = now + settings.total_seconds
        self.why = BUSY.format(seconds=settings.total_seconds)

    def begins(self, now: float) -> None:
        """The model has turned to this question."""
        self._ends_at = now + self._settings.total_seconds
        self._wait(now, self._settings.first_byte_seconds, SILENT)

    def goes_on(self, now: float) -> None:
        """A piece has come."""
        self._wait(now, self._settings.idle_seconds, STALLED)

    def _wait(self, now: float, seconds: float, why: str) -> None:
        if now + seconds < self._ends_at:
            self.until, self.why = now + seconds, why.format(seconds=seconds)
        else:
            self.until, self.why = self._ends_at, ENDLESS.format(seconds=self._settings.total_seconds)


def path_of(settings: ModelProvider) -> Path:
    """Return where the model file is."""
    return Path(os.path.expanduser(settings.path or ""))


def model_name(settings: ModelProvider, asked: str | None = None) -> str:
    """Return what the model is called: as its owner says, or else as its file is. It can be asked by no other name."""
    name = settings.model or path_of(settings).stem
    if asked is not None and asked != name:
        raise ModelNotInFile(f"There is no model {asked[:60]!r} in the file {settings.path}. Its model is {name}.")
    return name


def known(settings: ModelProvider) -> ModelCard:
    """Return what the owner says about the model, and what its file does where nothing is said. Blocks.

    A file that can not be read is nobody's fault yet: it is told when the model is asked.
    """
    try:
        head = read_head(path_of(settings))
    except NotAModel:
        head = Head(size=0)
    said = settings.models.get(model_name(settings), ModelCard())
    window = said.window_tokens or min(head.trained_tokens or USUAL_WINDOW, USUAL_WINDOW)
    return ModelCard(
        window_tokens=window,
        max_output_tokens=min(said.max_output_tokens or window // ANSWER_SHARE, window),
        # Who was taught a way to call tools has it in the template; others are made to.
        tools=said.tools or ("native" if _TOOLS.search(head.chat_template) else "schema"),
        vision=False,
        reasoning=bool(said.reasoning),
    )
