"""The secrets that are sent to a provider, and how they are kept out of what it says.

A server that says a key back may say it in pieces: cut by the network, or a few letters with each event. So an answer
is looked through once it is read, and what may be the beginning of a key waits for the next piece. Hardly ever is that
more than a letter or two.
"""

from collections.abc import Callable, Iterator

import msgspec

from palyra.core.prompt import CallProposed, ModelEvent, ReasoningDelta, TextDelta
from palyra.core.redact import HIDDEN, hide_values, redact
from palyra.core.tool import JsonObject
from palyra.providers.base import ProviderFailed

LEAST_KEY_CHARS = 20
"""Shorter ones, such as servers of one's own are content with, are words that an answer may hold."""
SHORTEST_TRACE = 4
"""So many characters of a key that was cut off tell something of it."""


class Hidden:
    """The secrets that were sent: a server may say them back."""

    def __init__(self) -> None:
        self._secrets: dict[str, str] = {}
        self._keys: list[str] = []
        self._held = ""
        """The end of what was said last, if a key may begin there,"""
        self._thought = False
        """and whether it was thought."""

    def add(self, secret: str, reference: str) -> None:
        """Take in one that is about to be sent, and where it stands."""
        self._secrets[secret] = reference
        if len(secret) >= LEAST_KEY_CHARS:
            self._keys.append(secret)

    def out_of_bytes(self, whole: bytes) -> bytes:
        """Return an answer that has come to its end without them."""
        for key in self._keys:
            if key.encode() in whole:
                whole = whole.replace(key.encode(), HIDDEN.encode())
        return whole

    def out_of_event(self, event: ModelEvent) -> Iterator[ModelEvent]:
        """Yield what may be shown of an answer, now that this has come: it goes onto the tape, and to whoever asked."""
        if not self._keys:
            yield event
            return
        thought = isinstance(event, ReasoningDelta)
        if self._held and (thought != self._thought or not isinstance(event, TextDelta | ReasoningDelta)):
            yield _piece(self._rest(), thought=self._thought)
        self._thought = thought
        match event:
            case TextDelta(text=text):
                if text := self._shown(text):
                    yield TextDelta(text)
            case ReasoningDelta(text=text, dialect=dialect, data=data):
                shown = self._shown(text)
                if dialect:
                    # It ends a thought: nothing of it is still to come.
                    yield ReasoningDelta(shown + self._rest(), dialect, self._out_of_data(data))
                elif shown:
                    yield ReasoningDelta(shown)
            case CallProposed():
                tool, malformed = self._out_of_text(event.tool), self._out_of_text(event.malformed)
                arguments = self._out_of_data(event.arguments)
                yield msgspec.structs.replace(event, tool=tool, arguments=arguments, malformed=malformed)
            case _:
                yield event

    def _shown(self, text: str) -> str:
        """Return what may be shown of a text that goes on, and keep the rest."""
        text = self._out_of_text(self._held + text)
        begins = min((_begins(key, text) for key in self._keys), default=len(text))
        self._held = text[begins:]
        return text[:begins]

    def _rest(self) -> str:
        """Return what was kept, now that nothing follows it. A few letters are any word's; half a key is not."""
        rest, self._held = self._held, ""
        known = (key for key in self._keys if key.startswith(rest))
        return HIDDEN if any(len(rest) >= min(LEAST_KEY_CHARS, len(key) / 2) for key in known) else rest

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
        """Return the failure without them."""
        detail = hide_values(failed.detail, ((secret.encode(), name) for secret, name in self._secrets.items()))
        for secret in self._secrets:
            # Where the server's words were cut, one may have been cut with them.
            for cut in range(min(len(secret), len(detail)), SHORTEST_TRACE - 1, -1):
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
    """Return where a key may begin that a text ends in the middle of; the text's length if nowhere."""
    place = text.find(key[0], max(0, len(text) - len(key) + 1))
    while place >= 0:
        if key.startswith(text[place:]):
            return place
        place = text.find(key[0], place + 1)
    return len(text)


def _walked(value: object, mend: Callable[[str], str]) -> object:
    """Return a JSON value with each of its texts mended."""
    match value:
        case str():
            return mend(value)
        case dict():
            return {mend(name): _walked(inner, mend) for name, inner in value.items()}
        case list() | tuple():
            return [_walked(inner, mend) for inner in value]
        case _:
            return value
