"""Removes the keys that are sent to a provider from its answers.

A server that repeats a key may send it in pieces: split by the network, or a few letters with each event. So an answer
is searched after parsing, and text that may be the beginning of a key is held back until the next piece. That is rarely
more than a letter or two.
"""

from collections.abc import Callable, Iterator

import msgspec

from palyra.core.model.prompt import CallProposed, ModelEvent, ReasoningDelta, TextDelta
from palyra.core.text.redaction import HIDDEN, hide_values, redact
from palyra.core.tool import JsonObject
from palyra.providers.base import ProviderFailed

MIN_KEY_CHARS = 20
"""Shorter keys, which self-hosted servers accept, are words that an answer may contain."""
MIN_TRACE_CHARS = 4
"""This many characters of a truncated key reveal something about it."""


class KeyRedactor:
    """The secrets that were sent: a server may repeat them."""

    def __init__(self) -> None:
        self._secrets: dict[str, str] = {}
        self._keys: list[str] = []
        self._held = ""
        """The end of the last text, if a key may begin there,"""
        self._thought = False
        """and whether it was reasoning."""

    def add(self, secret: str, reference: str) -> None:
        """Add a secret that is about to be sent, and its reference."""
        self._secrets[secret] = reference
        if len(secret) >= MIN_KEY_CHARS:
            self._keys.append(secret)

    def out_of_bytes(self, data: bytes) -> bytes:
        """Return a complete answer without the secrets."""
        for key in self._keys:
            if key.encode() in data:
                data = data.replace(key.encode(), HIDDEN.encode())
        return data

    def out_of_event(self, event: ModelEvent) -> Iterator[ModelEvent]:
        """Yield what may be shown of an answer after this event: it goes onto the tape, and to the client."""
        if not self._keys:
            yield event
            return
        thought = isinstance(event, ReasoningDelta)
        if self._held and (thought != self._thought or not isinstance(event, TextDelta | ReasoningDelta)):
            yield _piece(self._rest(), thought=self._thought)
        self._thought = thought
        match event:
            case TextDelta(text=text):
                if text := self._redacted(text):
                    yield TextDelta(text)
            case ReasoningDelta(text=text, dialect=dialect, data=data):
                displayed = self._redacted(text)
                if dialect:
                    # It ends a reasoning block: nothing of it is still to come.
                    yield ReasoningDelta(displayed + self._rest(), dialect, self._out_of_data(data))
                elif displayed:
                    yield ReasoningDelta(displayed)
            case CallProposed():
                tool, malformed = self._out_of_text(event.tool), self._out_of_text(event.malformed)
                arguments = self._out_of_data(event.arguments)
                yield msgspec.structs.replace(event, tool=tool, arguments=arguments, malformed=malformed)
            case _:
                yield event

    def _redacted(self, text: str) -> str:
        """Return what may be shown of a text that continues, and hold back the rest."""
        text = self._out_of_text(self._held + text)
        begins = min((_begins(key, text) for key in self._keys), default=len(text))
        self._held = text[begins:]
        return text[:begins]

    def _rest(self) -> str:
        """Return what was held back, at the end of the text. A few letters may be any word; half a key is removed."""
        rest, self._held = self._held, ""
        names = (key for key in self._keys if key.startswith(rest))
        return HIDDEN if any(len(rest) >= min(MIN_KEY_CHARS, len(key) / 2) for key in names) else rest

    def _out_of_text(self, text: str) -> str:
        for key in self._keys:
            if key in text:
                text = text.replace(key, HIDDEN)
        return text

    def _out_of_data(self, data: JsonObject) -> JsonObject:
        written = msgspec.json.encode(data)
        if not any(msgspec.json.encode(key)[1:-1] in written for key in self._keys):
            return data
        return {self._out_of_text(name): _walked(value, self._out_of_text) for name, value in data.items()}

    def out_of(self, failed: ProviderFailed) -> ProviderFailed:
        """Return the failure without the secrets."""
        detail = hide_values(failed.detail, ((secret.encode(), name) for secret, name in self._secrets.items()))
        for secret in self._secrets:
            # Where the server's message was truncated, a secret may have been truncated with it.
            for cut in range(min(len(secret), len(detail)), MIN_TRACE_CHARS - 1, -1):
                detail = detail.replace(f"{secret[:cut]}…", f"{HIDDEN}…")
        return ProviderFailed(
            redact(detail),
            kind=failed.kind,
            retry_after=failed.retry_after,
            refused=failed.refused,
            is_well=failed.is_well,
            status=failed.status,
            cause=failed.cause,
        )


def _piece(text: str, *, thought: bool) -> TextDelta | ReasoningDelta:
    return ReasoningDelta(text) if thought else TextDelta(text)


def _begins(key: str, text: str) -> int:
    """Return the index where a key may begin that the end of the text cuts off; the text's length if nowhere."""
    index = text.find(key[0], max(0, len(text) - len(key) + 1))
    while index >= 0:
        if key.startswith(text[index:]):
            return index
        index = text.find(key[0], index + 1)
    return len(text)


def _walked(value: object, mend: Callable[[str], str]) -> object:
    """Return a JSON value with each of its texts changed."""
    match value:
        case str():
            return mend(value)
        case dict():
            return {mend(name): _walked(inner, mend) for name, inner in value.items()}
        case list() | tuple():
            return [_walked(inner, mend) for inner in value]
        case _:
            return value
